"""Runs whose cost does not grow with the number of clients."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import SMALL

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.plan.dry_run import plan
from fedcue.report.page import render
from fedcue.report.runs import read_run
from fedcue.rounds.executor import Executor
from fedcue.rounds.workers import WAITING
from fedcue.types import ClientMemory, Download

DRAWN = [
    "partition=drawn", *SMALL, "partition.clients=100000", "evaluation.clients=6", "warm_start=4",
    "evaluation.every=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedcue.Result:
    return fedcue.run(fedcue.configure("default", DRAWN), tmp_path_factory.mktemp("scale") / "run")


def test_only_the_sampled_clients_are_tested_and_described(finished: fedcue.Result) -> None:
    rows = list(csv.DictReader((finished.folder / "clients.csv").open()))
    ids = [int(row["id"]) for row in rows]
    assert len(set(ids)) == 6
    assert ids == sorted(ids)
    assert max(ids) > 6, "a sample of all, not the first ones"
    assert all(row["test_accuracy"] for row in rows)
    assert set(json.loads((finished.folder / "model.json").read_text())["clients"]) == set(map(str, ids))
    mean = sum(float(row["test_accuracy"]) for row in rows) / 6
    assert finished.summary["mean_accuracy"] == pytest.approx(mean, abs=1e-6)


def test_shared_images_are_kept_once(finished: fedcue.Result) -> None:
    assert finished.summary["frozen_cache"] == "projected"
    federation = load_federation(fedcue.configure("default", DRAWN))
    assert len(federation.host.frozen.images) == len(federation.dataset)
    view = federation.host.frozen.view(federation.clients[99_999].train)
    computed = federation.host.frozen.compute(view.slots)
    torch.testing.assert_close(view.prefix(torch.arange(len(view.slots))).tokens, computed.tokens)


def test_the_number_of_workers_changes_no_bit(finished: fedcue.Result, tmp_path: Path) -> None:
    again = fedcue.run(fedcue.configure("default", [*DRAWN, "workers=2"]), tmp_path / "run")
    files = [(result.folder / "model.safetensors").read_bytes() for result in (finished, again)]
    assert files[0] == files[1]


def test_the_page_shows_a_run_with_a_sample_of_clients(finished: fedcue.Result) -> None:
    row = next(csv.DictReader((finished.folder / "clients.csv").open()))
    assert row["name"] in render([read_run(finished.folder)])


def test_only_a_few_downloads_wait_however_many_clients_a_round_has() -> None:
    federation = load_federation(fedcue.configure("default", [*SMALL, "method=head"]))
    tensors = federation.roster.table.first(0)
    made = 0

    def jobs() -> Iterator[tuple[Download, ClientMemory]]:
        nonlocal made
        for number in range(40):
            made += 1
            yield Download(number % 5, 0, tensors), ClientMemory()

    with Executor(federation, 2) as executor:
        ahead = [made - done for done, _ in enumerate(executor.train(jobs()), 1)]
    assert len(ahead) == 40
    assert max(ahead) <= WAITING * 2


def test_a_run_of_a_million_clients_can_be_planned() -> None:
    settings = [*DRAWN, "partition.clients=1000000"]
    planned = plan(fedcue.configure("default", settings), gflops=50.0)
    assert planned.population.clients == 1_000_000
    assert planned.population.train_images == 20_000_000
    assert planned.memory.pixels == 200 * 3 * 32**2, "every image once, whoever shares it"

"""Whole runs of every method against the numpy oracle: tensors, accuracies, tables, floats.

Four clients, of which the last never trains; four rounds, so two periods of prototypes; class 0 is held by
client 0 alone, which is not drawn in one of the periods; class 3 is held by the held-out client alone. The
backbone computes in float64; messages and the server's means are float32.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import run_oracle
import torch
from oracle import fedpr_dropped
from support.double import DoubleHost
from support.tiny_federation import CLASSES, HELD_OUT, TinyFederation, TinyRun, random_vit

from fedcue.clients.host import Host
from fedcue.data.clients import Pool
from fedcue.methods.pfedpg import PFedPG
from fedcue.model.vit import Architecture
from fedcue.registry import METHODS
from fedcue.rng import rng, torch_rng
from fedcue.train.settings import Training
from fedcue.train.sgd import fit

STARTED = time.perf_counter()
SHAPE = Architecture(width=8, depth=3, heads=2, patch=4, image_size=8, hidden=8)
TRAIN = [[0, 0, 0, 1], [1, 1, 2], [2, 2, 1, 1, 2], [0, 2, 3, 3]]
TEST = [[0, 1, 1], [1, 2, 2, 1, 2], [2, 1, 2, 2], [3, 0, 2, 0]]
DOMAINS = ("photo", "photo", "sketch", "sketch")
ROUNDS, PERIOD = 4, 2
RATES = run_oracle.Rates(head=0.05, prompts=0.2, decay=0.9, momentum=0.9, weight_decay=0.01, clip_norm=0.5)
TRAINING = Training(
    head_lr=0.05,
    prompt_lr=0.2,
    lr_decay=0.9,
    momentum=0.9,
    weight_decay=0.01,
    clip_norm=0.5,
    epochs=2,
    batch_size=3,
)
SEED = 12
"""One for which client 0 is not drawn in a period."""


@dataclass(frozen=True)
class Case:
    """A method as fedcue has it, and its counterpart in numpy."""

    options: dict[str, object]
    oracle: type[run_oracle.Method]
    theirs: dict[str, object]
    rounds: int = ROUNDS
    tolerance: float = 1e-6


CASES = {
    "head": Case({}, run_oracle.Method, {}),
    "fedvpt": Case({"prompts": 2}, run_oracle.Shallow, {"sent": ("head", "shared_prompts")}),
    "fedvpt_deep": Case({}, run_oracle.Deep, {"sent": ("head", "deep_prompts")}),
    "fedpr": Case(
        {"prompts": 2, "ratio": 0.6},
        run_oracle.Shallow,
        {"sent": ("head", "shared_prompts"), "options": "fedpr"},
    ),
    "sgpt": Case(
        {"groups": 3, "shared_blocks": 2, "group_blocks": 1},
        run_oracle.SGPT,
        {
            "sent": ("head", "shared_prompts", "group_prompts", "keys", "counts"),
            "options": {"shared_blocks": 2},
        },
    ),
    "pfedpg": Case(
        {"prompts": 2},
        run_oracle.PFedPG,
        {"sent": ("prompts",), "kept": ("head",), "serves_heldout": False, "options": "pfedpg"},
    ),
    "ppt": Case({"weighting": "size"}, run_oracle.Shallow, {"kept": ("private_prompts",), "by_size": True}),
    "pep": Case(
        {"layers": (1, 2), "period": PERIOD, "momentum": 0.3, "temperature": 0.3},
        run_oracle.PEP,
        {
            "sent": ("head", "shared_prompts", "class_prompts", "prototypes", "has_prototype"),
            "options": {"layers": (1, 2), "period": PERIOD, "momentum": 0.3, "temperature": 0.3},
        },
    ),
    "ncm": Case(
        {},
        run_oracle.ClassMeans,
        {"sent": ("head", "head_bias"), "options": {"whiten": False, "scale": 10.0, "prior": False}},
        rounds=0,
        tolerance=3e-6,  # of the bias: a sum of larger numbers
    ),
    "fed3r": Case(
        {"ridge": 0.1},
        run_oracle.Ridge,
        {
            "sent": ("head", "head_bias"),
            "exact": True,
            "options": {"ridge": 0.1, "prior": False, "whiten": True},
        },
        rounds=0,
    ),
    "fedcof": Case(
        {"shrinkage": 0.2},
        run_oracle.MeansAlone,
        {"sent": ("head",), "options": {"gamma": 0.2, "prior": False, "whiten": False}},
        rounds=0,
    ),
    "fedrod": Case(
        {"prompts": 1}, run_oracle.FedROD, {"sent": ("head", "prompts"), "kept": ("personal_head",)}
    ),
    "lora": Case(
        {"rank": 1, "alpha": 3.0, "layers": (0, 2)},
        run_oracle.LoRA,
        {"sent": ("head", "lora_b"), "options": {"rank": 1, "alpha": 3.0, "layers": (0, 2)}},
    ),
    "local": Case({}, run_oracle.Plain, {"sent": (), "kept": ("head", "prompts"), "serves_heldout": False}),
    "central": Case(
        {}, run_oracle.Plain, {"sent": ("head", "prompts"), "travels": False, "options": "central"}
    ),
    "cue": Case(
        {"scale": 2.0},
        run_oracle.ClassMeans,
        {"sent": ("head", "head_bias", "prompts"), "options": {"whiten": True, "scale": 2.0, "prior": True}},
    ),
}


class FloatingHost(DoubleHost):
    """Clients that compute in float64; what they send is float32."""

    def leave(self, visit, update):
        update, kept = super().leave(visit, update)
        sent = {n: t.float() if t.is_floating_point() else t for n, t in update.tensors.items()}
        return replace(update, tensors=sent), kept


def recording(orders: list) -> Callable[..., Host]:
    """Return how clients are made that note the order of images in every training."""

    def noted(loss, start, *rest):
        orders.append([])

        def watched(trained, batch):
            orders[-1].append(batch.rows.numpy().copy())
            return loss(trained, batch)

        return fit(watched, start, *rest)

    return lambda *given: FloatingHost(*given, loop=noted)


@cache
def golden(name: str) -> tuple[TinyRun, run_oracle.Outcome]:
    """Return a run of fedcue's and the same one in numpy."""
    case, orders = CASES[name], []
    model = random_vit(SHAPE)
    model.backbone.double()
    tiny = TinyFederation(
        METHODS.get(name)(**case.options),
        model,
        TRAINING,
        seed=SEED,
        settings=["clients_per_round=2", "evaluation.every=2", f"pooled={str(name == 'central').lower()}"],
        labels=TRAIN,
        test_labels=TEST,
        domains=DOMAINS,
        host_kind=recording(orders),
    )
    run = tiny.run(case.rounds)
    left = iter(orders)
    outcome = run_oracle.run(theirs(tiny, case), drawn_for(name), left, tested_after=(2, 4))
    assert next(left, None) is None, "a training that the oracle knows nothing of"
    return run, outcome


def drawn_for(name: str) -> list[list[int]]:
    """Return who takes part in each round: images of all in one place are visited in the name of the first."""
    drawn = run_oracle.sampled(SEED, CASES[name].rounds, [0, 1, 2], count=2)
    return [clients[:1] for clients in drawn] if name == "central" else drawn


def theirs(tiny: TinyFederation, case: Case) -> run_oracle.Method:
    pixels = tiny.pixels.double().numpy()
    task = run_oracle.Task(
        {name: tensor.numpy() for name, tensor in tiny.model.backbone.state_dict().items()},
        SHAPE.heads,
        [pixels[own] for own in tiny.partition.train],
        [np.array(own) for own in TRAIN],
        [pixels[own] for own in tiny.partition.test],
        [np.array(own) for own in TEST],
        [HELD_OUT],
        CLASSES,
    )
    table = tiny.method.table(tiny.sizes)
    drawn = {
        spec.name: np.array(spec.first(SEED).numpy(), dtype=None if "ids" in spec.name else float)
        for spec in table
        if spec.first
    }
    if "counts" in drawn:
        drawn["counts"] = drawn["counts"].astype(np.int64)
    options = case.theirs.get("options", {})
    if options == "fedpr":
        extra = torch.randn(
            fedpr_dropped(8, 0.6), 8, generator=torch_rng(SEED, "fedpr"), dtype=torch.float64
        ).numpy()
        options = {"ratio": 0.6, "directions": extra}
    if options == "pfedpg":
        like = torch.zeros(0, 1, 8)
        own = {c: PFedPG().first_descriptor(like, SEED, c)[0, 0].double().numpy() for c in range(3)}
        options = {"descriptors": own, "server_lr": 1e-3, "server_weight_decay": 1e-6}
    if options == "central":
        drawn_from = [
            Pool.of(tiny.host.clients).drawn(2, rng(SEED, "pool", number)) for number in range(ROUNDS)
        ]
        options = {"pools": [(pixels[own.train], own.train_labels) for own in drawn_from]}
    return case.oracle(task, RATES, drawn, **{**case.theirs, "options": options})


def close(found, expected, name, tolerance=1e-6):
    """Compare up to the rounding of float32, in units of the largest number."""
    size = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=tolerance * size, err_msg=name)


EVERY = pytest.mark.parametrize("name", CASES)


@EVERY
def test_the_final_tensors_are_the_oracles(name):
    run, outcome = golden(name)
    stored = {spec.name for spec in run.tiny.method.tensors(run.tiny.sizes) if spec.stored}
    assert set(run.state.tensors) == stored
    for key, tensor in run.state.tensors.items():
        close(tensor, outcome.state[key], key, CASES[name].tolerance)


@EVERY
def test_what_clients_keep_is_the_oracles(name):
    run, outcome = golden(name)
    assert run.memories.keys() == outcome.memories.keys()
    for client, memory in run.memories.items():
        assert memory.tensors.keys() == outcome.memories[client].keys()
        for key, tensor in memory.tensors.items():
            close(tensor, outcome.memories[client][key], key)


@EVERY
def test_accuracies_and_the_numbers_of_the_tables_are_the_oracles(name):
    run, outcome = golden(name)
    records = [record for record in run.result.rounds if "mean_accuracy" in record] or [run.result.summary]
    assert len(records) == len(outcome.tests)
    for record, accuracies in zip(records, outcome.tests, strict=True):
        for key, value in run_oracle.summary(accuracies, [HELD_OUT]).items():
            assert record[key] == (None if value is None else pytest.approx(value)), key
    for key, value in run_oracle.summary(outcome.tests[-1], [HELD_OUT]).items():
        assert run.result.summary[key] == (None if value is None else pytest.approx(value)), key


@EVERY
def test_accuracies_by_domain_are_the_oracles(name):
    run, outcome = golden(name)
    expected = run_oracle.domain_summary(outcome.tests[-1], list(map(len, TEST)), DOMAINS, [HELD_OUT])
    found = run.result.summary["domains"]
    assert list(found) == ["photo", "sketch"] == sorted(expected)
    for domain, numbers in expected.items():
        assert found[domain] == pytest.approx(numbers), domain


def test_pfedpgs_last_test_is_told_with_and_without_the_training_for_it_alone():
    run, outcome = golden("pfedpg")
    expected = run_oracle.summary(outcome.unadapted, [HELD_OUT])
    assert outcome.unadapted != outcome.tests[-1]
    for told in (run.result.summary, run.result.rounds[-1]):
        for key in ("mean_accuracy", "worst_accuracy", "percentile_5_accuracy"):
            assert told[f"unadapted_{key}"] == pytest.approx(expected[key])
        assert told["adaptation_images"] == 2 * sum(map(len, TRAIN[:3]))  # two epochs, nobody held out
        assert "unadapted_heldout_mean_accuracy" not in told
    middle, last = (run.result.rounds[number] for number in (1, 3))
    recent = (middle["mean_accuracy"] + last["unadapted_mean_accuracy"]) / 2
    assert run.result.summary["last_rounds_mean_accuracy"] == pytest.approx(recent)
    assert not [key for key in middle if "adapt" in key]
    assert "without that: mean accuracy" in run.result.warnings[0]


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"pfedpg"}))
def test_whose_clients_do_not_adapt_has_one_last_test(name):
    run, outcome = golden(name)
    assert not [key for key in run.result.summary if "adapt" in key]
    assert outcome.unadapted == outcome.tests[-1]


@EVERY
def test_each_clients_accuracy_is_the_oracles(name):
    run, outcome = golden(name)
    rows = (run.result.folder / "clients.csv").read_text().splitlines()
    columns = rows[0].split(",")
    for client, row in enumerate(rows[1:]):
        found = dict(zip(columns, row.split(","), strict=True))
        expected = outcome.tests[-1].get(client)
        assert found["test_accuracy"] == ("" if expected is None else f"{expected:.6f}")
        assert found["heldout"] == str(client == HELD_OUT).lower()
        assert (int(found["train_size"]), int(found["test_size"])) == (len(TRAIN[client]), len(TEST[client]))


@EVERY
def test_floats_are_the_oracles(name):
    run, outcome = golden(name)
    assert run.result.summary["warm_up_upload_floats"] == outcome.floats[0]["up"]
    for record, floats in zip(run.result.rounds, outcome.floats[1:], strict=True):
        assert (record["upload_floats"], record["download_floats"]) == (floats["up"], floats["down"])


@EVERY
def test_the_clients_of_each_round_are_the_oracles(name):
    assert [record["clients"] for record in golden(name)[0].result.rounds] == drawn_for(name)


def test_in_one_of_two_periods_nobody_sends_class_0():
    drawn = drawn_for("pep")
    assert all(len(set(clients)) == 2 and HELD_OUT not in clients for clients in drawn)
    periods = [{*drawn[0], *drawn[1]}, {*drawn[2], *drawn[3]}]
    assert [0 in clients for clients in periods].count(False) == 1


@EVERY
def test_seconds_are_those_that_went_by(name):
    result = golden(name)[0].result
    rounds = [record["seconds"] for record in result.rounds]
    assert all(seconds > 0 for seconds in rounds)
    assert sum(rounds) < result.summary["seconds"] < time.perf_counter() - STARTED


def test_the_oracles_know_nothing_of_the_package():
    for path in Path(__file__).parent.glob("*oracle.py"):
        if not path.name.startswith("test_"):
            assert not re.findall(r"^\s*(?:import|from)\s+fedcue", path.read_text(), re.MULTILINE)


def test_every_method_has_a_golden_run():
    assert CASES.keys() == METHODS.builtin.keys()


def test_the_runs_see_differences():
    """What is compared is not trivial: accuracies differ by client and test, prototypes by period."""
    tests = [tuple(sorted(outcome.items())) for name in CASES for outcome in golden(name)[1].tests]
    assert len(set(tests)) > len(CASES) / 2
    first, last = golden("pep")[1].state["prototypes"], golden("pep")[0].tiny.start().tensors["prototypes"]
    assert not np.allclose(first, last, atol=1e-3)

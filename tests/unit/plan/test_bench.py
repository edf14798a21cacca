"""What ``fedcue bench`` measures and counts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedcue.cli.main import app
from fedcue.errors import ConfigError
from fedcue.machine import peak_memory_mb
from fedcue.model.shapes import shape_of
from fedcue.plan import bench
from fedcue.plan.bench import (
    BenchClient,
    BenchOptions,
    best_times,
    mixing_macs,
    paper_forward_macs,
    plain_forward_macs,
    plain_step_macs,
)
from fedcue.plan.bench_ray import one_client

BASE = shape_of("timm/vit_base_patch16_224")


def test_bench_measures_every_rate_and_says_so_in_json() -> None:
    found = CliRunner().invoke(app, ["bench", "batch=4", "seconds=0", "workers=1", "classes=20", "--json"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    wanted = (
        "matmul_gflops", "train_samples_per_second", "prototype_samples_per_second",
        "evaluate_samples_per_second", "plain_equivalent_share", "peak_memory_mb", "round_equivalent_share",
    )  # fmt: skip
    assert all(result[key] > 0 for key in wanted)
    rate, gflops = result["train_samples_per_second"], result["matmul_gflops"]
    step = 2e-9 * plain_step_macs(shape_of("embedded"))
    assert result["plain_equivalent_share"] == pytest.approx(rate * step / gflops)
    assert (result["batch"], result["classes"], result["workers"]) == (4, 20, 1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_rate_that_shares_are_of_is_measured_in_the_same_precision(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    found: dict[str, object] = {}

    def once(work: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
        found["dtype"] = work["matmul"]().dtype
        return dict.fromkeys(work, 1.0)

    monkeypatch.setattr(bench, "MATRIX", 8)
    monkeypatch.setattr(bench, "best_times", once)
    bench._measure(BenchOptions(batch=2, precision=precision))
    assert found["dtype"] is getattr(torch, precision)


def test_bench_prints_a_table_with_both_counts_of_the_mixing() -> None:
    found = CliRunner().invoke(app, ["bench", "batch=2", "seconds=0", "workers=1"])
    assert found.exit_code == 0, found.output
    assert "plain-equivalent share" in found.output
    assert "by the paper's formula" in found.output


def test_the_client_that_ray_is_measured_with_has_one_batch_and_the_shape_asked_for() -> None:
    federation = one_client(BenchOptions(batch=7, classes=5, held=3))
    assert federation.roster.train_sizes.tolist() == [7]
    assert federation.roster.sizes.classes == 5
    assert federation.host.client(0).class_priors.tolist() == pytest.approx([3 / 7, 2 / 7, 2 / 7, 0, 0])
    assert federation.model.architecture == shape_of("embedded")


def test_bench_refuses_what_it_does_not_know() -> None:
    for wrong in ("batches=4", "batch=0", "precision=half"):
        assert isinstance(CliRunner().invoke(app, ["bench", wrong]).exception, ConfigError)


def test_counts_are_those_of_the_paper_and_of_the_true_pass() -> None:
    assert plain_forward_macs(BASE) == pytest.approx(17.74e9, rel=0.002)
    assert plain_step_macs(BASE) - plain_forward_macs(BASE) == pytest.approx(18.35e9, rel=0.002)
    assert paper_forward_macs(BASE) == pytest.approx(5.97e9, rel=0.001)
    assert mixing_macs(BASE, 100) / paper_forward_macs(BASE) == pytest.approx(0.000077, rel=0.01)
    assert mixing_macs(BASE, 100) / plain_forward_macs(BASE) == pytest.approx(0.000026, rel=0.01)


def test_contenders_take_turns_at_least_twice() -> None:
    calls: list[str] = []
    best = best_times({name: lambda name=name: calls.append(name) for name in "ab"}, seconds=0)  # type: ignore[misc]
    assert calls == ["a", "b", "a", "b"]
    assert set(best) == {"a", "b"}


def test_the_client_measured_trains_what_pep_trains() -> None:
    client = BenchClient(BenchOptions(batch=4, classes=12, held=3))
    assert client.tensors["class_prompts"].shape[0] == 3
    update = client.method.update(client.client, client.sent)
    assert set(update.tensors) >= {"head", "shared_prompts", "class_prompts", "centroids"}


def test_a_program_that_has_ended_does_not_count_as_memory() -> None:
    before = peak_memory_mb()
    subprocess.run(["true"], check=True)
    assert before <= peak_memory_mb() < before + 50

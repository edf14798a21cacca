"""What ``fedcue run`` prints at the end: every number under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fedcue.cli.run import print_result
from fedcue.rounds.result import Result

SUMMARY = {
    "mean_accuracy": 0.91,
    "worst_accuracy": 0.52,
    "heldout_mean_accuracy": 0.73,
    "last_rounds_mean_accuracy": 0.84,
    "seconds": 65.4,
}


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        (
            SUMMARY,
            "mean accuracy 91.0%, worst client 52.0%, held-out clients 73.0%, mean of the last rounds 84.0%  (65 s)",
        ),
        (
            {**SUMMARY, "heldout_mean_accuracy": None, "last_rounds_mean_accuracy": None},
            "mean accuracy 91.0%, worst client 52.0%  (65 s)",
        ),
        (
            {**SUMMARY, "last_rounds_mean_accuracy": 0.91},
            "mean accuracy 91.0%, worst client 52.0%, held-out clients 73.0%  (65 s)",
        ),
        (
            {**SUMMARY, "tested_again": {"seconds": 3.2}, "last_rounds_mean_accuracy": None},
            "mean accuracy 91.0%, worst client 52.0%, held-out clients 73.0%  (tested again in 3 s)",
        ),
    ],
)
def test_each_number_stands_under_its_name(summary: dict[str, object], line: str) -> None:
    console = Console(record=True, width=200)
    print_result(console, Result(Path("here"), summary, []))
    assert console.export_text().splitlines() == [line, "results in here"]

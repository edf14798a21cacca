"""Which run a figure of a single run shows, and how its caption names it."""

from __future__ import annotations

from collections.abc import Sequence

from fedcue.report.groups import RunGroup
from fedcue.report.runs import RunRecord, section


def pep_first(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups, those of PEP before others."""
    return sorted(groups, key=lambda group: group.method != "pep")


def run_with(groups: Sequence[RunGroup], *names: str) -> tuple[str, RunRecord] | None:
    """Return the first run, PEP's before others, whose analysis holds the tensors."""
    for group in pep_first(groups):
        for run in group.runs:
            if all(name in run.analysis for name in names):
                return group.label, run
    return None


def source(label: str, run: RunRecord) -> str:
    """Return the sentence that says which run a figure shows."""
    return f"{label}, seed {run.seed}."


def block_numbers(run: RunRecord, count: int) -> list[int]:
    """Return the blocks of a tensor that has one row for each block with a mixed prompt."""
    blocks = section(run.config, "method").get("layers")
    if isinstance(blocks, list) and len(blocks) == count and all(isinstance(n, int) for n in blocks):
        return blocks
    return list(range(count))

"""How long the runs of a grid take on this machine, without running them."""

from __future__ import annotations

from collections.abc import Sequence

from fedcue.grid.cells import Cell
from fedcue.plan.dry_run import matmul_gflops, plan


def seconds_of(cells: Sequence[Cell]) -> list[float]:
    """Return the seconds of each run on one core; runs that differ in the seed only take the same time."""
    if not cells:
        return []
    gflops = matmul_gflops()
    known: dict[tuple[str, str, str], float] = {}
    found = []
    for cell in cells:
        key = (cell.config.recipe, cell.method, cell.variant)
        if key not in known:
            alone = cell.config.model_copy(update={"workers": 1})
            known[key] = plan(alone, gflops).seconds
        found.append(known[key])
    return found

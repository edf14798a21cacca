"""How far a recipe's last round is below its best one: ``python benchmarks/steady.py TABLE.csv``.

The table is one of runs on validation images, such as

    fedcue compare --methods all,ncm,cue --seeds 0,1,2 evaluation.on=validation --table TABLE.csv

A recipe is steady if no method loses more than three points on any seed. Test images are not looked at.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedcue.grid.table import RunTable

LIMIT = 0.03
"""What a last round may be below the best one."""


def gaps(table: RunTable) -> dict[str, tuple[float, float]]:
    """Return the accuracy of the last evaluated round of each run, and of its best one."""
    curves = {name: [float(point["mean"]) for point in points] for name, points in table.curves().items()}
    return {name: (curve[-1], max(curve)) for name, curve in curves.items() if curve}


def main() -> None:
    """Print a line for each run, and leave with 1 if one is not steady."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    found = gaps(RunTable(parser.parse_args().table))
    for name, (last, best) in sorted(found.items()):
        mark = "  more than three points" if best - last > LIMIT else ""
        print(f"{name:40} last {last:6.1%}  best {best:6.1%}  lost {100 * (best - last):4.1f}{mark}")
    if not found or any(best - last > LIMIT for last, best in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""What PEP-FedPT gains over FedVPT, task by task: the table behind "when mixing pays"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from results import Results, interval, markdown, trained
from results_shown import MAIN, MIXING

from fedcue.grid.table import Row
from fedcue.report.measures import Difference

WIDTH = 192
"""Of the ViT-Ti, with which all of these runs were made."""


@dataclass(frozen=True)
class Point:
    """What PEP-FedPT gains over FedVPT on one task."""

    classes: int
    held: int
    images: int
    difference: Difference
    pep: float
    fedvpt: float

    @property
    def crowding(self) -> float:
        """Classes over the width of the ViT."""
        return self.classes / WIDTH


def mixing(results: Results) -> list[Point]:
    """Return the gain for every task of the table that both methods were run on."""
    groups: dict[tuple[int, int, int], dict[str, list[Row]]] = {}
    for row in [*results.all_rows(MIXING), *results.all_rows(MAIN)]:
        if row["method"] in ("pep", "fedvpt") and not row["variant"]:
            columns = ("data.first_classes", "partition.classes_per_client", "data.train_per_class")
            classes, held, images = (int(row.get(column) or 0) for column in columns)
            groups.setdefault((classes, held, images), {}).setdefault(row["method"], []).append(row)
    return [
        _point(key, both["pep"], both["fedvpt"]) for key, both in sorted(groups.items()) if len(both) == 2
    ]


def _point(key: tuple[int, int, int], pep: Sequence[Row], fedvpt: Sequence[Row]) -> Point:
    """Pair the clients of the seeds that both have."""
    theirs = {row["seed"]: row for row in fedvpt}
    pairs = [(row, theirs[row["seed"]]) for row in pep if row["seed"] in theirs]
    values = []
    for one, other in pairs:
        right = trained(other["clients"])
        values += [100 * (accuracy - right[client]) for client, accuracy in trained(one["clients"]).items()]
    means = [100 * fmean(float(pair[place]["mean"]) for pair in pairs) for place in (0, 1)]
    return Point(*key, Difference(tuple(values)), *means)


def table(results: Results) -> str:
    """Return the gain by classes, classes of a client and images of a class."""
    heads = [
        "classes",
        "of a client",
        "images of a class",
        "classes / width",
        "FedVPT",
        "PEP-FedPT",
        "gain",
        "95 % interval",
    ]
    lines = [heads]
    for point in mixing(results):
        lines.append(
            [
                f"{point.classes}", f"{point.held}", f"{point.images}", f"{point.crowding:.2f}",
                f"{point.fedvpt:.1f}", f"{point.pep:.1f}", f"{point.difference.mean:+.1f}",
                interval(point.difference),
            ]
        )  # fmt: skip
    return markdown(lines)

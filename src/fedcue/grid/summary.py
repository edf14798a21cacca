"""Rows of a table averaged over seeds: a line for each method and variant, by kind of method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedcue.evaluate.curve import UNADAPTED
from fedcue.grid.table import Row, identity_of

NONE = "–"
_MEASURES = {
    "mean": "mean",
    "worst": "worst",
    "mean, not adapted": f"{UNADAPTED}mean",
    "held-out": "heldout_mean",
    "mean + log prior": "log_prior_mean",
    "held-out + log prior": "log_prior_heldout_mean",
}
"""Headings of the accuracies that a summary shows, and their columns."""
_SELDOM = ("mean, not adapted",)
"""Headings that are shown only where a line has something to say."""

_GROUPS: dict[str, tuple[str, ...]] = {
    "no training": ("ncm", "fed3r", "fedcof"),
    "global": ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "lora", "pep"),
    "personalised": ("pfedpg", "ppt", "fedrod"),
    "bounds": ("local", "central"),
    "ours": ("cue",),
}
"""Methods by what their clients share at the end, in the order of the tables."""

OTHERS = "others"
"""Methods from outside the package."""

ORDER = tuple(name for names in _GROUPS.values() for name in names)
"""Methods in the order of the tables."""


def group_of(method: str) -> str:
    """Return the kind of a method."""
    return next((group for group, names in _GROUPS.items() if method in names), OTHERS)


def place_of(method: str) -> tuple[int, str]:
    """Return where a method stands in a table: those from outside come last, by name."""
    return (ORDER.index(method), "") if method in ORDER else (len(ORDER), method)


@dataclass(frozen=True)
class Line:
    """One method and variant on one recipe over its seeds."""

    recipe: str
    method: str
    variant: str
    rows: tuple[Row, ...]

    @property
    def label(self) -> str:
        """What the line is called."""
        return f"{self.method} {self.variant}".strip()

    def percent(self, column: str, spread: bool = False) -> str:
        """Return a share in percent, averaged over seeds; with its standard deviation from two seeds on."""
        found = values(self.rows, column)
        if not found or len(found) < len(self.rows):
            return NONE
        deviation = f" ± {100 * stdev(found):.1f}" if spread and len(found) > 1 else ""
        return f"{100 * fmean(found):.1f}{deviation}"


def values(rows: Iterable[Row], column: str) -> list[float]:
    """Return the numbers of a column, those that are there."""
    return [float(row[column]) for row in rows if row.get(column)]


def lines_of(rows: Iterable[Row]) -> list[Line]:
    """Group rows that differ in the seed only, by kind and method; variants stay in the order of rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        recipe, method, _, settings = identity_of(row)
        groups.setdefault(repr((recipe, method, settings)), []).append(row)
    lines = [
        Line(members[0]["recipe"], members[0]["method"], members[0]["variant"], tuple(members))
        for members in groups.values()
    ]
    recipes = list(dict.fromkeys(line.recipe for line in lines))
    return sorted(lines, key=lambda line: (recipes.index(line.recipe), place_of(line.method)))


def texts_of(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of text; the kind of a method stands where it first occurs."""
    several = len({line.recipe for line in lines}) > 1
    measures = {
        heading: column
        for heading, column in _MEASURES.items()
        if heading not in _SELDOM or any(values(line.rows, column) for line in lines)
    }
    headings = ["kind", "method", "seeds", *measures, "seconds"]
    if several:
        headings.insert(0, "recipe")
    texts: list[list[str]] = []
    before: tuple[str, str] = ("", "")
    for line in lines:
        kind = (line.recipe, group_of(line.method))
        seconds = values(line.rows, "seconds")
        cells = [
            kind[1] if kind != before else "",
            line.label,
            str(len(line.rows)),
            *(line.percent(column, spread=column == "mean") for column in measures.values()),
            f"{fmean(seconds):.0f}" if seconds else NONE,
        ]
        if several:
            cells.insert(0, line.recipe if line.recipe != before[0] else "")
        texts.append(cells)
        before = kind
    return headings, texts

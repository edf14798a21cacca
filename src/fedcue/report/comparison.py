"""The comparison of finished runs: a table for people, and the same numbers as files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcue.record.files import explained, write_json, write_text
from fedcue.report import paper
from fedcue.report.groups import OverSeeds, planned_groups
from fedcue.report.labels import compact
from fedcue.report.measures import (
    ACCURACIES,
    MEASURES,
    Difference,
    Row,
    differences,
    measured,
    reference_of,
)
from fedcue.report.tables import Cell, Table, latex, markdown

NONE = "n/a"
NOTE = (
    "Accuracies in %, mean ± standard deviation over seeds. Floats and bytes are of one client in one round, "
    "without the warm start; floats to the target are all that travelled, warm start included. "
    "Best in bold."
)
HEADINGS = {
    "mean_accuracy": "mean",
    "worst_accuracy": "worst",
    "heldout_mean_accuracy": "held-out",
    "upload_floats": "floats up",
    "download_floats": "floats down",
    "upload_bytes": "bytes up",
    "download_bytes": "bytes down",
    "rounds_to_target": "rounds to {target}",
    "floats_to_target": "floats to {target}",
    "seconds": "seconds",
}
"""The measures that the table shows, and what it calls them."""


@dataclass(frozen=True)
class Comparison:
    """Everything ``fedcue compare`` has to say."""

    rows: tuple[Row, ...]
    target: float

    @property
    def table(self) -> Table:
        """Means over seeds, one line per method and variant."""
        quoted = {name for row in self.rows for name in row.paper}
        headings = ["method", "seeds"]
        for name, heading in HEADINGS.items():
            headings.append(heading.format(target=f"{100 * self.target:g} %"))
            if name in quoted:
                headings.append(f"{headings[-1]}, paper")
        return Table(tuple(headings), tuple(self._line(row, quoted) for row in self.rows))

    def _line(self, row: Row, quoted: set[str]) -> tuple[Cell, ...]:
        cells = [Cell(row.group.label), Cell(str(len(row.group.runs)))]
        for name in HEADINGS:
            best = len(self.rows) > 1 and self._is_best(name, row.over_seeds(name))
            cells.append(Cell(_text(name, row), best))
            if name in quoted:
                cells.append(Cell(f"{row.paper[name]:.2f}" if name in row.paper else NONE))
        return tuple(cells)

    def _is_best(self, name: str, found: OverSeeds) -> bool:
        all_rows = [row.over_seeds(name) for row in self.rows]
        means = [other.mean for other in all_rows if other.complete and other.mean is not None]
        choose = max if name in ACCURACIES else min
        return found.complete and found.mean == choose(means)

    @property
    def note(self) -> str:
        """What a reader must know of the numbers."""
        groups = [row.group for row in self.rows]
        missing = [(sum(run.untested for run in group.runs), group.label) for group in groups]
        untested = ", ".join(f"{count} of {label}" for count, label in missing if count)
        early = [g.label for g in groups if any("ended_early" in run.summary for run in g.runs)]
        sentences = [NOTE]
        if any(row.paper for row in self.rows):
            sentences.append(paper.NOTE)
        if untested:
            sentences.append(f"Clients that could not be tested and are left out: {untested}.")
        if early:
            sentences.append(
                f"Ended before their last round, their privacy budget spent: {', '.join(early)}."
            )
        return " ".join(sentences)

    @property
    def differences(self) -> Table:
        """Paired differences to the reference in percentage points, with 95 % confidence intervals."""
        lines = []
        for row, reference in self._pairs():
            found = differences(row, reference)
            texts = [_difference_text(found.get(name)) for name in ACCURACIES]
            label = f"{row.group.label} - {reference.group.label}"
            lines.append(tuple(Cell(text) for text in (label, *texts)))
        return Table(("difference [95 % interval]", "mean", "worst", "held-out"), tuple(lines))

    def _pairs(self) -> list[tuple[Row, Row]]:
        pairs = [(row, reference_of(row, self.rows)) for row in self.rows]
        return [(row, reference) for row, reference in pairs if row is not reference]

    def plain(self) -> dict[str, Any]:
        """Return all numbers as JSON can hold them."""
        return {
            "target": self.target,
            "rows": [_plain_row(row) for row in self.rows],
            "differences": [_plain_pair(row, reference) for row, reference in self._pairs()],
        }

    def write(self, folder: Path) -> None:
        """Write ``compare.json``, ``compare.csv``, ``compare.md`` and ``compare.tex``."""
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        tables = [table for table in (self.table, self.differences) if table.lines]
        write_json(folder / "compare.json", self.plain())
        write_text(folder / "compare.csv", _csv(self.rows))
        write_text(folder / "compare.md", "\n".join(map(markdown, tables)) + f"\n{self.note}\n")
        write_text(folder / "compare.tex", "\n".join(map(latex, tables)) + f"\n% {self.note}\n")


def compare_runs(folders: Mapping[tuple[str, str], Sequence[Path]], target: float) -> Comparison:
    """Compare finished runs, given as folders by method and variant."""
    return Comparison(tuple(measured(planned_groups(folders), target)), target)


def _text(name: str, row: Row) -> str:
    found = row.over_seeds(name)
    if found.mean is None:
        reachable = name.endswith("_to_target") and found.values and not row.group.tested_again
        return "not reached" if reachable else NONE
    if name in ACCURACIES:
        spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
        return f"{100 * found.mean:.1f}{spread}"
    text = f"{found.mean:.1f}" if name == "rounds_to_target" else compact(found.mean)
    return text if found.complete else f"{text} ({len(found.known)} of {len(found.values)})"


def _difference_text(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    text = f"{100 * difference.mean:+.1f}"
    if difference.interval is None:
        return text
    low, high = difference.interval
    return f"{text} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _plain_row(row: Row) -> dict[str, Any]:
    group = row.group
    plain: dict[str, Any] = {
        "method": group.method,
        "variant": group.variant,
        "seeds": group.seeds,
        "runs": [run.path.name for run in group.runs],
        "untested": [run.untested for run in group.runs],
        "ended_early": ["ended_early" in run.summary for run in group.runs],
    }
    if row.paper:
        plain["paper"] = dict(row.paper)
    for name in MEASURES:
        found = row.over_seeds(name)
        plain[name] = {"mean": found.mean, "std": found.std, "values": list(found.values)}
    return plain


def _plain_pair(row: Row, reference: Row) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "method": row.group.method,
        "variant": row.group.variant,
        "reference": reference.group.label,
    }
    for name, found in differences(row, reference).items():
        interval = None if found.interval is None else list(found.interval)
        plain[name] = {"mean": found.mean, "interval_95": interval, "values": list(found.values)}
    return plain


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "variant", "seeds", *(f"{m}_{s}" for m in MEASURES for s in ("mean", "std"))])
    for row in rows:
        found = [row.over_seeds(name) for name in MEASURES]
        numbers = [value for one in found for value in (one.mean, one.std)]
        texts = ["" if value is None else repr(value) for value in numbers]
        writer.writerow([row.group.method, row.group.variant, len(row.group.runs), *texts])
    return text.getvalue()

"""The comparison of finished runs: a table for people, and the same numbers as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcue.record.files import explained, write_json, write_text
from fedcue.report import paper
from fedcue.report.groups import OverSeeds, domains_of, planned_groups
from fedcue.report.labels import compact, shorten
from fedcue.report.measures import (
    ACCURACIES,
    ADAPTATION,
    NOT_ADAPTED,
    PERCENTILES,
    WARM_START,
    Difference,
    Row,
    differences,
    is_accuracy,
    measured,
    measures_of,
    plain_pair,
    plain_row,
    reference_of,
    rows_as_csv,
)
from fedcue.report.method_table import ADAPTED
from fedcue.report.paper import domain_measure
from fedcue.report.tables import Cell, Table, latex, markdown

NONE = "n/a"
NOTE = (
    "Accuracies in %, mean ± standard deviation over seeds. Floats and bytes are of one client in one round, "
    "without the warm start; floats to the target are all that travelled, warm start included; floats down "
    "to the target are what one client in each round receives, as the paper counts. Best in bold."
)
_ADAPTED_NOTE = (
    f"{ADAPTED} For the last test alone each client trained once more; 'not adapted' is that test without "
    "it, and so is what it takes to the target. Images adapted: trained on for it, in every epoch."
)
_WARM_START_NOTE = "Warm start: floats that all clients asked send before the first round."
_HEADINGS = {
    "mean_accuracy": "mean",
    "worst_accuracy": "worst",
    "unadapted_mean_accuracy": "mean, not adapted",
    "unadapted_worst_accuracy": "worst, not adapted",
    "percentile_5_accuracy": "5th pct",
    "percentile_10_accuracy": "10th pct",
    "percentile_15_accuracy": "15th pct",
    "heldout_mean_accuracy": "held-out",
    "adaptation_images": "images adapted",
    "upload_floats": "floats up",
    "download_floats": "floats down",
    "upload_bytes": "bytes up",
    "download_bytes": "bytes down",
    WARM_START: "warm start",
    "rounds_to_target": "rounds to {target}",
    "seconds_to_target": "seconds to {target}",
    "floats_to_target": "floats to {target}",
    "client_download_floats_to_target": "floats down to {target}",
    "seconds": "seconds",
}
"""The measures that the table can show, and what it calls them."""


@dataclass(frozen=True)
class Comparison:
    """Everything ``fedcue compare`` has to say."""

    rows: tuple[Row, ...]
    target: float
    percentiles: bool = False
    """Whether the table shows percentiles even if the paper has none for these runs."""

    @property
    def columns(self) -> dict[str, str]:
        """The measures that the table shows, and their headings."""
        quoted = {name for row in self.rows for name in row.paper}
        hidden = set()
        if not self.percentiles and quoted.isdisjoint(PERCENTILES):
            hidden |= set(PERCENTILES)
        if not self._has_warm_start:
            hidden.add(WARM_START)
        if not any(row.adapted for row in self.rows):
            hidden |= set(ADAPTATION)
        shown: dict[str, str] = {}
        for name, heading in _HEADINGS.items():
            if name == "heldout_mean_accuracy":
                domains = domains_of(row.group for row in self.rows)
                shown |= {domain_measure(domain): shorten(domain) for domain in domains}
            if name not in hidden:
                shown[name] = heading.format(target=f"{100 * self.target:g} %")
        return shown

    @property
    def _has_warm_start(self) -> bool:
        return any(any(row.over_seeds(WARM_START).known) for row in self.rows)

    @property
    def table(self) -> Table:
        """Means over seeds, one line per method and variant."""
        quoted = {name for row in self.rows for name in row.paper}
        headings = ["method", "seeds"]
        for name, heading in self.columns.items():
            headings.append(heading)
            if name in quoted:
                headings.append(f"{heading}, paper")
        return Table(tuple(headings), tuple(self._line(row, quoted) for row in self.rows))

    def _line(self, row: Row, quoted: set[str]) -> tuple[Cell, ...]:
        cells = [Cell(row.group.label), Cell(str(len(row.group.runs)))]
        for name in self.columns:
            best = len(self.rows) > 1 and self._is_best(name, row.over_seeds(name))
            cells.append(Cell(_text(name, row), best))
            if name in quoted:
                cells.append(Cell(_paper_text(name, row)))
        return tuple(cells)

    def _is_best(self, name: str, found: OverSeeds) -> bool:
        all_rows = [row.over_seeds(name) for row in self.rows]
        means = [other.mean for other in all_rows if other.complete and other.mean is not None]
        choose = max if is_accuracy(name) else min
        return found.complete and found.mean == choose(means)

    @property
    def note(self) -> str:
        """What a reader must know of the numbers."""
        groups = [row.group for row in self.rows]
        missing = [(sum(run.untested for run in group.runs), group.label) for group in groups]
        untested = ", ".join(f"{count} of {label}" for count, label in missing if count)
        every = max((run.tested_every for group in groups for run in group.runs), default=1)
        early = [g.label for g in groups if any("ended_early" in run.summary for run in g.runs)]
        sentences = [NOTE]
        if self._has_warm_start:
            sentences.append(_WARM_START_NOTE)
        if every > 1:
            sentences.append(
                f"Tests were {every} rounds apart (evaluation.every): what a target took is known to so many "
                "rounds."
            )
        if any(row.adapted for row in self.rows):
            sentences.append(_ADAPTED_NOTE)
        if any(row.paper for row in self.rows):
            sentences.append(paper.NOTE)
        if untested:
            sentences.append(f"Clients that could not be tested and are left out: {untested}.")
        if early:
            sentences.append(f"Ended before their last round (summary.json says why): {', '.join(early)}.")
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
            "rows": [plain_row(row, self._measures) for row in self.rows],
            "differences": [plain_pair(row, reference) for row, reference in self._pairs()],
        }

    @property
    def _measures(self) -> tuple[str, ...]:
        return measures_of([row.group for row in self.rows])

    def write(self, folder: Path) -> None:
        """Write ``compare.json``, ``compare.csv``, ``compare.md`` and ``compare.tex``."""
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        tables = [table for table in (self.table, self.differences) if table.lines]
        write_json(folder / "compare.json", self.plain())
        write_text(folder / "compare.csv", rows_as_csv(self.rows, self._measures))
        write_text(folder / "compare.md", "\n".join(map(markdown, tables)) + f"\n{self.note}\n")
        write_text(folder / "compare.tex", "\n".join(map(latex, tables)) + f"\n% {self.note}\n")


def compare_runs(
    folders: Mapping[tuple[str, str], Sequence[Path]], target: float, percentiles: bool = False
) -> Comparison:
    """Compare finished runs, given as folders by method and variant."""
    return Comparison(tuple(measured(planned_groups(folders), target)), target, percentiles)


def _text(name: str, row: Row) -> str:
    found = row.over_seeds(name)
    if found.mean is None:
        reachable = name.endswith("_to_target") and found.values and not row.group.tested_again
        return "not reached" if reachable else NONE
    if is_accuracy(name):
        spread = "" if found.std is None else f" ± {100 * found.std:.1f}"
        mark = f" {ADAPTED}" if row.adapted and name not in NOT_ADAPTED else ""
        return f"{100 * found.mean:.1f}{spread}{mark}"
    text = f"{found.mean:.1f}" if name == "rounds_to_target" else compact(found.mean)
    return text if found.complete else f"{text} ({len(found.known)} of {len(found.values)})"


def _paper_text(name: str, row: Row) -> str:
    if name not in row.paper:
        return NONE
    if is_accuracy(name):
        return f"{row.paper[name]:.2f}"
    return f"> {compact(row.paper[name])}" if row.paper_missed_target else compact(row.paper[name])


def _difference_text(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    text = f"{100 * difference.mean:+.1f}"
    if difference.interval is None:
        return text
    low, high = difference.interval
    return f"{text} [{100 * low:+.1f}, {100 * high:+.1f}]"

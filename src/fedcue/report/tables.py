"""The comparison of finished runs as a table: for people, as JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcue.record.files import explained, write_json, write_text
from fedcue.report import paper
from fedcue.report.statistics import (
    ACCURACIES,
    MEASURES,
    Difference,
    Measure,
    Row,
    differences,
    read_rows,
    reference_of,
)

NONE = "n/a"
NOTE = (
    "Accuracies in %, mean ± standard deviation over seeds. Floats and bytes are of one client in one round, "
    "without the warm start; floats to the target are all that travelled, warm start included. "
    "Best in bold."
)


@dataclass(frozen=True)
class Cell:
    """A text and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings and lines of text, ready to be shown."""

    headings: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Comparison:
    """Everything ``fedcue compare`` has to say."""

    rows: tuple[Row, ...]
    target: float

    @property
    def table(self) -> Table:
        """Means over seeds, one line per method."""
        reach = f"{100 * self.target:g} %"
        names = (
            "mean", "worst", "held-out", "floats up", "floats down", "bytes up", "bytes down",
            f"rounds to {reach}", f"floats to {reach}", "seconds",
        )  # fmt: skip
        shown = [name for name in MEASURES if name != "client_floats_to_target"]
        quoted = {name for row in self.rows for name in row.paper}
        headings = ["method", "seeds"]
        for name, heading in zip(shown, names, strict=True):
            headings += [heading, *[f"{heading}, paper"] * (name in quoted)]
        best = {name: _best(name, [row.measure(name) for row in self.rows]) for name in shown}
        lines = []
        for row in self.rows:
            cells = [Cell(row.label), Cell(str(len(row.runs)))]
            for name in shown:
                measure = row.measure(name)
                wins = measure.mean is not None and measure.complete and measure.mean == best[name]
                again = any(run.tested_again for run in row.runs)
                cells.append(Cell(_text(name, measure, again), wins and len(self.rows) > 1))
                if name in quoted:
                    cells.append(Cell(f"{row.paper[name]:.2f}" if name in row.paper else NONE))
            lines.append(tuple(cells))
        return Table(tuple(headings), tuple(lines))

    @property
    def note(self) -> str:
        """What a reader must know of the numbers."""
        missing = [(sum(run.untested for run in row.runs), row.label) for row in self.rows]
        named = ", ".join(f"{count} of {label}" for count, label in missing if count)
        early = ", ".join(row.label for row in self.rows if any(run.ended_early for run in row.runs))
        return " ".join(
            [
                NOTE,
                *[paper.NOTE] * any(row.paper for row in self.rows),
                *[f"Clients that could not be tested and are left out: {named}."] * bool(named),
                *[f"Ended before their last round, their privacy budget spent: {early}."] * bool(early),
            ]
        )

    @property
    def differences(self) -> Table:
        """Paired differences to the reference in percentage points, with 95 % confidence intervals."""
        lines = []
        for row, reference in self._pairs():
            found = differences(row, reference)
            texts = [_difference_text(found.get(name)) for name in ACCURACIES]
            lines.append(tuple(Cell(text) for text in (f"{row.label} - {reference.label}", *texts)))
        return Table(("difference [95 % interval]", "mean", "worst", "held-out"), tuple(lines))

    def _pairs(self) -> list[tuple[Row, Row]]:
        pairs = [(row, reference_of(row, self.rows)) for row in self.rows]
        return [(row, reference) for row, reference in pairs if row is not reference]

    def plain(self) -> dict[str, Any]:
        """Return all numbers as JSON can hold them."""
        return {
            "target": self.target,
            "rows": [_plain_row(row) for row in self.rows],
            "differences": [
                {
                    "method": row.method,
                    "variant": row.variant,
                    "reference": reference.label,
                    **{name: _plain_difference(d) for name, d in differences(row, reference).items()},
                }
                for row, reference in self._pairs()
            ],
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


def compare(groups: Mapping[tuple[str, str], Sequence[Path]], target: float) -> Comparison:
    """Compare finished runs, given as folders by method and variant."""
    return Comparison(tuple(read_rows(groups, target)), target)


def _best(name: str, measures: Sequence[Measure]) -> float | None:
    means = [measure.mean for measure in measures if measure.complete and measure.mean is not None]
    choose = max if name in ACCURACIES else min
    return choose(means, default=None)


def _text(name: str, measure: Measure, again: bool) -> str:
    if measure.mean is None:
        return "not reached" if name.endswith("_to_target") and measure.values and not again else NONE
    if name in ACCURACIES:
        spread = "" if measure.std is None else f" ± {100 * measure.std:.1f}"
        return f"{100 * measure.mean:.1f}{spread}"
    text = f"{measure.mean:.1f}" if name == "rounds_to_target" else short(measure.mean)
    return text if measure.complete else f"{text} ({len(measure.known)} of {len(measure.values)})"


def short(number: float) -> str:
    """Return a number with three digits and k, M or G."""
    for unit in ("", " k", " M"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} G"


def _difference_text(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    text = f"{100 * difference.mean:+.1f}"
    if difference.interval is None:
        return text
    low, high = difference.interval
    return f"{text} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _plain_row(row: Row) -> dict[str, Any]:
    measures = {name: row.measure(name) for name in MEASURES}
    return {
        "method": row.method,
        "variant": row.variant,
        "seeds": [run.seed for run in row.runs],
        "runs": [run.folder.name for run in row.runs],
        "untested": [run.untested for run in row.runs],
        "ended_early": [run.ended_early for run in row.runs],
        **({"paper": dict(row.paper)} if row.paper else {}),
        **{name: {"mean": m.mean, "std": m.std, "values": list(m.values)} for name, m in measures.items()},
    }


def _plain_difference(difference: Difference) -> dict[str, Any]:
    interval = None if difference.interval is None else list(difference.interval)
    return {"mean": difference.mean, "interval_95": interval, "values": list(difference.values)}


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "variant", "seeds", *(f"{m}_{s}" for m in MEASURES for s in ("mean", "std"))])
    for row in rows:
        pairs = [(row.measure(name).mean, row.measure(name).std) for name in MEASURES]
        numbers = ["" if value is None else repr(value) for pair in pairs for value in pair]
        writer.writerow([row.method, row.variant, len(row.runs), *numbers])
    return text.getvalue()


def markdown(table: Table) -> str:
    """Return a table as Markdown; the best of a column in bold."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |\n"

    def show(cell: Cell) -> str:
        text = re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", cell.text)
        return f"**{text}**" if cell.best else text

    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    headings = [show(Cell(heading)) for heading in table.headings]
    return line(headings) + line(rule) + "".join(line([show(cell) for cell in row]) for row in table.lines)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}",
    **{mark: "\\" + mark for mark in "&%$#_{}"},
}  # fmt: skip


def latex(table: Table) -> str:
    """Return a table as LaTeX (package booktabs); the best of a column in bold."""

    def show(cell: Cell) -> str:
        text = "".join(_LATEX.get(mark, mark) for mark in cell.text)
        return rf"\textbf{{{text}}}" if cell.best else text

    def line(cells: Sequence[Cell]) -> str:
        return " & ".join(map(show, cells)) + r" \\"

    columns = "l" + "r" * (len(table.headings) - 1)
    body = [
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line([Cell(heading) for heading in table.headings]),
        r"\midrule", *map(line, table.lines), r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    return "\n".join(body) + "\n"

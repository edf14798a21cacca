"""A table of texts, and what it looks like as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A text and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings and lines of text."""

    headings: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]


def markdown(table: Table) -> str:
    """Return a table as Markdown; the best of a column in bold."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |\n"

    def escaped(cell: Cell) -> str:
        text = re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", cell.text)
        return f"**{text}**" if cell.best else text

    rule = ["---", *["---:"] * (len(table.headings) - 1)]
    headings = [escaped(Cell(heading)) for heading in table.headings]
    body = [line([escaped(cell) for cell in cells]) for cells in table.lines]
    return line(headings) + line(rule) + "".join(body)


_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
    "†": r"$\dagger$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "[": "{[}", "]": "{]}", **{mark: "\\" + mark for mark in "&%$#_{}"},
}  # fmt: skip


def latex(table: Table) -> str:
    """Return a table as LaTeX (package booktabs); the best of a column in bold."""

    def escaped(cell: Cell) -> str:
        text = "".join(_LATEX.get(mark, mark) for mark in cell.text)
        return rf"\textbf{{{text}}}" if cell.best else text

    def line(cells: Sequence[Cell]) -> str:
        return " & ".join(map(escaped, cells)) + r" \\"

    columns = "l" + "r" * (len(table.headings) - 1)
    body = [
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line([Cell(heading) for heading in table.headings]),
        r"\midrule", *map(line, table.lines), r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    return "\n".join(body) + "\n"

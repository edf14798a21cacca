"""What the commands on grids share: how they are to behave, tables in the terminal, what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from fedcue.report.tables import Table


@dataclass(frozen=True)
class Manner:
    """How a grid is run and shown."""

    console: Console
    jobs: int | None = None
    overwrite: bool = False
    quiet: bool = False
    as_json: bool = False
    percentiles: bool = False

    @property
    def silent(self) -> bool:
        """Whether progress is not shown."""
        return self.quiet or self.as_json


def report(problems: dict[Path, str]) -> None:
    """Say which runs failed and why; leave with exit code 1 if any did."""
    for folder, problem in problems.items():
        text = f"[red]failed:[/] {escape(f'{folder.name}: {problem}')}"
        Console(stderr=True, soft_wrap=True).print(text, highlight=False)
    if problems:
        raise typer.Exit(1)


def rich_table(table: Table) -> RichTable:
    """Return a table for the terminal, the best of a column in bold."""
    lines = [
        [f"[bold]{escape(c.text)}[/]" if c.best else escape(c.text) for c in line] for line in table.lines
    ]
    return plain_table(table.headings, lines)


def plain_table(headings: Sequence[str], lines: Sequence[Sequence[str]], left: int = 1) -> RichTable:
    """Return headings and lines of marked-up text as a table, the first columns to the left."""
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        shown.add_column(escape(heading), justify="right" if number >= left else "left", no_wrap=True)
    for line in lines:
        shown.add_row(*line)
    return shown


def print_wide(console: Console, table: RichTable) -> None:
    """Print a table at its full width, however narrow the terminal is, and an empty line."""
    before = console.width
    console.width = 10_000
    console.width = max(before, console.measure(table).maximum)
    console.print(table, highlight=False)
    console.width = before
    console.print()

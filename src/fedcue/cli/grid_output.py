"""What the commands on grids share: how they behave, their progress, tables, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID
from rich.table import Table as RichTable

from fedcue.rounds.progress import LiveDisplay, News

if TYPE_CHECKING:
    from fedcue.grid.cells import Cell
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


class GridProgress(LiveDisplay):
    """Watches a grid: rounds of all runs together, and a line for each run that is going on."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self.done = self.todo = self.room = 0
        self.lines: dict[Path, TaskID] = {}
        self.last: dict[Path, str] = {}
        self.news: dict[Path, News] = {}
        self.all = self.progress.add_task("all runs", total=None, news="starting")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the display away; say how to go on if the user stopped it."""
        super().__exit__(kind, error, trace)
        if kind is KeyboardInterrupt:
            self._say("stopped; the same command goes on from here")

    def planned(self, cells: Sequence[Cell], todo: Sequence[Cell]) -> None:
        """Say how much there is to do."""
        self.todo = len(todo)
        self.progress.update(self.all, total=sum(cell.config.rounds for cell in todo), news=self._count())
        longest = max((cell.label for cell in todo), key=len, default="")
        self.room = self.room_for_news(longest)
        self._say(f"{len(cells)} runs, {len(cells) - len(todo)} of them already finished")

    def began(self, cell: Cell) -> None:
        """Show a line for the run."""
        name = escape(cell.label)
        self.lines[cell.folder] = self.progress.add_task(name, total=cell.config.rounds, news="starting")

    def finished_round(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Show a round's numbers."""
        accuracy = record.get("mean_accuracy")
        if accuracy is not None:
            self.last[cell.folder] = f"accuracy {accuracy:.1%}, worst client {record['worst_accuracy']:.1%}"
        news = self.news.setdefault(cell.folder, News()).add(record, self.room)
        self.progress.update(self.lines[cell.folder], completed=record["round"], news=news)
        self.progress.update(self.all, completed=self._rounds())

    def ended(self, cell: Cell, problem: str | None) -> None:
        """Replace the run's line by what came of it."""
        self.done += 1
        self.progress.update(self.lines[cell.folder], completed=cell.config.rounds, visible=False)
        self.progress.update(self.all, completed=self._rounds(), news=self._count())
        result = self.last.get(cell.folder, "finished") if problem is None else f"failed: {problem}"
        self._say(f"{self.done}/{self.todo}  {cell.label}: {result}")

    def _rounds(self) -> float:
        ours = set(self.lines.values())
        return sum(task.completed for task in self.progress.tasks if task.id in ours)

    def _count(self) -> str:
        return f"rounds, {self.done}/{self.todo} runs"

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(escape(text), highlight=False)

"""How a grid of runs shows itself: one live display for all of them, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import TaskID

from fedcue.grid.cells import Cell
from fedcue.rounds.progress import LiveDisplay, News


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

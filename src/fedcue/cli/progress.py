"""How a run shows itself: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcue.federate.roster import Roster

_BARS = "▁▂▃▄▅▆▇█"


def size(number: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def sparkline(values: list[float], width: int = 16) -> str:
    """Draw the last values (0 to 1) as a row of bars."""
    return "".join(_BARS[min(7, int(value * 8))] for value in values[-width:])


def loss_text(record: Mapping[str, Any]) -> str:
    """Return a round's training loss or, where clients keep it to themselves, the privacy spent."""
    loss = record["train_loss"]
    return f"epsilon {record['epsilon']:.2f}" if loss is None else f"loss {loss:.3f}"


class RunProgress:
    """Watches one run: round, loss, accuracy, bytes, time left."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.live = console.is_terminal and not quiet
        self.accuracies: list[float] = []
        self.bytes = 0
        self.started_at = time.perf_counter()
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not self.live,
            transient=True,
        )
        self.task = self.progress.add_task("starting", total=None, news="")

    def __enter__(self) -> RunProgress:
        """Show the display until the block is left."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the display away."""
        self.progress.stop()

    def started(self, roster: Roster, folder: Path) -> None:
        """Say what is run."""
        config, heldout, images = roster.config, roster.heldout.sum(), roster.train_sizes.sum()
        self.progress.update(self.task, description=config.method.name, total=config.rounds)
        if not self.quiet:
            self.console.print(
                f"[bold]{config.method.name}[/] on {roster.dataset}: {len(roster)} clients "
                f"({heldout} held out), {images:,} training images, {roster.setting.classes} classes, "
                f"{config.rounds} rounds of {config.clients_per_round} clients, seed {config.seed}",
                highlight=False,
            )

    def stage(self, name: str) -> None:
        """Say what is being done."""
        self.progress.update(self.task, news=name)

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Show a round's numbers."""
        self.bytes += record["upload_bytes"] + record["download_bytes"]
        accuracy = record.get("mean_accuracy")
        if accuracy is not None:
            self.accuracies.append(accuracy)
        shown = f"accuracy {self.accuracies[-1]:6.1%} " if self.accuracies else ""
        loss = loss_text(record)
        news = f"{loss}  {shown}{sparkline(self.accuracies)}  {size(self.bytes)}"
        self.progress.update(self.task, completed=record["round"], news=news)
        if not self.live and not self.quiet:
            accuracy_text = (
                ""
                if accuracy is None
                else f"  accuracy {accuracy:6.1%}  worst {record['worst_accuracy']:6.1%}"
            )
            self.console.print(
                f"round {record['round']:4d}  {loss}{accuracy_text}  "
                f"{size(self.bytes)}  {record['seconds']:.1f} s",
                highlight=False,
            )

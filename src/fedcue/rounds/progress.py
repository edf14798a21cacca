"""How a run shows itself: a live display in a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedcue.errors import many, printable

if TYPE_CHECKING:
    from fedcue.clients.roster import Roster
    from fedcue.rounds.observers import Observer

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 110
"""Columns of a terminal from which on there is room for a long bar and curve."""

_SMALL_IMAGES = ("digits", "cifar10", "cifar100")
"""Datasets whose images the embedded backbone's pixels suffice for."""

BETTER = "timm/vit_small_patch16_224.augreg_in21k"
"""A backbone for photographs."""


def size(number: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def _sparkline(values: Sequence[float], width: int) -> str:
    """Draw the last values (0 to 1) as a row of bars."""
    return "".join(_BARS[min(7, int(value * 8))] for value in values[-width:])


def loss_text(record: Mapping[str, Any]) -> str:
    """Return a round's training loss or, where clients keep it to themselves, the privacy spent if any is."""
    loss, epsilon = record["train_loss"], record.get("epsilon")
    if loss is not None:
        return f"loss {loss:.3f}"
    return "loss not told" if epsilon is None else f"epsilon {epsilon:.2f}"


def header(roster: Roster, folder: Path) -> list[str]:
    """Say what is run: task, clients, backbone, and where the run goes."""
    config, shape, heldout = roster.config, roster.architecture, int(roster.heldout.sum())
    dropped = f" / {roster.dropped:,} dropped" if roster.dropped else ""
    weights = "embedded weights" if config.backbone.name == "embedded" else f"weights {config.backbone.name}"
    lines = [
        f"{config.method.name} on {roster.dataset}: {many(config.rounds, 'round')} of "
        f"{many(config.clients_per_round, 'client')}, seed {config.seed}",
        f"clients   {len(roster) - heldout:,} train / {heldout:,} held out{dropped}, "
        f"partition {roster.partition}",
        f"images    {roster.train_sizes.sum():,} to train, {roster.test_sizes.sum():,} to test, "
        f"{many(roster.sizes.classes, 'class', 'classes')}",
        f"backbone  ViT of {many(shape.depth, 'block')}, width {shape.width}, {shape.image_size} pixels, "
        f"{weights}, {config.precision}",
        f"folder    {folder}",
    ]
    if config.engine.name == "ray":
        address = config.engine.address or os.environ.get("RAY_ADDRESS")
        lines.append(f"engine    Ray {f'at {address}' if address else 'on this machine'}")
    if config.engine.together > 1:
        from fedcue.clients.together import one_by_one

        reason = one_by_one(roster)
        lines.append(f"together  {f'no, because of {reason}' if reason else config.engine.together}")
    if config.backbone.name == "embedded" and type(config.data).name not in _SMALL_IMAGES:
        lines.append(
            f"The embedded backbone is for first tries: it sees {shape.image_size} pixels. For photographs a "
            f"pre-trained one does better: backbone={BETTER}"
        )
    return lines


@dataclass
class News:
    """The rounds of one run so far, summarised in a line."""

    accuracies: list[float] = field(default_factory=list)
    bytes: int = 0

    def add(self, record: Mapping[str, Any], room: int) -> str:
        """Take a round in; return accuracy with its curve, loss, bytes so far and clients, as far as fits."""
        self.bytes += record["upload_bytes"] + record["download_bytes"]
        if record.get("mean_accuracy") is not None:
            self.accuracies.append(record["mean_accuracy"])
        parts = [loss_text(record), size(self.bytes), _clients_text(record), *_places_text(record)]
        if self.accuracies:
            parts.insert(
                0, f"accuracy {self.accuracies[-1]:.1%} {_sparkline(self.accuracies, min(16, room // 4))}"
            )
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        return "  ".join(parts)


def _clients_text(record: Mapping[str, Any]) -> str:
    """Return how many clients a round asked, and how many of them failed."""
    asked, failed = len(record["clients"]), len(record.get("failures", ()))
    return many(asked, "client") + f" ({failed} failed)" * bool(failed)


def _places_text(record: Mapping[str, Any]) -> list[str]:
    """Return nodes, workers and visits a second of a cluster, if there is one."""
    if "nodes" not in record:
        return []
    places = f"{many(record['nodes'], 'node')}, {many(record['workers'], 'worker')}"
    return [f"{places}, {record['visits_per_second']:.3g} visits/s"]


@contextmanager
def watched(observer: Observer | None) -> Iterator[Observer]:
    """Yield the observer or, without one, a display that shows in a terminal or a notebook."""
    if observer is not None:
        yield observer
        return
    console = Console(stderr=True, soft_wrap=True)
    with RunProgress(console, quiet=not (console.is_terminal or console.is_jupyter)) as display:
        yield display


class LiveDisplay:
    """A line per run: name, bar, rounds, news, time left; narrow where it must be."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        drawn_anew = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
        self.live = drawn_anew and not quiet
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20 if console.width >= _WIDE else 8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not self.live,
            transient=True,
        )

    def __enter__(self) -> Self:
        """Show the display until the block is left."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the display away."""
        self.progress.stop()

    def room_for_news(self, name: str) -> int:
        """Return how many columns are left beside a run's name, its bar, its rounds and the time left."""
        width = self.console.width
        return width - len(name) - (43 if width >= _WIDE else 31)


class RunProgress(LiveDisplay):
    """Watches one run: rounds, clients, loss, accuracy, bytes, time left."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        self.news, self.name, self.stage_name = News(), "", ""
        self.task = self.progress.add_task("rounds", total=None, news="", visible=False)
        self.step = self.progress.add_task("starting", total=None, news="")

    def started(self, roster: Roster, folder: Path) -> None:
        """Say what is run."""
        config = roster.config
        self.name = config.method.name
        self.progress.update(self.task, description=self.name, total=config.rounds, visible=True)
        if not self.quiet:
            for line in header(roster, folder):
                self.console.print(escape(printable(line)), highlight=False)

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        """Show what is being done and how far it is; the time left is that of this stage."""
        if name != self.stage_name:
            self.stage_name = name
            self.progress.remove_task(self.step)
            self.step = self.progress.add_task(name, total=total or None, news="")
        self.progress.update(self.step, completed=done)

    def finished_round(self, record: Mapping[str, Any]) -> None:
        """Show a round's numbers."""
        news = self.news.add(record, self.room_for_news(self.name))
        self.progress.update(self.task, completed=record["round"], news=news)
        if not self.live and not self.quiet:
            accuracy = record.get("mean_accuracy")
            scores = ""
            if accuracy is not None:
                scores = f"  accuracy {accuracy:6.1%}  worst {record['worst_accuracy']:6.1%}"
            self.console.print(
                f"round {record['round']:4d}  {_clients_text(record)}  {loss_text(record)}{scores}  "
                + "  ".join([size(self.news.bytes), *_places_text(record), f"{record['seconds']:.1f} s"]),
                highlight=False,
            )

"""What several commands share: arguments, and a message while something is being done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe by name or path, then settings such as rounds=20 method=fedvpt training.epochs=2.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for the results.", show_default="runs/...")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already there.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that is already there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, nothing else.")]

Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE:CLASS",
        help="Import this class if the folder names it; may be repeated, is remembered nowhere.",
        show_default=False,
    ),
]
Fetch = Annotated[
    bool, typer.Option("--fetch", help="Let the folder's backbone, data and trackers use the network.")
]


def split_settings(arguments: Sequence[str] | None, seed: int | None = None) -> tuple[str, list[str]]:
    """Separate the recipe from the settings; ``--seed`` is short for ``seed=``."""
    given = list(arguments or [])
    recipe = given.pop(0) if given and "=" not in given[0] else "default"
    return recipe, given + ([] if seed is None else [f"seed={seed}"])


@contextmanager
def busy(words: str) -> Iterator[None]:
    """Show a message and the elapsed time until the block is left, in a terminal only."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(words, total=None)
        yield

"""``fedcue run``: one federated run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli import own
from fedcue.cli.arguments import Json, Out, Overwrite, Quiet, Resume, Settings, busy, split_settings
from fedcue.cli.dry_run import show_plan
from fedcue.errors import Interrupted, WorkersLost

if TYPE_CHECKING:
    from fedcue.config.settings import RunConfig
    from fedcue.rounds.result import Result


def run(
    settings: Settings = None,
    out: Out = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Short for seed=N.", show_default="0")] = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    quiet: Quiet = False,
    as_json: Json = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what the run would do and cost, without doing it.")
    ] = False,
) -> None:
    """Train one method on one federation.

    For example:

      fedcue run

      fedcue run method=fedvpt rounds=10 --seed 1

      fedcue run own data.root=FOLDER

      fedcue run cifar100-pathological scale=cpu data.root=DIR backbone=DIR --out runs/cifar
    """
    with busy("starting"):
        from fedcue.config.layers import load

        recipe, overrides = split_settings(settings, seed)
        config, console = load(recipe, overrides), Console(soft_wrap=True)
    if dry_run:
        show_plan(config, as_json)
        return
    guided = config.recipe == "own" and not (quiet or as_json or resume)
    if guided:
        own.before(console, config)
    result = start(config, out, overwrite=overwrite, resume=resume, quiet=quiet, as_json=as_json)
    if guided:
        own.after(console, result.folder, overrides)


def start(
    config: RunConfig, out: Path | None, *, overwrite: bool, resume: bool, quiet: bool, as_json: bool
) -> Result:
    """Run a configuration with a progress display and print what came of it."""
    from fedcue.rounds.loop import run as run_federation
    from fedcue.rounds.progress import RunProgress
    from fedcue.rounds.resume import default_folder

    console = Console(stderr=as_json, soft_wrap=True)
    folder = out or default_folder(config)
    try:
        with RunProgress(console, quiet or as_json) as progress:
            result = run_federation(config, folder, overwrite=overwrite, resume=resume, observer=progress)
    except (Interrupted, WorkersLost):
        there = config.engine.address  # not kept: no folder says which cluster is joined
        command = f"{f'RAY_ADDRESS={there} ' if there else ''}fedcue resume {folder}"
        console.print(f"stopped; go on with: {command}", highlight=False)
        raise
    if as_json:
        typer.echo(json.dumps({"folder": str(result.folder), **result.summary}))
    else:
        print_result(console, result)
    return result


def _seconds(summary: Mapping[str, Any]) -> str:
    """Return how long a run took or, if it was tested again, how long that took."""
    again = summary.get("tested_again")
    return f"{summary['seconds']:.0f} s" if again is None else f"tested again in {again['seconds']:.0f} s"


def print_result(console: Console, result: Result) -> None:
    """Print a run's accuracies and where they are."""
    summary = result.summary
    heldout, recent = summary["heldout_mean_accuracy"], summary.get("last_rounds_mean_accuracy")
    if recent == summary["mean_accuracy"]:  # one test: its mean says nothing more
        recent = None
    console.print(
        f"mean accuracy [bold]{summary['mean_accuracy']:.1%}[/], worst client {summary['worst_accuracy']:.1%}"
        + (f", held-out clients {heldout:.1%}" if heldout is not None else "")
        + (f", mean of the last rounds {recent:.1%}" if recent is not None else "")
        + f"  ({_seconds(summary)})",
        highlight=False,
    )
    best = summary.get("best_validation")
    if best is not None:
        console.print(
            f"best on validation images: round {best['round']} with {best['mean_accuracy']:.1%}",
            highlight=False,
        )
    for line in result.warnings:
        console.print(escape(line), highlight=False)
    console.print(f"results in {result.folder}", highlight=False)

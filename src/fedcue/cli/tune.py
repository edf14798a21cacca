"""``fedcue tune``: choose settings on validation images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcue.cli.arguments import Json, Quiet, Settings, split_settings
from fedcue.cli.compare import Jobs, Methods, Replace
from fedcue.cli.grid_output import print_wide, report

if TYPE_CHECKING:
    from fedcue.grid.tune import Choice


def tune(
    settings: Settings = None,
    grid: Annotated[
        list[str] | None, typer.Option("--grid", "-g", help="Values to try, as in training.lr=0.03,0.1.")
    ] = None,
    methods: Methods = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds to average over, as in 0,1.")] = "0",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of all trials.", show_default="runs/tune-RECIPE"),
    ] = None,
    jobs: Jobs = None,
    overwrite: Replace = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose settings for each method on the clients' validation images; test images are never used.

    Every method is given the same grid. The result is a recipe, tuned.toml, for compare and run.

    For example:

      fedcue tune --methods pep,fedvpt --grid training.prompt_lr=0.03,0.1,0.3 --grid training.epochs=1,5
    """
    from fedcue.cli.grid_output import GridProgress
    from fedcue.config.layers import parse
    from fedcue.grid import options
    from fedcue.grid import tune as tuning
    from fedcue.grid.cells import Grid
    from fedcue.grid.execute import run_grid

    recipe, overrides = split_settings(settings)
    given = Grid(
        recipe,
        parse(overrides),
        options.read_methods(methods, options.compare_table(recipe).methods),
        options.read_seeds(seeds, (0,)),
        options.read_values(grid or []),
    )
    folder = out or Path("runs") / f"tune-{Path(recipe).stem}"
    todo = tuning.validation_grid(given).cells(folder)
    console = Console(stderr=as_json, soft_wrap=True)
    with GridProgress(console, quiet or as_json) as progress:
        problems = run_grid(todo, progress, at_once=jobs, overwrite=overwrite)
    problems |= tuning.untested(todo)
    candidates = tuning.read_candidates(given, todo)
    choices = tuning.choose(candidates, given.values, len(given.seeds))
    tuning.write_candidates(folder, given, candidates, choices)
    if not choices:
        report(problems)
    tuned = tuning.write_recipe(folder, given, choices)
    if as_json:
        typer.echo(json.dumps({"recipe": str(tuned), **json.loads((folder / "trials.json").read_text())}))
    else:
        _show(console, choices)
        console.print(f"chosen settings in {tuned}, all trials in {folder / 'trials.csv'}", highlight=False)
    report(problems)


def _show(console: Console, choices: Mapping[str, Choice]) -> None:
    table = Table("method", "chosen", "validation accuracy", box=None, pad_edge=False)
    for method, choice in choices.items():
        table.add_row(escape(method), escape(choice.candidate.variant), f"{choice.candidate.mean:.1%}")
    print_wide(console, table)
    for method, choice in choices.items():
        if choice.edges:
            text = (
                f"{method}: {', '.join(choice.edges)} is at the edge of the grid; a wider grid may do better"
            )
            console.print(escape(text), highlight=False)

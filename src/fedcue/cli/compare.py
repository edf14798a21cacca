"""``fedcue compare``: a grid of methods and seeds, and the table that comes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.arguments import Json, Quiet
from fedcue.cli.grid_output import Manner, print_wide, report, rich_table

if TYPE_CHECKING:
    from fedcue.grid.cells import Cell
    from fedcue.grid.compare import Asked
    from fedcue.report.comparison import Comparison

Recipes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE]... [KEY=VALUE]...",
        help="Recipes by name or path, then settings such as rounds=20 training.epochs=2.",
        show_default=False,
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="Names: pep,fedvpt, 'paper' (its eight), 'all' there are, or 'none': variants only.",
        show_default="the recipe's",
    ),
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        help="A method with changed settings besides, as in 'pep: method.prior=uniform'; may be repeated.",
        show_default="the recipe's",
    ),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="Seeds, as in 0,1,2.", show_default="the recipe's, or 0,1,2")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.", show_default="one per core")
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace runs with other settings.")]


def compare(
    settings: Recipes = None,
    methods: Methods = None,
    variant: Variants = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of all runs.", show_default="runs/compare-RECIPE"),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="A CSV file that remembers: only runs that it does not hold are made, each adds its row. "
            "Their folders are removed unless --out is given.",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target", min=0, max=1, help="Mean accuracy to reach.", show_default="the recipe's, or 0.8"
        ),
    ] = None,
    percentiles: Annotated[
        bool, typer.Option("--percentiles", help="Show the 5th, 10th and 15th percentile of the clients.")
    ] = False,
    jobs: Jobs = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be run and how long it takes; run nothing.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier table, and runs with other settings.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run methods and their variants x seeds (x a sweep of the recipe) and compare them.

    Finished runs are not repeated and stopped ones go on, so the same command shows the table again.

    For example:

      fedcue compare --methods pep,fedvpt --seeds 0,1,2

      fedcue compare --methods pep --variant "pep: method.prior=uniform" --table pep.csv

      fedcue compare tuned.toml rounds=50 --jobs 4 --out runs/tuned
    """
    from fedcue.cli import compare_table
    from fedcue.grid.compare import asked_for

    asked = asked_for(settings or [], methods, seeds, variant, target)
    manner = Manner(Console(stderr=as_json, soft_wrap=True), jobs, overwrite, quiet, as_json, percentiles)
    if table is not None:
        compare_table.run(asked, table, out, manner, dry_run=dry_run)
        return
    folders = _folders(asked, out)
    cells = {one.name: one.grid.cells(folders[one.name]) for one in asked}
    if dry_run:
        compare_table.show_work([cell for some in cells.values() for cell in some], manner)
        return
    _run(asked, cells, folders, manner)


def _folders(asked: Sequence[Asked], out: Path | None) -> dict[str, Path]:
    """Return the folder of each recipe's runs."""
    if len(asked) == 1:
        return {one.name: out or Path("runs") / f"compare-{one.name}" for one in asked}
    return {one.name: out / one.name if out else Path("runs") / f"compare-{one.name}" for one in asked}


def _run(
    asked: Sequence[Asked], cells: dict[str, list[Cell]], folders: dict[str, Path], manner: Manner
) -> None:
    """Run the grids of all recipes together; write and show a table for each."""
    from fedcue.cli.grid_output import GridProgress
    from fedcue.grid.compare import check_earlier_table
    from fedcue.grid.execute import finished, run_grid
    from fedcue.report.comparison import compare_runs

    if not manner.overwrite:
        for name, some in cells.items():
            check_earlier_table(folders[name], some)
    together = [cell for some in cells.values() for cell in some]
    with GridProgress(manner.console, manner.silent) as progress:
        problems = run_grid(together, progress, at_once=manner.jobs, overwrite=manner.overwrite)
    for one in asked:
        comparison = compare_runs(finished(cells[one.name]), one.target, manner.percentiles)
        comparison.write(folders[one.name])
        if manner.as_json:
            typer.echo(json.dumps({"folder": str(folders[one.name]), **comparison.plain()}))
        else:
            if len(asked) > 1:
                manner.console.print(f"[bold]{escape(one.name)}[/]", highlight=False)
            _show(comparison, folders[one.name], manner.console)
    report(problems)


def _show(comparison: Comparison, folder: Path, console: Console) -> None:
    for part in (comparison.table, comparison.differences):
        if part.lines:
            print_wide(console, rich_table(part))
    console.print(f"{comparison.note}\nresults in {folder} (compare.md, .csv, .tex, .json)", highlight=False)

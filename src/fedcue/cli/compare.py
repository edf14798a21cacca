"""``fedcue compare``: a grid of methods and seeds, and the table that comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.arguments import Json, Quiet, Settings, split_settings

if TYPE_CHECKING:
    from rich.table import Table as RichTable

    from fedcue.report.tables import Table

Methods = Annotated[
    str | None,
    typer.Option("--methods", help="'all' (the paper's) or names: pep,fedvpt.", show_default="the recipe's"),
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", help="Seeds, as in 0,1,2.", show_default="the recipe's, or 0,1,2")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time.", show_default="one per core")
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace runs with other settings.")]


def compare(
    settings: Settings = None,
    methods: Methods = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of all runs.", show_default="runs/compare-RECIPE"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target", min=0, max=1, help="Mean accuracy to reach.", show_default="the recipe's, or 0.8"
        ),
    ] = None,
    jobs: Jobs = None,
    overwrite: Replace = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run methods x seeds (x a sweep of the recipe) and compare them.

    Finished runs are not repeated and stopped ones go on, so the same command shows the table again.

    For example:

      fedcue compare --methods pep,fedvpt --seeds 0,1,2

      fedcue compare tuned.toml rounds=50 --jobs 4 --out runs/tuned
    """
    from fedcue.cli.grid_progress import GridProgress
    from fedcue.config import parse
    from fedcue.grid import options
    from fedcue.grid.cells import Grid
    from fedcue.grid.execute import finished, run_grid
    from fedcue.report import tables

    recipe, overrides = split_settings(settings)
    table = options.compare_table(recipe)
    grid = Grid(
        recipe,
        parse(overrides),
        options.read_methods(methods, table.methods),
        options.read_seeds(seeds, table.seeds),
        table.sweep,
    )
    folder = out or Path("runs") / f"compare-{Path(recipe).stem}"
    console = Console(stderr=as_json, soft_wrap=True)
    todo = grid.cells(folder)
    with GridProgress(console, quiet or as_json) as progress:
        problems = run_grid(todo, progress, at_once=jobs, overwrite=overwrite)
    comparison = tables.compare(finished(todo), table.target if target is None else target)
    comparison.write(folder)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), **comparison.plain()}))
    else:
        for part in (comparison.table, comparison.differences):
            if part.lines:
                print_wide(console, rich_table(part))
        console.print(
            f"{comparison.note}\nresults in {folder} (compare.md, .csv, .tex, .json)", highlight=False
        )
    report(problems)


def report(problems: dict[Path, str]) -> None:
    """Say which runs failed and why; leave with exit code 1 if any did."""
    for folder, problem in problems.items():
        text = f"[red]failed:[/] {escape(f'{folder.name}: {problem}')}"
        Console(stderr=True, soft_wrap=True).print(text, highlight=False)
    if problems:
        raise typer.Exit(1)


def rich_table(table: Table) -> RichTable:
    """Return a table for the terminal, the best of a column in bold."""
    from rich.table import Table as RichTable

    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, heading in enumerate(table.headings):
        shown.add_column(escape(heading), justify="right" if number else "left", no_wrap=True)
    for line in table.lines:
        shown.add_row(*(f"[bold]{escape(c.text)}[/]" if c.best else escape(c.text) for c in line))
    return shown


def print_wide(console: Console, table: RichTable) -> None:
    """Print a table at its full width, however narrow the terminal is, and an empty line."""
    before = console.width
    console.width = 10_000
    console.width = max(before, console.measure(table).maximum)
    console.print(table, highlight=False)
    console.width = before
    console.print()

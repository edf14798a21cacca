"""``fedcue compare --table`` and ``--dry-run``: a table that remembers, and what is missing from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.dry_run import duration
from fedcue.cli.grid_output import Manner, plain_table, print_wide, report
from fedcue.errors import many

if TYPE_CHECKING:
    from fedcue.grid.cells import Cell
    from fedcue.grid.compare import Asked
    from fedcue.grid.table import Row

_IN_WORDS = {"finished": "finished", "stopped": "goes on", "new": "new", "other": "holds another run"}


def run(
    asked: Sequence[Asked], path: Path, out: Path | None, manner: Manner, *, dry_run: bool = False
) -> None:
    """Run what a table does not hold yet, add a row for each run, and show the rows that were asked for."""
    from fedcue.cli.grid_output import GridProgress
    from fedcue.grid.remember import plan_table
    from fedcue.grid.table import RunTable
    from fedcue.record.files import check_output

    check_output(path)
    plan = plan_table(RunTable(path), [one.grid for one in asked], out, again=manner.overwrite)
    if dry_run:
        cells = [one.first.cell for one in plan.missing]
        tested = sum(len(one.others) for one in plan.missing)
        known = len(plan.wanted) - len(cells) - tested
        show_work(cells, manner, known, tested)
        return
    with GridProgress(manner.console, manner.silent) as progress:
        problems = plan.run(progress, manner.jobs, manner.overwrite)
    rows = plan.rows()
    if manner.as_json:
        typer.echo(json.dumps({"table": str(path), "rows": [_without_empty(row) for row in rows]}))
    elif rows:
        _show(rows, manner.console)
        manner.console.print(f"rows in {path}, curves in {plan.table.curves_path}", highlight=False)
    report(problems)


def show_work(cells: Sequence[Cell], manner: Manner, known: int = 0, tested: int = 0) -> None:
    """List the runs that would be made with the time each takes here, and run nothing."""
    from fedcue.grid.execute import runs_at_once, seconds_of, state_of

    states = {cell.folder: state_of(cell) for cell in cells}
    todo = [cell for cell in cells if states[cell.folder] != "finished"]
    seconds = seconds_of(todo)
    at_once = runs_at_once(todo, manner.jobs)
    total = sum(seconds) / at_once
    runs = [
        {
            "recipe": cell.config.recipe,
            "run": cell.label,
            "state": states[cell.folder],
            "seconds": round(time),
        }
        for cell, time in zip(todo, seconds, strict=True)
    ]
    if manner.as_json:
        typer.echo(json.dumps({"runs": runs, "at_once": at_once, "seconds": round(total)}))
        return
    lines = [
        [escape(str(one["recipe"])), escape(str(one["run"])), _IN_WORDS[str(one["state"])], duration(time)]
        for one, time in zip(runs, seconds, strict=True)
    ]
    if lines:
        print_wide(manner.console, plain_table(["recipe", "run", "", "time on one core"], lines, left=3))
    already = known + len(cells) - len(todo)
    more = f", {tested} of the same models tested otherwise" if tested else ""
    manner.console.print(
        f"{many(len(todo), 'run')} to make{more}, {already} there already; about {duration(total)} with "
        f"{at_once} at a time if nothing else runs (nothing was run)",
        highlight=False,
    )


def _show(rows: Sequence[Row], console: Console) -> None:
    from fedcue.grid.summary import lines_of, texts_of

    headings, lines = texts_of(lines_of(rows))
    print_wide(console, plain_table(headings, [list(map(escape, line)) for line in lines], left=2))
    console.print("Accuracies in %, mean ± standard deviation over seeds.", highlight=False)


def _without_empty(row: Row) -> dict[str, str]:
    return {column: value for column, value in row.items() if value}

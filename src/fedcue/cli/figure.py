"""``fedcue figure``: one figure as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.report import Runs


def figure(
    name: Annotated[str, typer.Argument(help="The figure, such as accuracy-rounds; a wrong name lists all.")],
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File ending in .png, .svg or .csv.", show_default="NAME.png"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="For cost-to-target: the accuracy.", show_default="all reach it"),
    ] = None,
    classes: Annotated[str, typer.Option(help="For mixing-weights-classes: numbers of classes.")] = "0,1",
) -> None:
    """Draw one figure of the paper from runs.

    For example:

      fedcue figure accuracy-rounds runs/compare-default --out convergence.svg

      fedcue figure cost-to-target runs/compare-default --target 0.83 --out cost.csv
    """
    from fedcue.report.figures.catalogue import build
    from fedcue.report.figures.draw import save
    from fedcue.report.groups import group_runs
    from fedcue.report.runs import need_runs

    drawn = build(name, group_runs(need_runs(runs)), target=target, classes=classes)
    path = out or Path(f"{drawn.name}.png")
    save(drawn, path)
    console = Console(soft_wrap=True)
    console.print(f"{escape(str(path))}: {escape(drawn.title)}. {escape(drawn.alt)}", highlight=False)

"""``fedcue report``: runs as one page, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.arguments import busy

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold runs.", metavar="RUN...")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Make one self-contained page of runs, and a folder of figures (PNG, SVG, CSV) and tables beside it.

    For example:

      fedcue report runs/compare-default --open

      fedcue report runs/a runs/b --out compared.html
    """
    with busy("writing the report"):
        from fedcue.report.export import write_report

        page, files = write_report(runs, out)
    size = page.stat().st_size / 1e6
    Console(soft_wrap=True).print(
        f"{escape(str(page))} ({size:.1f} MB), figures and tables in {escape(str(files))}", highlight=False
    )
    if show:
        typer.launch(page.resolve().as_uri())

"""The report as files: the page, and beside it the figures and tables."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedcue.record.files import check_output, explained, without_formula, write_text
from fedcue.report.figures.catalogue import FIGURES
from fedcue.report.figures.draw import FORMATS, save
from fedcue.report.groups import group_runs
from fedcue.report.method_table import MethodTable, method_table
from fedcue.report.page import render
from fedcue.report.runs import RunRecord, need_runs
from fedcue.report.tables import latex, markdown

LIMIT = 5_000_000
log = logging.getLogger(__name__)


def write_report(paths: Iterable[Path], out: Path) -> tuple[Path, Path]:
    """Write the page to ``out``, and figures and tables to a folder beside it; return both."""
    check_output(out)
    runs = need_runs(paths)
    page = render(runs)
    if len(page.encode()) > LIMIT:
        log.warning("The page has %.1f MB; give fewer runs for a smaller one.", len(page.encode()) / 1e6)
    files = out.with_name(f"{out.stem}-files")
    with explained(out):
        files.mkdir(parents=True, exist_ok=True)
    write_text(out, page)
    _write_files(runs, files)
    return out, files


def _write_files(runs: Sequence[RunRecord], folder: Path) -> None:
    groups = group_runs(runs)
    write_table(method_table(groups), folder)
    for name, entry in FIGURES.items():
        figure = entry.build(groups)
        if figure is not None:
            save(figure, *(folder / f"{name}{ending}" for ending in FORMATS))


def write_table(methods: MethodTable, folder: Path) -> None:
    """Write the table of methods as CSV (numbers), Markdown and LaTeX (as shown)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(methods.table.headings)
    writer.writerows(["" if key is None else without_formula(key) for key in line] for line in methods.keys)
    write_text(folder / "methods.csv", text.getvalue())
    write_text(folder / "methods.md", markdown(methods.table))
    write_text(folder / "methods.tex", latex(methods.table))

"""The report as files."""

from __future__ import annotations

import csv
from pathlib import Path

from support.run_folders import write_run

from fedcue.report.comparison import compare_runs
from fedcue.report.export import write_report
from fedcue.report.measures import rows_as_csv


def test_report_writes_the_page_with_figures_and_tables_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedvpt", done=3)
    page, files = write_report([tmp_path / "run"], tmp_path / "out" / "my report.html")
    assert page.read_text().startswith("<!doctype html>")
    names = {path.name for path in files.iterdir()}
    assert {"methods.csv", "methods.md", "methods.tex", "accuracy-rounds.png", "accuracy-rounds.svg"} <= names


def test_a_method_called_like_a_formula_is_a_text_in_every_table(tmp_path: Path) -> None:
    """The name comes from a run folder that anybody may have made."""
    folder = write_run(tmp_path / "run", "=HYPERLINK(1)")
    _, files = write_report([folder], tmp_path / "report.html")
    tables = [path.read_text() for path in files.glob("*.csv")]
    tables.append(rows_as_csv(compare_runs({("=HYPERLINK(1)", "@x"): [folder]}, 0.8).rows, ["mean_accuracy"]))
    assert any("'=HYPERLINK(1)" in table for table in tables[:-1])
    assert "'=HYPERLINK(1),'@x," in tables[-1]
    cells = [cell for table in tables for row in csv.reader(table.splitlines()) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]

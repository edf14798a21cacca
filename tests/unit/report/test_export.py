"""The report as files."""

from __future__ import annotations

from pathlib import Path

from support.run_folders import write_run

from fedcue.report.export import write_report


def test_report_writes_the_page_with_figures_and_tables_beside_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedvpt", done=3)
    page, files = write_report([tmp_path / "run"], tmp_path / "out" / "my report.html")
    assert page.read_text().startswith("<!doctype html>")
    names = {path.name for path in files.iterdir()}
    assert {"methods.csv", "methods.md", "methods.tex", "accuracy-rounds.png", "accuracy-rounds.svg"} <= names

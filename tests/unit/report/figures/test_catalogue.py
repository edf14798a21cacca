"""Every figure by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import groups_in, write_run

from fedcue.errors import ConfigError, RunFolderError
from fedcue.report.figures.catalogue import FIGURES, build, build_all
from fedcue.report.figures.figure import plain
from fedcue.report.groups import RunGroup


@pytest.mark.parametrize("value", [[], {}, 10**400, "two", None, True], ids=lambda v: str(v)[:4])
@pytest.mark.parametrize("key", ["round", "mean_accuracy", "upload_bytes", "seconds"])
def test_a_value_that_is_no_number_is_left_out_of_every_figure(tmp_path: Path, key: str, value: Any) -> None:
    folder = write_run(tmp_path / "one")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {key: value}) for record in records]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads((folder / "summary.json").read_text()) | {"warm_up_upload_bytes": value}
    (folder / "summary.json").write_text(json.dumps(summary))
    figures = [figure for section in build_all(groups_in(tmp_path)).values() for figure in section]
    assert any(figure.name == "loss-rounds" for figure in figures) == (key != "round")


def test_a_figure_without_data_says_what_it_needs(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "fedvpt", done=2)
    with pytest.raises(
        RunFolderError, match="mixing-weights has nothing to show: it needs a finished run of pep"
    ):
        build("mixing-weights", groups_in(tmp_path))
    with pytest.raises(ConfigError, match="Did you mean 'clients'"):
        build("client", groups_in(tmp_path))


def test_an_empty_or_first_round_gives_no_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run", done=1)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert build_all(groups_in(tmp_path)) == {}


def test_every_figure_is_plain_json_with_words(eight: list[RunGroup]) -> None:
    for name, entry in FIGURES.items():
        figure = entry.build(eight)
        if figure is None:
            assert name in ("domains", "domain-map", "sensitivity", "privacy")
        else:
            json.dumps(plain(figure), allow_nan=False)
            assert figure.name == name
            assert figure.alt

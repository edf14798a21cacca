"""The table of a comparison: what is computed from run folders, and how it is written."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import tomli_w

from fedcue.errors import RunFolderError
from fedcue.report.statistics import Difference, Measure, read_run, reference_of
from fedcue.report.tables import Cell, Table, compare, latex, markdown, short


def write_run(folder: Path, seed: int, accuracies: list[float | None], heldout: float | None = None) -> Path:
    """Write a run of two clients per round: 10 floats up, 20 down and 100 for the warm start."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps({"seed": seed, "method": {"name": "made"}}))
    records = []
    for number, accuracy in enumerate(accuracies, start=1):
        traffic = {"upload_floats": 10, "download_floats": 20, "upload_bytes": 40, "download_bytes": 80}
        tested = {} if accuracy is None else {"mean_accuracy": accuracy, "worst_accuracy": accuracy / 2}
        records.append({"round": number, "clients": [0, 1], **traffic, **tested})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    final = accuracies[-1] if accuracies else 0.0
    assert final is not None
    summary = {
        "mean_accuracy": final,
        "worst_accuracy": final / 2,
        "heldout_mean_accuracy": heldout,
        "warm_up_upload_floats": 100,
        "seconds": 2.0 + seed,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def groups(tmp_path: Path) -> dict[tuple[str, str], list[Path]]:
    pep = {0: [0.5, None, 0.9], 1: [0.5, 0.8, 0.7], 2: [0.1, 0.2, 0.8]}
    head = {0: [0.1, 0.2, 0.4], 1: [0.1, 0.2, 0.5], 2: [0.1, 0.85, 0.6]}
    return {
        ("pep", ""): [write_run(tmp_path / f"pep{s}", s, a, 0.6) for s, a in pep.items()],
        ("head_a", ""): [write_run(tmp_path / f"head{s}", s, a) for s, a in head.items()],
    }


# The numbers of one run and over seeds


def test_a_runs_cost_is_per_client_and_round_and_to_the_target_everything(tmp_path: Path) -> None:
    values = read_run(write_run(tmp_path / "run", 3, [0.5, None, 0.9]), 0.8).values
    assert [values[name] for name in ("upload_floats", "download_floats")] == [5, 10]
    assert [values[name] for name in ("upload_bytes", "download_bytes")] == [20, 40]
    assert values["rounds_to_target"] == 3
    assert values["floats_to_target"] == 100 + 3 * 30
    assert values["client_floats_to_target"] == 3 * 15
    assert values["seconds"] == 5


def test_a_target_that_is_met_exactly_counts_and_one_never_met_is_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, [0.5, 0.8, 0.7])
    assert read_run(folder, 0.8).values["rounds_to_target"] == 2
    assert read_run(folder, 0.81).values["floats_to_target"] is None


def test_a_run_of_no_rounds_has_no_cost_per_round(tmp_path: Path) -> None:
    values = read_run(write_run(tmp_path / "run", 0, []), 0.8).values
    assert values["upload_floats"] is None
    assert values["rounds_to_target"] is None


def test_a_run_of_no_rounds_is_at_the_target_before_the_first_or_never(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, [])
    summary = json.loads((folder / "summary.json").read_text()) | {"mean_accuracy": 0.85}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert read_run(folder, 0.8).values["rounds_to_target"] == 0
    assert read_run(folder, 0.8).values["floats_to_target"] == 100
    assert read_run(folder, 0.9).values["rounds_to_target"] is None


def test_when_a_run_that_was_tested_again_reached_the_target_is_not_known(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, [None, None, 0.9])
    summary = json.loads((folder / "summary.json").read_text()) | {"tested_again": {"of": "run"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    comparison = compare({("pep", "logit_prior=test"): [folder]}, 0.8)
    assert comparison.rows[0].measure("rounds_to_target").mean is None
    (line,) = comparison.table.lines
    assert Cell("n/a") == line[comparison.table.headings.index("rounds to 80 %")]


def test_mean_and_sample_deviation_over_seeds() -> None:
    measure = Measure((0.9, 0.7, 0.8))
    assert measure.mean == pytest.approx(0.8)
    assert measure.std == pytest.approx(0.1)
    assert Measure((0.9,)).std is None
    partly = Measure((4.0, None))
    assert (partly.mean, partly.complete) == (4.0, False)
    assert Measure((None,)).mean is None


def test_the_interval_is_students(groups: dict[tuple[str, str], list[Path]]) -> None:
    found = Difference((-0.5, -0.2, -0.2))
    assert found.mean == pytest.approx(-0.3)
    assert found.interval is not None
    half = 4.302652729911275 * 0.1  # t(0.975; 2) times the standard error 0.1732 / sqrt(3)
    assert found.interval == pytest.approx((-0.3 - half, -0.3 + half))
    assert Difference((0.1,)).interval is None
    plain = compare(groups, 0.8).plain()["differences"]
    assert [(d["method"], d["reference"]) for d in plain] == [("head_a", "pep")]
    assert plain[0]["mean_accuracy"]["interval_95"] == pytest.approx(list(found.interval))


def test_differences_pair_the_seeds_both_have(groups: dict[tuple[str, str], list[Path]]) -> None:
    groups["head_a", ""].pop(0)
    found = compare(groups, 0.8).plain()["differences"][0]
    assert found["mean_accuracy"]["values"] == pytest.approx([-0.2, -0.2])
    assert "heldout_mean_accuracy" not in found


def test_a_sweep_is_compared_within_its_value_and_one_method_with_its_first_value(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, [0.5])
    two = compare({(m, v): [folder] for m in ("head", "pep") for v in ("a=1", "a=2")}, 0.8).rows
    assert [reference_of(row, two).label for row in two] == ["pep a=1", "pep a=2"] * 2
    one = compare({("head", v): [folder] for v in ("a=1", "a=2")}, 0.8).rows
    assert [reference_of(row, one).label for row in one] == ["head a=1", "head a=1"]


@pytest.mark.parametrize("summary", ["", "[]", '{"mean_accuracy": "1"}', '{"mean_accuracy": NaN}'])
def test_a_damaged_run_is_named(tmp_path: Path, summary: str) -> None:
    folder = write_run(tmp_path / "run", 0, [0.5])
    if summary.startswith("{"):
        known = json.loads((folder / "summary.json").read_text())
        summary = json.dumps({**known, **json.loads(summary)})
    (folder / "summary.json").write_text(summary)
    with pytest.raises(RunFolderError, match=r"run is not a finished run .* run it again"):
        read_run(folder, 0.8)


# The table


def test_the_table_shows_means_what_is_missing_and_the_best(
    groups: dict[tuple[str, str], list[Path]],
) -> None:
    table = compare(groups, 0.8).table
    pep, head = (dict(zip(table.headings, line, strict=True)) for line in table.lines)
    assert pep["mean"] == Cell("80.0 ± 10.0", best=True)
    assert head["mean"] == Cell("50.0 ± 10.0")
    assert pep["worst"].text == "40.0 ± 5.0"
    assert pep["held-out"] == Cell("60.0 ± 0.0", best=True)
    assert head["held-out"] == Cell("n/a")
    assert pep["rounds to 80 %"] == Cell("2.7", best=True)
    assert head["rounds to 80 %"] == Cell("2.0 (1 of 3)")
    assert pep["floats up"] == Cell("5", best=True)
    assert head["floats up"].best, "equals are best together"


def test_files_hold_the_same_numbers(groups: dict[tuple[str, str], list[Path]], tmp_path: Path) -> None:
    compare(groups, 0.8).write(tmp_path / "out")
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert found["rows"][0]["mean_accuracy"]["values"] == [0.9, 0.7, 0.8]
    assert found["rows"][1]["heldout_mean_accuracy"] == {"mean": None, "std": None, "values": [None] * 3}
    rows = list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))
    assert float(rows[0]["mean_accuracy_mean"]) == pytest.approx(0.8)
    assert rows[1]["heldout_mean_accuracy_mean"] == ""
    assert r"| head\_a | 3 | 50.0 ± 10.0 |" in (tmp_path / "out" / "compare.md").read_text()
    assert r"head\_a & 3 & 50.0 $\pm$ 10.0 &" in (tmp_path / "out" / "compare.tex").read_text()


def test_nothing_finished_is_still_a_table(tmp_path: Path) -> None:
    comparison = compare({("pep", ""): [], ("head", ""): []}, 0.8)
    comparison.write(tmp_path)
    assert comparison.table.lines[0][2] == Cell("n/a")


def test_specials_are_escaped() -> None:
    table = Table(("method", "x"), ((Cell(r"a|b_c*<i>&%#{}$~^\[1]"), Cell("±", best=True)),))
    assert r"| a\|b\_c\*\<i\>&%\#\{\}\$\~^\\\[1\] | **±** |" in markdown(table)
    body = latex(table)
    assert r"a\textbar{}b\_c*\textless{}i\textgreater{}\&\%\#\{\}\$" in body
    assert r"\textasciitilde{}\textasciicircum{}\textbackslash{}{[}1{]} & \textbf{$\pm$} \\" in body


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 12.345, 999.6, 384_768, 7.7e6, 2e12)] == [
        "0", "12.3", "1 k", "385 k", "7.7 M", "2e+03 G",
    ]  # fmt: skip

"""The table of methods on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.run_folders import eight_methods, groups_in, write_run, write_small_run

from fedcue.report.method_table import method_table


def test_the_best_of_a_column_is_marked(tmp_path: Path) -> None:
    table = method_table(groups_in(eight_methods(tmp_path, seeds=(0,))))
    mean = table.table.headings.index("mean")
    best = [line[0].text for line in table.table.lines if line[mean].best]
    assert best == ["PEP-FedPT"]
    floats = table.table.headings.index("floats up")
    assert [line[0].text for line in table.table.lines if line[floats].best] == ["Head-Tuning", "P-PT"]
    assert table.table.lines[5][table.table.headings.index("held-out")].text == "–"


def test_the_paper_is_quoted_beside_ours_where_the_recipe_does(tmp_path: Path) -> None:
    for method in ("pfedpg", "pep"):
        write_run(tmp_path / method, method, recipe="cifar100-heldout")
    table = method_table(groups_in(tmp_path))
    headings = table.table.headings
    assert headings[headings.index("mean") + 1] == "mean, paper"
    assert headings[headings.index("held-out") + 1] == "held-out, paper"
    assert "worst, paper" not in headings
    quoted = [line[headings.index("held-out, paper")].text for line in table.table.lines]
    assert quoted == ["–", "93.71"]


def test_the_paper_is_quoted_by_the_settings_of_a_sweep(tmp_path: Path) -> None:
    settings = {"recipe": "cifar100-temperatures-layers", "method__layers": [4, 5, 6]}
    for temperature in (0.05, 100.0, 7.0):
        write_run(tmp_path / f"{temperature}", method__temperature=temperature, **settings)
    table = method_table(groups_in(tmp_path)).table
    quoted = {line[table.headings.index("mean, paper")].text for line in table.lines}
    assert quoted == {"88.75", "87.90", "–"}


def test_a_recipe_named_in_a_run_is_never_a_path(tmp_path: Path) -> None:
    (tmp_path / "trap.toml").write_text("[paper.pep]\nmean = 1.0\n")
    write_run(tmp_path / "run", recipe=str(tmp_path / "trap.toml"))
    table = method_table(groups_in(tmp_path / "run"))
    assert "mean, paper" not in table.table.headings


def test_what_clients_trained_for_the_last_test_alone_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path / "head", "head", level=0.5)
    summary = write_run(tmp_path / "pfedpg", "pfedpg", level=0.9) / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"unadapted_mean_accuracy": 0.7}))
    table = method_table(groups_in(tmp_path)).table
    head, ours = (dict(zip(table.headings, (c.text for c in line), strict=True)) for line in table.lines)
    assert ours["mean"].endswith(" †")
    assert (ours["mean, not adapted"], head["mean, not adapted"]) == ("70.0", "–")
    assert "†" not in head["mean"]


def test_every_domain_has_a_column(tmp_path: Path) -> None:
    write_run(tmp_path / "run", rounds=2, level=0.9, domains=("sketch", "real"), recipe="domainnet")
    table = method_table(groups_in(tmp_path)).table
    shown = dict(zip(table.headings, (cell.text for cell in table.lines[0]), strict=True))
    assert (shown["sketch"], shown["real"]) == ("90.0", "88.0")
    assert (shown["sketch, paper"], shown["real, paper"]) == ("91.79", "97.67")


def test_every_column_shows_its_own_number(tmp_path: Path) -> None:
    summary = write_small_run(tmp_path / "run", 0, [0.5, 0.9], 0.37) / "summary.json"
    percentiles = {f"percentile_{percent}_accuracy": percent / 100 for percent in (5, 10, 15)}
    unadapted = {"unadapted_mean_accuracy": 0.6, "unadapted_worst_accuracy": 0.3}
    more = {**percentiles, **unadapted, "warm_up_upload_bytes": 760}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | more))
    table = method_table(groups_in(tmp_path)).table
    (line,) = table.lines
    assert {name: cell.text for name, cell in list(zip(table.headings, line, strict=True))[1:]} == {
        "seeds": "1", "mean": "90.0 †", "worst": "45.0 †", "mean, not adapted": "60.0",
        "worst, not adapted": "30.0", "5th pct": "5.0 †", "10th pct": "10.0 †", "15th pct": "15.0 †",
        "held-out": "37.0 †", "floats up": "5", "floats down": "10", "MB total": "0.001", "time": "2 s",
    }  # fmt: skip


def test_nothing_is_best_where_all_are_alike_and_what_has_not_finished_is_not(tmp_path: Path) -> None:
    write_run(tmp_path / "pep", "pep", rounds=2, level=0.5)
    write_run(tmp_path / "head", "head", rounds=2, level=0.5)
    write_run(tmp_path / "going", "fedvpt", rounds=9, done=2, level=0.9)
    table = method_table(groups_in(tmp_path)).table
    mean = table.headings.index("mean")
    assert not any(line[mean].best for line in table.lines)


def test_time_is_in_seconds_and_from_ten_minutes_on_in_minutes(tmp_path: Path) -> None:
    for number, (method, seconds) in enumerate({"head": 599.4, "fedvpt": 600.0, "pep": 7200.0}.items()):
        summary = write_run(tmp_path / method, method, rounds=2) / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | {"seconds": seconds}))
        assert number < 3
    table = method_table(groups_in(tmp_path)).table
    assert [line[-1].text for line in table.lines] == ["599 s", "10 min", "120 min"]


def test_a_run_that_goes_on_has_taken_the_time_of_its_rounds(tmp_path: Path) -> None:
    write_run(tmp_path / "going", "head", rounds=9, done=4)
    shown = method_table(groups_in(tmp_path))
    assert shown.table.lines[0][-1].text == "6 s", "four rounds of 1.5 seconds"
    assert shown.keys[0][shown.table.headings.index("MB total")] == 4 * 2 * 16 * 1920 / 1e6


def test_the_table_is_sorted_by_percent_and_says_the_spread_over_seeds(tmp_path: Path) -> None:
    for seed, mean in enumerate((0.5, 0.7)):
        write_small_run(tmp_path / str(seed), seed, [mean])
    shown = method_table(groups_in(tmp_path))
    place = shown.table.headings.index("mean")
    assert shown.keys[0][place] == pytest.approx(60.0)
    assert shown.table.lines[0][place].text == "60.0 ± 14.1"

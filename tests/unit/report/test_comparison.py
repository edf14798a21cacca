"""The comparison of finished runs as a table and as files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support.run_folders import write_run, write_small_run

from fedcue.report.comparison import compare_runs
from fedcue.report.tables import Cell


def test_when_a_run_that_was_tested_again_reached_the_target_is_not_known(tmp_path: Path) -> None:
    folder = write_small_run(tmp_path / "run", 0, [None, None, 0.9])
    summary = json.loads((folder / "summary.json").read_text()) | {"tested_again": {"of": "run"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    comparison = compare_runs({("pep", "logit_prior=test"): [folder]}, 0.8)
    assert comparison.rows[0].over_seeds("rounds_to_target").mean is None
    (line,) = comparison.table.lines
    assert Cell("n/a") == line[comparison.table.headings.index("rounds to 80 %")]


def test_the_table_shows_means_what_is_missing_and_the_best(
    planned: dict[tuple[str, str], list[Path]],
) -> None:
    table = compare_runs(planned, 0.8).table
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


def test_files_hold_the_same_numbers(planned: dict[tuple[str, str], list[Path]], tmp_path: Path) -> None:
    compare_runs(planned, 0.8).write(tmp_path / "out")
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert found["rows"][0]["mean_accuracy"]["values"] == [0.9, 0.7, 0.8]
    assert found["rows"][1]["heldout_mean_accuracy"] == {"mean": None, "std": None, "values": [None] * 3}
    rows = list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))
    assert float(rows[0]["mean_accuracy_mean"]) == pytest.approx(0.8)
    assert rows[1]["heldout_mean_accuracy_mean"] == ""
    assert r"| head\_a | 3 | 50.0 ± 10.0 |" in (tmp_path / "out" / "compare.md").read_text()
    assert r"head\_a & 3 & 50.0 $\pm$ 10.0 &" in (tmp_path / "out" / "compare.tex").read_text()


def test_nothing_finished_is_still_a_table(tmp_path: Path) -> None:
    comparison = compare_runs({("pep", ""): [], ("head", ""): []}, 0.8)
    comparison.write(tmp_path)
    assert comparison.table.lines[0][2] == Cell("n/a")


def adapted(folder: Path) -> Path:
    """Write a run whose clients trained once more for the last test: 90 % with it, 60 % without."""
    write_small_run(folder, 0, [0.5, 0.9])
    more = {
        "unadapted_mean_accuracy": 0.6,
        "unadapted_worst_accuracy": 0.3,
        "adaptation_images": 1200,
    }
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | more)
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | more))
    return folder


def test_a_last_test_that_clients_trained_for_is_marked_and_stands_beside_the_one_without(
    tmp_path: Path,
) -> None:
    other = write_small_run(tmp_path / "head", 0, [0.5, 0.7])
    comparison = compare_runs({("pfedpg", ""): [adapted(tmp_path / "pfedpg")], ("head", ""): [other]}, 0.65)
    table = comparison.table
    ours, head = (dict(zip(table.headings, line, strict=True)) for line in table.lines)
    assert (ours["mean"].text, ours["mean, not adapted"].text) == ("90.0 †", "60.0")
    assert (ours["worst"].text, ours["worst, not adapted"].text) == ("45.0 †", "30.0")
    assert ours["images adapted"].text == "1.2 k"
    assert ours["rounds to 65 %"].text == "not reached"
    assert (head["mean"].text, head["mean, not adapted"].text) == ("70.0", "n/a")
    assert "† For the last test alone" in comparison.note
    comparison.write(tmp_path / "out")
    assert "90.0 $\\dagger$" in (tmp_path / "out" / "compare.tex").read_text()
    alone = compare_runs({("head", ""): [other]}, 0.65)
    assert not [heading for heading in alone.table.headings if "adapted" in heading]
    assert "†" not in alone.note


Folders = dict[tuple[str, str], list[Path]]


def columns(folders: Folders, percentiles: bool = False) -> list[dict[str, str]]:
    """Return each line of the table by its headings."""
    table = compare_runs(folders, 0.8, percentiles).table
    return [dict(zip(table.headings, (cell.text for cell in line), strict=True)) for line in table.lines]


def test_percentiles_are_shown_when_asked_for(tmp_path: Path) -> None:
    folders = {("pep", ""): [write_run(tmp_path / "run", rounds=2, level=0.9)]}
    assert "5th pct" not in columns(folders)[0]
    (shown,) = columns(folders, percentiles=True)
    assert [shown[f"{p}th pct"] for p in (5, 10, 15)] == ["75.0", "78.0", "80.0"]


def test_percentiles_are_shown_where_the_recipe_quotes_the_papers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", rounds=2, level=0.9, recipe="inaturalist")
    (shown,) = columns({("pep", ""): [folder]})
    assert [shown[f"{p}th pct, paper"] for p in (5, 10, 15)] == ["20.00", "33.00", "41.10"]


def test_every_domain_has_a_column_beside_the_papers(tmp_path: Path) -> None:
    domains = ("sketch", "clipart", "other")
    folder = write_run(tmp_path / "run", rounds=2, level=0.9, domains=domains, recipe="domainnet")
    (shown,) = columns({("pep", ""): [folder]})
    assert [shown[name] for name in domains] == ["90.0", "88.0", "86.0"]
    assert (shown["sketch, paper"], shown["clipart, paper"]) == ("91.79", "95.46")
    assert "other, paper" not in shown


def test_the_cost_to_the_target_stands_beside_the_papers_in_its_own_count(tmp_path: Path) -> None:
    settings = {"recipe": "cifar100-communication", "level": 0.9}
    folders = {(m, ""): [write_run(tmp_path / m, m, **settings)] for m in ("fedpr", "pep")}
    summary = json.loads((tmp_path / "pep" / "summary.json").read_text()) | {"warm_up_upload_floats": 9e6}
    (tmp_path / "pep" / "summary.json").write_text(json.dumps(summary))
    fedpr, pep = columns(folders)
    assert pep["rounds to 80 %"] == "8.0"
    assert pep["seconds to 80 %"] == "12"
    assert pep["floats down to 80 %"] == "78.3 k", "8 rounds of 9,792"
    assert pep["floats to 80 %"] == "9.63 M", "8 rounds of 4 clients, both ways, and the warm start"
    assert pep["warm start"] == "9 M"
    costs = ("rounds", "seconds", "floats down")
    assert [pep[f"{cost} to 80 %, paper"] for cost in costs] == ["12", "1.15 k", "4.6 M"]
    assert [fedpr[f"{cost} to 80 %, paper"] for cost in costs] == ["> 100", "> 5.36 k", "> 8.4 M"]


def test_without_a_warm_start_there_is_no_column_of_it(tmp_path: Path) -> None:
    assert "warm start" not in columns({("head", ""): [write_run(tmp_path / "run", "head", rounds=2)]})[0]


@pytest.mark.parametrize(
    ("every", "told"), [(1, ""), (5, "Tests were 5 rounds apart"), (0, "20 rounds apart")]
)
def test_how_exactly_rounds_to_a_target_are_known_is_said(tmp_path: Path, every: int, told: str) -> None:
    write_run(tmp_path / "a", "pep", evaluation__every=every)
    note = compare_runs({("pep", ""): [tmp_path / "a"]}, 0.8).note
    assert ("rounds apart" in note) == bool(told)
    assert told in note


def test_the_best_cost_is_the_lowest_and_the_best_accuracy_the_highest(tmp_path: Path) -> None:
    folders = {(m, ""): [write_run(tmp_path / m, m, rounds=2)] for m in ("head", "pep")}
    table = compare_runs(folders, 0.1).table
    best = {
        heading: [line[0].text for line in table.lines if line[place].best]
        for place, heading in enumerate(table.headings)
    }
    for heading in ("floats up", "floats down", "bytes up", "bytes down"):
        assert best[heading] == ["head"]
    for heading in ("mean", "worst", "held-out"):
        assert best[heading] == ["pep"]


def test_differences_are_ours_less_the_references_in_points_with_their_interval(
    planned: dict[tuple[str, str], list[Path]],
) -> None:
    """Means differ by -0.5, -0.2 and -0.2: -30 points, and 4.3027 standard errors of 10 either way."""
    table = compare_runs(planned, 0.8).differences
    assert table.headings == ("difference [95 % interval]", "mean", "worst", "held-out")
    ((label, mean, worst, heldout),) = [[cell.text for cell in line] for line in table.lines]
    assert (label, mean) == ("head_a - pep", "-30.0 [-73.0, +13.0]")
    assert worst == "-15.0 [-36.5, +6.5]"
    assert heldout == "n/a"
    one = {key: folders[:1] for key, folders in planned.items()}
    assert compare_runs(one, 0.8).differences.lines[0][1].text == "-50.0"


def test_the_csv_has_means_then_deviations_and_empty_cells_where_there_are_none(
    planned: dict[tuple[str, str], list[Path]], tmp_path: Path
) -> None:
    planned["head_a", ""] = planned["head_a", ""][:1]
    compare_runs(planned, 0.8).write(tmp_path / "out")
    pep, head = csv.DictReader((tmp_path / "out" / "compare.csv").open())
    assert (pep["seeds"], head["seeds"]) == ("3", "1")
    assert float(pep["mean_accuracy_mean"]) == pytest.approx(0.8)
    assert float(pep["mean_accuracy_std"]) == pytest.approx(0.1)
    assert (float(head["mean_accuracy_mean"]), head["mean_accuracy_std"]) == (0.4, "")
    row = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"][0]
    assert row["mean_accuracy"]["mean"] == pytest.approx(0.8)
    assert row["mean_accuracy"]["std"] == pytest.approx(0.1)


def ended(folder: Path, seed: int, **more: object) -> Path:
    """Write a run whose summary says more."""
    summary = write_small_run(folder, seed, [0.5, 0.7]) / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | more))
    return folder


def test_clients_that_were_not_tested_and_early_ends_are_counted_by_line(tmp_path: Path) -> None:
    two = [{"client": n, "reason": "cold"} for n in (1, 2)]
    folders = {
        ("pep", ""): [ended(tmp_path / "a", 0, untested=two), ended(tmp_path / "b", 1, untested=two[:1])],
        ("head", ""): [ended(tmp_path / "c", 0), ended(tmp_path / "d", 1, ended_early="the budget is spent")],
    }
    comparison = compare_runs(folders, 0.6)
    assert "Clients that could not be tested and are left out: 3 of pep." in comparison.note
    assert "Ended before their last round (summary.json says why): head." in comparison.note
    pep, head = comparison.plain()["rows"]
    assert (pep["untested"], pep["ended_early"]) == ([2, 1], [False, False])
    assert (head["untested"], head["ended_early"]) == ([0, 0], [False, True])
    alone = compare_runs({("head", ""): [tmp_path / "c"]}, 0.6)
    assert "Clients that could not" not in alone.note
    assert "Ended before" not in alone.note


def test_nothing_is_best_of_one_line_and_what_some_seeds_lack_is_not_best(tmp_path: Path) -> None:
    lone = compare_runs({("pep", ""): [write_small_run(tmp_path / "one", 0, [0.9])]}, 0.8)
    assert not any(cell.best for cell in lone.table.lines[0])
    folders = {
        ("pep", ""): [
            write_small_run(tmp_path / f"a{s}", s, [0.5], heldout) for s, heldout in enumerate((0.9, None))
        ],
        ("head", ""): [write_small_run(tmp_path / f"b{s}", s, [0.5], 0.6) for s in range(2)],
    }
    table = compare_runs(folders, 0.8).table
    assert [line[table.headings.index("held-out")].best for line in table.lines] == [False, True]

"""Tables and figures of docs/results: made of the CSV files, and the plan that fills these."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import results
import results_figures
import results_paper
from results_shown import DIFFERENCES, PATHOLOGICAL, SPLITS

from fedcue.grid.options import BETWEEN_SETTINGS
from fedcue.grid.table import Entry, RunTable

PLAN = Path(__file__).parents[2] / "docs" / "results" / "plan.sh"


def keep(folder: Path, name: str, mean: float = 0.5, seed: int = 0, **more: Any) -> None:
    """Add a run, and points of its curve at rounds 2 and 3, to the table of the first split."""
    run = results.Run.named(name)
    settings = dict(part.split("=", 1) for part in BETWEEN_SETTINGS.split(run.variant) if part)
    row = {
        "run": f"{name}-{seed}", "recipe": PATHOLOGICAL, "method": run.method, "variant": run.variant,
        "seed": str(seed), "mean": str(mean), "worst": str(mean / 2), "heldout_mean": str(mean - 0.1),
        "upload_bytes": "10", "download_bytes": "10", "warm_up_bytes": "5",
        **settings, **{column: str(value) for column, value in more.items()},
    }  # fmt: skip
    curve = tuple({"round": str(n), "mean": str(mean), "bytes": str(10 * n)} for n in (2, 3))
    RunTable(folder / f"{PATHOLOGICAL}.csv").add([Entry(row, () if run.variant == results.EVEN else curve)])


def test_tables_average_seeds_and_leave_out_what_was_not_run(tmp_path: Path) -> None:
    keep(tmp_path, "pep", 0.5)
    keep(tmp_path, "pep", 0.6, seed=1)
    keep(tmp_path, "pep: method.layers=[0, 1, 2]", 0.3)
    keep(tmp_path, "pfedpg", 0.7, heldout_mean="")
    tables = results.pages(tmp_path)
    assert "| PEP-FedPT | 55.0 ± 7.1 / 27.5 / 45.0 |" in tables["overview"]
    assert "| pFedPG | 70.0 / 35.0 / n/a |" in tables["overview"]
    assert "layers" not in tables["overview"]
    assert "| layers 1-3 instead of 5-7 | – | 30.0 |" in tables["ablations"]
    assert "layers 8-10" not in tables["ablations"]
    assert "| PEP-FedPT | 50.0 | 50.0 |" in tables["rounds"]


def test_methods_stand_by_their_kind(tmp_path: Path) -> None:
    for method in ("cue", "pep", "pfedpg", "ncm", "head"):
        keep(tmp_path, method)
    first = [line.split("|")[1].strip() for line in results.pages(tmp_path)["overview"].splitlines()[2:]]
    assert first == [
        "*no training*", "ncm", "*global*", "Head-Tuning", "PEP-FedPT", "*personalised*", "pFedPG", "*ours*", "cue",
    ]  # fmt: skip


def test_the_summary_has_ours_the_control_and_the_paper(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5, log_prior_mean=0.8, log_prior_worst=0.6, log_prior_heldout_mean=0.7)
    tables = results.pages(tmp_path)
    assert "| FedVPT | – | 50.0 → 80.0 (83.6) |" in tables["summary"]
    assert "| FedVPT + log prior | 80.0 / 60.0 / 70.0 |" in tables["overview"]


def test_cue_is_shown_without_and_with_the_prior_it_has_built_in(tmp_path: Path) -> None:
    keep(tmp_path, "cue", 0.9)
    keep(tmp_path, "cue: evaluation.priors=uniform", 0.6)
    tables = results.pages(tmp_path)
    assert "| cue | – | 60.0 → 90.0 |" in tables["summary"]
    assert "| cue, without the prior | 60.0 / 30.0 / 50.0 |" in tables["overview"]


def test_where_rows_have_other_seeds_only_the_first_is_compared(tmp_path: Path) -> None:
    for seed, mean in enumerate((0.5, 0.7)):
        keep(tmp_path, "pep", mean, seed)
    keep(tmp_path, "pep: evaluation.priors=em", 0.4)
    keep(tmp_path, "pep: method.temperature=100", 0.4)
    tables = results.pages(tmp_path)
    assert "| PEP-FedPT, from labels | 50.0 / 25.0 / 40.0 |" in tables["priors"]
    assert "| PEP-FedPT | – | 50.0 |" in tables["ablations"]


def test_rows_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    keep(tmp_path, "pep", 0.5)
    keep(tmp_path, "pep", 0.5, seed=1, rounds=3)
    with pytest.raises(SystemExit, match="rows called 'pep' differ in more than the seed"):
        results.pages(tmp_path)


def test_differences_pair_clients_and_seeds(tmp_path: Path) -> None:
    keep(tmp_path, "pep", seed=0, clients="0:5/10 1:6/10 2:9/10h 3:/10")
    keep(tmp_path, "pep", seed=2, clients="0:9/10 1:8/10 2:1/10h")
    keep(tmp_path, "fedvpt", seed=0, clients="1:5/10 0:5/10 2:1/10h 3:/10")
    keep(tmp_path, "fedvpt", seed=1, clients="0:0/10 1:0/10 2:0/10h")
    keep(tmp_path, "fedvpt", seed=2, clients="0:7/10 1:7/10 2:1/10h")
    table = results.differences(results.Results(tmp_path), DIFFERENCES)
    assert len(table.splitlines()) == 3
    half = 3.1824 * 0.0816497 / 2 * 100  # Student's t of four values 0, 10, 20, 10
    assert f"PEP-FedPT − FedVPT | +10.0 | {10 - half:+.1f} to {10 + half:+.1f} | +5.0, +15.0 |" in table


def test_figures_are_drawn_from_rows_and_curves(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5, log_prior_mean=0.8)
    keep(tmp_path, "ncm", 0.4, upload_bytes=0, download_bytes=0)
    results_figures.figures(results.Results(tmp_path), PATHOLOGICAL)
    for figure in results_figures.FIGURES:
        assert (tmp_path / f"{PATHOLOGICAL}-{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_tables_show_all_methods() -> None:
    tables = results_paper.pages()
    assert (
        "| PEP-FedPT | 95.46 | 71.68 | 93.00 | 86.89 | 97.67 | 91.79 | 89.15 / 59.79 |"
        in tables["paper-domains"]
    )
    assert "| pFedPG | 84.14 / 73.62 | 73.90 / 60.00 |" in tables["paper-concentrations"]
    assert "| FedPR | not reached in 100 | > 8.4 M | > 5,360 | 84,480 |" in tables["paper-cost"]
    assert all("– / –" not in text for text in tables.values())


def commands(tmp_path: Path, *options: str) -> list[list[str]]:
    """Return the words of each command of the plan, as the shell gives them to ``fedcue``."""
    fake = tmp_path / "fedcue"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\037" "$word"; done\nprintf "\\036"\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DATA": "/data", "BACKBONE": "/backbones/vit"}
    done = subprocess.run(
        ["/bin/sh", str(PLAN), *options],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=60,
    )
    return [part.split("\037")[:-1] for part in done.stdout.split("\036")[:-1]]


def test_the_plan_is_made_of_compare_commands_that_can_be_run(tmp_path: Path) -> None:
    found = commands(tmp_path, "--dry-run")
    assert len(found) > 20
    for words in found:
        assert words[0] == "compare"
        assert words[-1] == "--dry-run"
        assert Path(words[words.index("--table") + 1]).parent.name == "miniature"
        given = [word for word in words if word.startswith("data.root=")]
        assert given == [f"data.root=/data/{Path(given[0]).name}"]


def test_every_split_that_is_shown_is_planned(tmp_path: Path) -> None:
    tables = {Path(words[words.index("--table") + 1]).stem for words in commands(tmp_path)}
    assert set(SPLITS) <= tables


def test_the_commands_of_the_plan_are_valid(tmp_path: Path) -> None:
    from fedcue.grid.compare import asked_for

    for words in commands(tmp_path):
        if any("cue_variants" in word for word in words):
            continue  # methods beside the package, in benchmarks/
        arguments = [word for word in words[1 : words.index("--table")] if not word.startswith("--")]
        options = {name: words[words.index(name) + 1] for name in ("--methods", "--seeds")}
        variants = [words[n + 1] for n, word in enumerate(words) if word == "--variant"]
        settings = [word for word in arguments if word not in (*options.values(), *variants)]
        for one in asked_for(settings, options["--methods"], options["--seeds"], variants):
            assert one.grid.cells(tmp_path), shlex.join(words)


def test_no_number_of_the_pages_comes_from_elsewhere() -> None:
    page = (PLAN.parent / "README.md").read_text()
    for name in re.findall(r"<!-- ([\w-]+):start -->", page):
        assert name in results.pages(PLAN.parent / "cpu")

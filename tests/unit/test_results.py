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
import results_mixing
import results_paper
from results_shown import CLAIMS, MAIN, MIXING, ONE_RATE, PEP_EVEN, SPLITS, VALIDATION

from fedcue.grid.options import BETWEEN_SETTINGS
from fedcue.grid.table import Entry, RunTable

PLAN = Path(__file__).parents[2] / "docs" / "results" / "plan.sh"


def keep(folder: Path, name: str, mean: float = 0.5, seed: int = 0, table: str = MAIN, **more: Any) -> None:
    """Add a run, and points of its curve at rounds 10 and 20, to a table."""
    run = results.Run.named(name)
    settings = dict(part.split("=", 1) for part in BETWEEN_SETTINGS.split(run.variant) if part)
    row = {
        "run": f"{name}-{seed}", "recipe": MAIN, "method": run.method, "variant": run.variant,
        "seed": str(seed), "mean": str(mean), "worst": str(mean / 2), "heldout_mean": str(mean - 0.1),
        "upload_floats": "100", "download_floats": "100", "warm_up_floats": "8", "visits": "4",
        "clients": "0:5/10 1:5/10 2:9/10h",
        **settings, **{column.replace("__", "."): str(value) for column, value in more.items()},
    }  # fmt: skip
    curve = tuple({"round": str(n), "mean": str(mean - 0.2 + n / 100)} for n in (10, 20))
    RunTable(folder / f"{table}.csv").add([Entry(row, curve)])


def test_the_overview_averages_seeds_and_shows_control_and_paper(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5, log_prior_mean=0.8, log_prior_worst=0.6, log_prior_heldout_mean=0.7)
    keep(tmp_path, "pep", 0.5)
    keep(tmp_path, "pep", 0.6, seed=1)
    keep(tmp_path, "pep: method.layers=[0, 1, 2]", 0.3)
    keep(tmp_path, "pfedpg", 0.7, heldout_mean="")
    table = results.pages(tmp_path)["overview"]
    assert "| FedVPT | 50.0 | 25.0 | 40.0 | 80.0 | 60.0 | 70.0 | 83.6 | 82.4 |" in table
    assert "| PEP-FedPT | 55.0 ± 7.1 | 27.5 ± 3.5 | 45.0 ± 7.1 | – | – | – | 95.5 | 93.7 |" in table
    assert "| pFedPG | 70.0 | 35.0 | – | – | – | – | 93.0 | – |" in table
    assert "layers" not in table


def test_methods_stand_by_their_kind(tmp_path: Path) -> None:
    for method in ("cue", "pep", "pfedpg", "ncm", "head"):
        keep(tmp_path, method)
    first = [line.split("|")[1].strip() for line in results.pages(tmp_path)["overview"].splitlines()[2:]]
    assert first == [
        "*no training*", "ncm", "*global*", "Head-Tuning", "PEP-FedPT", "*personalised*", "pFedPG", "*ours*", "cue",
    ]  # fmt: skip


def test_cue_stands_with_the_prior_that_it_has_built_in_and_without(tmp_path: Path) -> None:
    keep(tmp_path, "cue", 0.9)
    keep(tmp_path, "cue: evaluation.priors=uniform", 0.6)
    table = results.pages(tmp_path)["overview"]
    assert "| cue | – | – | – | 90.0 | 45.0 | 80.0 | – | – |" in table
    assert "| cue, without the prior | 60.0 | 30.0 | 50.0 | – | – | – | – | – |" in table


def test_the_headline_is_a_few_rows_with_control_and_paper(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5, log_prior_mean=0.8, log_prior_heldout_mean=0.7)
    keep(tmp_path, PEP_EVEN, 0.6)
    keep(tmp_path, "cue", 0.9)
    keep(tmp_path, "sgpt", 0.9)
    table = results.pages(tmp_path)["headline"]
    assert "| FedVPT | 50.0 | 40.0 | 80.0 | 70.0 | 83.6 | 82.4 |" in table
    assert "| PEP-FedPT, no priors in the mixing | 60.0 | 50.0 | – | – | 84.0 | – |" in table
    assert "| `cue` (ours) | – | – | 90.0 | 80.0 | – | – |" in table
    assert len(table.splitlines()) == 5


def test_rows_that_differ_in_more_than_the_seed_are_not_averaged(tmp_path: Path) -> None:
    keep(tmp_path, "pep", 0.5)
    keep(tmp_path, "pep", 0.5, seed=1, rounds=3)
    with pytest.raises(SystemExit, match="rows called 'pep' differ in more than seed and precision"):
        results.pages(tmp_path)


def test_seeds_of_two_precisions_are_averaged_and_one_seed_stands_once(tmp_path: Path) -> None:
    keep(tmp_path, "pep", 0.5, precision="bfloat16")
    keep(tmp_path, "pep", 0.6, seed=1, precision="float32")
    assert "| PEP-FedPT | 55.0 ± 7.1 |" in results.pages(tmp_path)["overview"]
    keep(tmp_path, "pep", 0.6, precision="float32")
    with pytest.raises(SystemExit, match="have a seed twice, in two precisions"):
        results.pages(tmp_path)


def test_differences_pair_clients_and_seeds(tmp_path: Path) -> None:
    keep(tmp_path, "pep", seed=0, clients="0:5/10 1:6/10 2:9/10h 3:/10")
    keep(tmp_path, "pep", seed=2, clients="0:9/10 1:8/10 2:1/10h")
    keep(tmp_path, "fedvpt", seed=0, clients="1:5/10 0:5/10 2:1/10h 3:/10")
    keep(tmp_path, "fedvpt", seed=1, clients="0:0/10 1:0/10 2:0/10h")
    keep(tmp_path, "fedvpt", seed=2, clients="0:7/10 1:7/10 2:1/10h")
    table = results.pages(tmp_path)["differences"]
    assert len(table.splitlines()) == 3
    half = 3.1824 * 0.0816497 / 2 * 100  # Student's t of four values 0, 10, 20, 10
    assert f"PEP-FedPT − FedVPT | +10.0 | {10 - half:+.1f} to {10 + half:+.1f} | +5.0, +15.0 |" in table


def test_the_papers_one_rate_is_chosen_on_validation_images_and_reported_on_test_images(
    tmp_path: Path,
) -> None:
    keep(tmp_path, "pep", 0.6, table=VALIDATION)
    keep(tmp_path, f"pep: {ONE_RATE}", 0.7, table=VALIDATION)
    keep(tmp_path, f"pep: {ONE_RATE}", 0.8, log_prior_mean=0.9, log_prior_heldout_mean=0.85)
    table = results.pages(tmp_path)["one-rate"]
    assert "| PEP-FedPT | 60.0 | 70.0 | 80.0 | 70.0 | 90.0 | 85.0 |" in table
    assert "| FedVPT | – | – | – | – | – | – |" in table


@pytest.mark.parametrize(
    ("pep", "uniform", "verdict"),
    [("9", "1", "seen"), ("1", "9", "opposite"), ("5", "5", "not seen")],
)
def test_a_claim_is_seen_where_the_interval_has_the_papers_sign(
    tmp_path: Path, pep: str, uniform: str, verdict: str
) -> None:
    keep(tmp_path, "pep", clients=f"0:{pep}/10 1:{pep}/10 2:{pep}1/100")
    keep(tmp_path, PEP_EVEN, clients=f"0:{uniform}/10 1:{uniform}/10 2:{uniform}2/100")
    lines = results.pages(tmp_path)["claims"].splitlines()
    line = next(line for line in lines if "priors in the mixing" in line)
    assert line.startswith("| priors in the mixing help | +11.4 |")  # 95.46 and 84.01 in the paper
    assert line.endswith(f"| 1 | {verdict} |")
    assert sum("not run" in line for line in lines) == len(CLAIMS) - 1


def test_rounds_and_floats_count_to_fedvpts_last_accuracy(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5)
    keep(tmp_path, "pep", 0.7)
    table = results.pages(tmp_path)["target"]
    assert table.startswith("To 50.0 %:")
    assert "| FedVPT | 20 | 0 k |" in table
    assert "| PEP-FedPT | 10 |" in table
    assert "| PEP-FedPT | 60.0 | 70.0 |" in results.pages(tmp_path)["rounds"]


def test_mixing_compares_both_methods_on_every_task(tmp_path: Path) -> None:
    for classes, right in ((20, 9), (100, 4)):
        task = {
            "data__first_classes": classes,
            "partition__classes_per_client": classes // 10,
            "data__train_per_class": 60,
        }
        keep(tmp_path, "pep", 0.8, table=MIXING, clients=f"0:{right}/10 1:{right}/10", **task)
        keep(tmp_path, "fedvpt", 0.5, table=MIXING, clients="0:5/10 1:3/10", log_prior_mean=0.9, **task)
    table = results_mixing.table(results.Results(tmp_path))
    assert "| 20 | 2 | 60 | 0.10 | 50.0 | 80.0 | +50.0 |" in table
    assert "| 100 | 10 | 60 | 0.52 | 50.0 | 80.0 | +0.0 |" in table
    figure = results_figures.when_mixing_pays(results_mixing.mixing(results.Results(tmp_path)))
    assert figure.panels[0].series[0].x == [20, 100]


def test_the_figures_title_is_its_message(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt", 0.5)
    keep(tmp_path, "pep", 0.7)
    found = results.Results(tmp_path)
    assert results_figures.message(found, MAIN) == (
        "PEP-FedPT passes FedVPT's last accuracy by round 10 of 20\nand ends 20 points above it"
    )
    names = [series.name for series in results_figures.by_round(found).panels[0].series]
    assert names == ["PEP-FedPT: 70.0, paper 95.5", "FedVPT: 50.0, paper 83.6"]
    results_figures.save(results_figures.by_round(found), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    keep(tmp_path, PEP_EVEN, 0.495)
    level = results_figures.message(results.Results(tmp_path), MAIN)
    assert level.endswith("and ends 20 points above it (level without priors in the mixing)")
    keep(tmp_path, PEP_EVEN, 0.48)
    assert results_figures.message(results.Results(tmp_path), MAIN).endswith(
        "(-2 without priors in the mixing)"
    )
    keep(tmp_path, "fedvpt", 0.9)
    assert "does not pass" in results_figures.message(results.Results(tmp_path), MAIN)


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
    assert len(found) > 15
    for words in found:
        assert words[0] == "compare"
        assert words[-1] == "--dry-run"
        assert Path(words[words.index("--table") + 1]).parent.name == "miniature"
        given = [word for word in words if word.startswith("data.root=")]
        assert given == [f"data.root=/data/{Path(given[0]).name}"]


def test_everything_that_is_shown_is_planned(tmp_path: Path) -> None:
    planned = commands(tmp_path)
    tables = {Path(words[words.index("--table") + 1]).stem for words in planned}
    assert {*SPLITS, MIXING, VALIDATION} <= tables
    methods = {name for words in planned for name in words[words.index("--methods") + 1].split(",")}
    variants = {words[n + 1] for words in planned for n, word in enumerate(words) if word == "--variant"}
    names = methods | {variant.replace(",", ", ") for variant in variants}
    assert {name for claim in CLAIMS for name in (claim.one, claim.other)} <= names


def test_the_commands_of_the_plan_are_valid(tmp_path: Path) -> None:
    from fedcue.grid.compare import asked_for

    for words in commands(tmp_path):
        arguments = [word for word in words[1 : words.index("--table")] if not word.startswith("--")]
        options = {name: words[words.index(name) + 1] for name in ("--methods", "--seeds")}
        variants = [words[n + 1] for n, word in enumerate(words) if word == "--variant"]
        settings = [word for word in arguments if word not in (*options.values(), *variants)]
        for one in asked_for(settings, options["--methods"], options["--seeds"], variants):
            assert one.grid.cells(tmp_path), shlex.join(words)


def test_no_number_of_the_pages_comes_from_elsewhere() -> None:
    page = (PLAN.parent / "README.md").read_text()
    for name in re.findall(r"<!-- ([\w-]+):start -->", page):
        assert name in {*results.pages(PLAN.parent / "miniature"), MIXING}

"""The scripts behind docs/results: what is planned, and tables of what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import results
from run_results import planned

from fedcue.config.layers import load


def keep(target: Path, name: str, mean: float, worst: float, heldout: float | None) -> None:
    folder = target / results.PATHOLOGICAL / name
    folder.mkdir(parents=True)
    values = {"mean_accuracy": mean, "worst_accuracy": worst, "heldout_mean_accuracy": heldout}
    (folder / "summary.json").write_text(json.dumps(values))
    (folder / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"round": number} | ({"mean_accuracy": mean} if number > 1 else {})) + "\n"
            for number in (1, 2, 3)
        )
    )


def test_tables_average_seeds_and_leave_out_what_was_not_run(tmp_path: Path) -> None:
    keep(tmp_path, "pep-seed0", 0.5, 0.25, 0.4)
    keep(tmp_path, "pep-seed1", 0.6, 0.35, 0.5)
    keep(tmp_path, "pep-layers=[0,1,2]-seed0", 0.3, 0.1, 0.2)
    keep(tmp_path, "pfedpg-seed0", 0.7, 0.5, None)
    tables = results.pages(tmp_path)
    assert "| PEP-FedPT | 55.0 ± 7.1 / 30.0 / 45.0 |" in tables["overview"]
    assert "| pFedPG | 70.0 / 50.0 / n/a |" in tables["overview"]
    assert "layers" not in tables["overview"]
    assert "| layers 1-3 instead of 5-7 | – | 30.0 |" in tables["ablations"]
    assert "layers 8-10" not in tables["ablations"]
    assert "| PEP-FedPT | 50.0 | 50.0 |" in tables["rounds"]


def test_the_summary_has_ours_the_control_and_the_paper(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt-seed0", 0.5, 0.25, 0.4)
    keep(tmp_path, "fedvpt-logit_prior=test-seed0", 0.8, 0.6, 0.7)
    assert "| FedVPT | – | 50.0 → 80.0 (83.6) |" in results.pages(tmp_path)["summary"]


def test_cue_is_shown_without_and_with_the_prior_it_has_built_in(tmp_path: Path) -> None:
    keep(tmp_path, "cue-seed0", 0.9, 0.7, 0.8)
    keep(tmp_path, "cue-priors=uniform-seed0", 0.6, 0.4, 0.5)
    tables = results.pages(tmp_path)
    assert "| cue | – | 60.0 → 90.0 |" in tables["summary"]
    assert "| cue, without the prior | 60.0 / 40.0 / 50.0 |" in tables["overview"]


def test_where_rows_have_other_seeds_only_the_first_is_compared(tmp_path: Path) -> None:
    for seed, mean in enumerate((0.5, 0.7)):
        keep(tmp_path, f"pep-seed{seed}", mean, 0.25, 0.4)
    keep(tmp_path, "pep-priors=em-seed0", 0.4, 0.2, 0.3)
    keep(tmp_path, "pep-temperature=100-seed0", 0.4, 0.2, 0.3)
    tables = results.pages(tmp_path)
    assert "| PEP-FedPT, from labels | 50.0 / 25.0 / 40.0 |" in tables["priors"]
    assert "| PEP-FedPT | – | 50.0 |" in tables["ablations"]


def test_differences_pair_clients_and_seeds(tmp_path: Path) -> None:
    found = {
        "pep-seed0": {"0": 0.5, "1": 0.6, "2": 0.9},
        "pep-seed2": {"0": 0.9, "1": 0.8, "2": 0.1},
        "fedvpt-seed0": {"1": 0.5, "0": 0.5, "2": 0.1},
        "fedvpt-seed1": {"0": 0.0, "1": 0.0, "2": 0.0},
        "fedvpt-seed2": {"0": 0.7, "1": 0.7, "2": 0.1},
    }
    for name, accuracies in found.items():
        folder = tmp_path / results.PATHOLOGICAL / name
        folder.mkdir(parents=True)
        rows = [f"{i},{'true' if i == '2' else 'false'},{value}\n" for i, value in accuracies.items()]
        (folder / "clients.csv").write_text("id,heldout,test_accuracy\n" + "".join(rows))
    table = results.differences(tmp_path, results.DIFFERENCES)
    assert len(table.splitlines()) == 3
    half = 3.1824 * 0.0816497 / 2 * 100  # Student's t of four values 0, 10, 20, 10
    assert f"PEP-FedPT − FedVPT | +10.0 | {10 - half:+.1f} to {10 + half:+.1f} | +5.0, +15.0 |" in table


def test_the_plan_names_each_run_once_and_each_can_be_loaded() -> None:
    runs = list(planned())
    assert len({run.place() for run in runs}) == len(runs)
    for run in runs:
        settings = ["scale=cpu", *run.common, f"method={run.method}", *run.settings]
        load(run.recipe, settings)
        for more in run.again:
            load(run.recipe, [*settings, *more])

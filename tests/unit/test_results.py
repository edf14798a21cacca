"""The scripts behind docs/results: what is planned, and tables of what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import results
from run_results import planned

from fedcue.config import load


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
    assert "| layers 1-3 instead of 5-7 | – | 30.0 / 10.0 / 20.0 |" in tables["ablations"]
    assert "layers 8-10" not in tables["ablations"]
    assert "| PEP-FedPT | 50.0 | 50.0 |" in tables["rounds"]


def test_the_summary_has_ours_the_control_and_the_paper(tmp_path: Path) -> None:
    keep(tmp_path, "fedvpt-seed0", 0.5, 0.25, 0.4)
    keep(tmp_path, "fedvpt-logit_prior=test-seed0", 0.8, 0.6, 0.7)
    assert "| FedVPT | 50.0 → 80.0 (83.6) |" in results.pages(tmp_path)["summary"]


def test_the_plan_names_each_run_once_and_each_can_be_loaded() -> None:
    runs = list(planned())
    assert len({run.place() for run in runs}) == len(runs)
    for run in runs:
        settings = ["scale=cpu", *run.common, f"method={run.method}", *run.settings]
        load(run.recipe, settings)
        for more in run.again:
            load(run.recipe, [*settings, *more])

"""``fedcue compare`` and ``fedcue tune`` from the command line to the files, on a tiny random ViT."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support import SMALL

from fedcue.cli.main import main
from fedcue.config.layers import load
from fedcue.model.vit import Architecture, VisionTransformer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedcue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Return a function that runs a command in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedcue", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings that make the default recipe tiny, backbone included."""
    folder = tmp_path_factory.mktemp("backbone")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = VisionTransformer(
            Architecture(width=32, depth=8, heads=2, patch=4, image_size=8, hidden=64)
        )
    save_file(backbone.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_args": {"num_heads": 2}}))
    return [*SMALL, "rounds=1", "snapshots=[]", "workers=0", f"backbone={folder}"]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.name == "model.safetensors"
    }


def test_compare_runs_a_grid_once(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    command = [
        "compare",
        *small,
        "--methods",
        "pep,fedvpt",
        "--seeds",
        "0,1",
        "--out",
        "out",
        "--target",
        "0.01",
    ]
    code, text, errors = fedcue(*command, "--jobs", "2")
    assert code == 0, errors
    assert "4 runs, 0 of them already finished" in text
    assert "fedvpt - pep" in text
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        "pep-seed0", "pep-seed1", "fedvpt-seed0", "fedvpt-seed1",
        "compare.json", "compare.csv", "compare.md", "compare.tex",
    }  # fmt: skip
    summary = json.loads((out / "pep-seed1" / "summary.json").read_text())
    rows = json.loads((out / "compare.json").read_text())["rows"]
    assert rows[0]["mean_accuracy"]["values"][1] == summary["mean_accuracy"]
    assert summary["workers"] == 1

    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*")}
    code, text, _ = fedcue(*command, "--jobs", "1")
    assert code == 0
    assert "4 runs, 4 of them already finished" in text
    assert before == {path: path.stat().st_mtime_ns for path in out.glob("*/*")}

    code, text, _ = fedcue(*command, "--json")
    assert json.loads(text)["rows"] == rows

    code, _, errors = fedcue(*command, "training.epochs=2")
    assert code == 2
    assert "there training.epochs=1, asked for training.epochs=2" in errors


def test_compare_goes_on_with_a_stopped_run_and_equals_fedcue_run(
    fedcue: Command, small: list[str], tmp_path: Path
) -> None:
    command = [
        "compare",
        *small,
        "rounds=2",
        "--methods",
        "fedvpt",
        "--seeds",
        "3",
        "--out",
        "out",
        "--quiet",
    ]
    assert fedcue(*command)[0] == 0
    run = tmp_path / "out" / "fedvpt-seed3"
    whole = files_of(tmp_path / "out")
    newest = run / "checkpoints" / "round-000002.ckpt"
    for left_over in (newest, run / "summary.json", run / "model.safetensors"):
        left_over.unlink()
    assert fedcue(*command)[0] == 0
    assert files_of(tmp_path / "out") == whole
    arguments = [*small, "rounds=2", "method=fedvpt", "seed=3", "workers=1"]
    assert fedcue("run", *arguments, "--out", "alone", "--quiet")[0] == 0
    assert (tmp_path / "alone" / "model.safetensors").read_bytes() == whole["fedvpt-seed3/model.safetensors"]


def test_a_failing_run_does_not_stop_the_others(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    recipe = tmp_path / "sweep.toml"
    text = Path(load_path()).read_text().replace("seeds = [0, 1, 2]", "seeds = [0]")
    recipe.write_text(text + "\n[compare.sweep]\nclients_per_round = [99, 2]\n")
    code, text, errors = fedcue(
        "compare", str(recipe), *without(small, "clients_per_round"), "--methods", "head"
    )
    assert code == 1
    assert "1/2" in text
    assert "failed: head-clients_per_round=99-seed0: clients_per_round=99, but only" in errors.replace(
        "\n", ""
    )
    rows = json.loads((tmp_path / "runs" / "compare-sweep" / "compare.json").read_text())["rows"]
    assert [(row["variant"], row["seeds"]) for row in rows] == [
        ("clients_per_round=99", []),
        ("clients_per_round=2", [0]),
    ]


def test_trials_that_left_clients_untested_end_tune_with_their_reason(
    fedcue: Command, small: list[str], tmp_path: Path
) -> None:
    command = ["tune", *small, "--methods", "head", "--grid", "training.head_lr=0.1,0.2", "--out", "out"]
    assert fedcue(*command)[0] == 0
    (tmp_path / "out" / "tuned.toml").unlink()
    for path in (tmp_path / "out").glob("*/summary.json"):
        missing = {"untested": [{"client": 1, "reason": "its disk is on fire"}]}
        path.write_text(json.dumps(json.loads(path.read_text()) | missing))
    code, _, errors = fedcue(*command)
    assert code == 1
    assert "1 clients could not be tested (client 1: its disk is on fire)" in errors
    assert "repeat with --overwrite" in errors
    assert not (tmp_path / "out" / "tuned.toml").exists()


def test_tune_chooses_and_compare_takes_the_choice(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    values = "training.head_lr=1e-9,0.5"
    code, text, errors = fedcue(
        "tune", *small, "rounds=3", "--methods", "head", "--grid", values, "--out", "out"
    )
    assert code == 0, errors
    found = json.loads((tmp_path / "out" / "trials.json").read_text())["trials"]
    assert [trial["training.head_lr"] for trial in found] == [1e-9, 0.5]
    accuracies: list[Any] = [trial["validation_accuracy"] for trial in found]
    assert [trial["chosen"] for trial in found] == [
        accuracies[0] >= accuracies[1],
        accuracies[1] > accuracies[0],
    ]
    assert "at the edge of the grid" in text
    tuned = tmp_path / "out" / "tuned.toml"
    chosen = next(trial["training.head_lr"] for trial in found if trial["chosen"])
    assert load(tuned, ["method=head"]).training.head_lr == chosen
    assert load(tuned, ["method=head"]).evaluation.on == "test"
    code, text, errors = fedcue("compare", str(tuned), *small, "--methods", "head", "--seeds", "0", "--json")
    assert code == 0, errors
    assert json.loads(text)["rows"][0]["seeds"] == [0]


def test_a_table_remembers_what_was_run(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    command = ["compare", *small, "heldout=1", "--methods", "head", "--table", "out/t.csv"]
    variant = ["--variant", "head: evaluation.priors=uniform"]
    code, text, errors = fedcue(*command, *variant, "--seeds", "0", "--dry-run")
    assert code == 0, errors
    assert "1 run to make, 1 of the same models tested otherwise, 0 there already" in text
    assert not (tmp_path / "out").exists()

    code, text, errors = fedcue(*command, *variant, "--seeds", "0")
    assert code == 0, errors
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"t.csv", "t.curves.csv"}
    rows = list(csv.DictReader((tmp_path / "out" / "t.csv").open()))
    assert [row["variant"] for row in rows] == ["", "evaluation.priors=uniform"]
    assert all(float(rows[0][column]) >= 0 for column in ("mean", "heldout_mean", "log_prior_mean"))
    assert rows[0]["log_prior_mean"] != "" == rows[1]["log_prior_mean"]
    assert len((tmp_path / "out" / "t.curves.csv").read_text().splitlines()) == 2

    before = (tmp_path / "out" / "t.csv").read_bytes()
    code, text, _ = fedcue(*command, *variant, "workers=2", "--seeds", "0")
    assert code == 0
    assert "2 runs, 2 of them already finished" in text
    assert (tmp_path / "out" / "t.csv").read_bytes() == before
    code, text, _ = fedcue(*command, "--seeds", "0", "--json")
    assert [row["mean"] for row in json.loads(text)["rows"]] == [rows[0]["mean"]]


def test_a_row_is_what_run_and_evaluate_say(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    settings = [*small, "method=fedvpt", "seed=4", "workers=1"]
    assert fedcue("run", *settings, "--out", "one", "--quiet")[0] == 0
    assert fedcue("evaluate", "one", "method.logit_prior=test", "--out", "two")[0] == 0
    assert fedcue("compare", *small, "--methods", "fedvpt", "--seeds", "4", "--table", "t.csv", "-q")[0] == 0
    (row,) = csv.DictReader((tmp_path / "t.csv").open())
    for folder, begin in (("one", ""), ("two", "log_prior_")):
        summary = json.loads((tmp_path / folder / "summary.json").read_text())
        for name in ("mean", "worst", "percentile_10"):
            assert float(row[begin + name]) == pytest.approx(summary[f"{name}_accuracy"], abs=1e-6)


def test_several_recipes_share_a_call(fedcue: Command, small: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('base = "default"\n[training]\nlr = 0.3\n')
    command = ["compare", "default", "other.toml", *small, "--methods", "head", "--seeds", "0"]
    code, _, errors = fedcue(*command, "--out", "out")
    assert code == 0, errors
    for name in ("default", "other"):
        assert (tmp_path / "out" / name / "compare.md").is_file()
        assert (tmp_path / "out" / name / "head-seed0" / "summary.json").is_file()
    code, _, errors = fedcue(*command, "--out", "out", "--table", "t.csv")
    assert code == 0, errors
    rows = [row["recipe"] for row in csv.DictReader((tmp_path / "t.csv").open())]
    assert sorted(rows) == ["default", "other"]  # each is added when it is done
    assert (tmp_path / "out" / "default" / "head-seed0" / "summary.json").is_file()


def test_an_earlier_table_is_replaced_only_if_asked(
    fedcue: Command, small: list[str], tmp_path: Path
) -> None:
    command = ["compare", *small, "--seeds", "0", "--out", "out", "--quiet", "--methods"]
    assert fedcue(*command, "head")[0] == 0
    before = (tmp_path / "out" / "compare.json").read_bytes()
    code, _, errors = fedcue(*command, "ncm")
    assert code == 2
    assert "a row that this command does not make (head seed 0)" in errors
    assert (tmp_path / "out" / "compare.json").read_bytes() == before
    assert fedcue(*command, "head,ncm")[0] == 0
    assert fedcue(*command, "ncm", "--overwrite")[0] == 0
    assert (tmp_path / "out" / "head-seed0" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--methods", "pepp"], "Did you mean 'pep'"),
        (["compare", "--seeds", "x"], "--seeds 0,1,2"),
        (["compare", "seed=1"], "Give --methods and --seeds"),
        (["tune", "--methods", "pep"], "Give --grid"),
        (["tune", "--grid", "lr"], "key=value,value"),
    ],
)
def test_mistakes_are_one_message_and_exit_code_2(
    fedcue: Command, arguments: list[str], message: str
) -> None:
    code, _, errors = fedcue(*arguments)
    assert code == 2
    assert message in errors


def load_path() -> Path:
    from fedcue.config.recipes import recipes

    return recipes()["default"]


def without(settings: list[str], key: str) -> list[str]:
    return [setting for setting in settings if not setting.startswith(f"{key}=")]

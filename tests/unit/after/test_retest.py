"""A finished run tested again is the run that would have been made with those settings."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import SMALL
from typer.testing import CliRunner

import fedcue
from fedcue.after.retest import retest
from fedcue.cli.main import app
from fedcue.clients.priors import UNKNOWN
from fedcue.errors import ConfigError, RunFolderError
from fedcue.report.runs import find_runs

SETTINGS = [*SMALL, "snapshots=[]", "rounds=2", "training.head_lr=0.01", "training.prompt_lr=0.1"]
"""At higher rates two rounds leave scores that a prior hardly moves."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run of FedVPT."""
    folder = tmp_path_factory.mktemp("runs") / "fedvpt-seed0"
    return fedcue.run(fedcue.configure("default", [*SETTINGS, "method=fedvpt"]), folder).folder


def test_it_equals_a_fresh_run_with_the_setting(finished: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    again = retest(finished, ["method.logit_prior=test"])
    config = fedcue.configure("default", [*SETTINGS, "method=fedvpt", "method.logit_prior=test"])
    fresh = fedcue.run(config, tmp_path / "fresh")
    assert again.folder == finished.parent / "fedvpt-method.logit_prior=test-seed0"
    for name in ("clients.csv", "model.json", "model.safetensors"):
        assert (again.folder / name).read_bytes() == (fresh.folder / name).read_bytes(), name
    assert again.mean_accuracy == fresh.mean_accuracy
    assert again.rounds[-1]["mean_accuracy"] == fresh.rounds[-1]["mean_accuracy"]
    assert "mean_accuracy" not in again.rounds[0], "accuracies of earlier rounds were under other settings"
    assert before == {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file()}
    assert again.mean_accuracy != json.loads(before["summary.json"])["mean_accuracy"]


@pytest.mark.parametrize("how", ["uniform", "em", "em evaluation.labelled=5 evaluation.temperature=2"])
def test_other_priors_equal_a_fresh_run_too(finished: Path, tmp_path: Path, how: str) -> None:
    changes = ["method.logit_prior=test", *f"evaluation.priors={how}".split()]
    again = retest(finished, changes, tmp_path / "again")
    config = fedcue.configure("default", [*SETTINGS, "method=fedvpt", *changes])
    fresh = fedcue.run(config, tmp_path / "fresh")
    for name in ("clients.csv", "model.json"):
        assert (again.folder / name).read_bytes() == (fresh.folder / name).read_bytes(), name


def test_labels_tell_priors_too(finished: Path, tmp_path: Path) -> None:
    """Of all training labels and of no image worth a word, the priors are those of the labels."""
    em = ["method.logit_prior=test", "evaluation.priors=em"]
    by_labels = retest(finished, ["method.logit_prior=test"], tmp_path / "labels")
    alone = retest(finished, em, tmp_path / "em")
    both = retest(
        finished, [*em, "evaluation.labelled=1000", "evaluation.temperature=1e6"], tmp_path / "both"
    )
    assert both.mean_accuracy == pytest.approx(by_labels.mean_accuracy, abs=0.03)
    assert both.mean_accuracy > alone.mean_accuracy


def test_a_model_says_what_its_clients_mixes_were_like(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    description = json.loads((folder / "model.json").read_text())
    concentration, temperature = fedcue.load(folder).unlabelled
    assert {"concentration": concentration, "temperature": temperature} == description.pop("unlabelled")
    assert concentration != UNKNOWN, "learned"
    (folder / "model.json").write_text(json.dumps(description))
    assert fedcue.load(folder).unlabelled == (UNKNOWN, temperature), "runs of before do not say it"
    for nonsense in ({"temperature": 0}, {"concentration": "much"}, [1]):
        (folder / "model.json").write_text(json.dumps({**description, "unlabelled": nonsense}))
        with pytest.raises(RunFolderError, match="does not hold a usable model"):
            fedcue.load(folder)


def test_counts_of_labelled_images_are_checked(finished: Path) -> None:
    model, image = fedcue.load(finished), np.zeros((8, 8, 3), np.uint8)
    c = len(model.classes)
    for counts in (
        [1, 2],
        [-1] * c,
        [np.nan] * c,
        [np.inf] * c,
        [0.5] * c,
        np.ones((1, c)),
        ["many"] * c,
        "em",
    ):
        with pytest.raises(ConfigError, match="one per class, none negative"):
            model.predict(image, "em", labelled=counts)
    for none in (
        [1] * 2,
        [-1] * c,
        [np.nan] * c,
        [0] * c,
        [None] * c,
        [[1], [2, 3]],
        np.ones((1, c)),
        "even",
    ):
        with pytest.raises(ConfigError, match=f"Priors must be {c} numbers"):
            model.predict(image, none)
    assert c == 10
    for kind in (list, tuple, np.array, torch.tensor):
        found = model.predict(image, kind(range(c)), details=False).probabilities
        assert torch.equal(found, model.predict(image, range(c), details=False).probabilities)
        known = model.predict(image, "em", labelled=kind(range(c)), details=False).probabilities
        assert torch.equal(known, model.predict(image, "em", labelled=range(c), details=False).probabilities)


REFUSED = {
    "counts that are no numbers": (["--priors", "em", "--labelled", "FILE"], "[NaN, 1]", "must be 10 counts"),
    "counts without end": (["--priors", "em", "--labelled", "FILE"], "[1e400" + ", 0" * 9 + "]", "10 counts"),
    "text": (["--priors", "FILE"], '"1111111111"', "is not a JSON list or object of numbers by class"),
    "a folder for a table": (["--csv", "."], "", "is a folder"),
    "a table in no folder": (["--csv", "none/table.csv"], "", "look at the folder none"),
}


@pytest.mark.parametrize(("options", "text", "message"), REFUSED.values(), ids=REFUSED)
def test_predict_refuses_nonsense_before_it_works(
    finished: Path, tmp_path: Path, options: list[str], text: str, message: str
) -> None:
    (tmp_path / "given.json").write_text(text)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    options = [str(tmp_path / "given.json") if option == "FILE" else option for option in options]
    done = CliRunner().invoke(app, ["predict", str(finished), str(tmp_path / "one.png"), *options])
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert "images/s" not in done.output


def test_a_table_of_files_whose_names_are_no_text(finished: Path, tmp_path: Path) -> None:
    for name in ("plain.png", "two\nlines.png", os.fsdecode(b"bytes\xff.png")):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    done = CliRunner().invoke(
        app, ["predict", str(finished), str(tmp_path), "--csv", str(tmp_path / "t.csv")]
    )
    assert done.exit_code == 0, done.exception
    rows = list(csv.reader((tmp_path / "t.csv").open(newline="")))
    assert [Path(row[0]).name for row in rows[1:]] == ["bytes\\udcff.png", "plain.png", "two\nlines.png"]


def test_even_priors_on_the_logits_change_nothing(finished: Path, tmp_path: Path) -> None:
    again = retest(finished, ["method.logit_prior=test", "evaluation.priors=uniform"], tmp_path / "again")
    assert (again.folder / "clients.csv").read_bytes() == (finished / "clients.csv").read_bytes()


def test_the_command_leaves_a_folder_that_reports_read(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "em"
    arguments = ["evaluate", str(finished), "method.logit_prior=test", "evaluation.priors=em", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    (run,) = find_runs([out])
    assert (run.state, run.method, run.problem) == ("finished", "fedvpt", "")
    assert run.last("mean_accuracy") == json.loads(result.stdout)["mean_accuracy"]
    assert "last_rounds_mean_accuracy" not in run.summary, "it was measured under other priors"


def test_the_command_tells_how_long_the_test_took_not_the_training(finished: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(finished), "--out", str(tmp_path / "again")])
    assert "(tested again in " in done.output


def test_settings_of_training_are_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match="rounds would change the run itself"):
        retest(finished, ["rounds=3"])
    with pytest.raises(ConfigError, match="takes part in training"):
        retest(finished, ["method.logit_prior=train+test"])
    with pytest.raises(ConfigError, match="is the run itself"):
        retest(finished, [], finished)
    with pytest.raises(RunFolderError, match="holds no config.toml"):
        retest(finished / "nowhere", [])


@pytest.mark.timeout(120)  # a pass over so many prompts would take hours
@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("model.safetensors", {"shared_prompts": torch.zeros(200_000, 16)}),
        ("model.safetensors", {"head": torch.zeros(3)}),
        ("clients.safetensors", {"no number/head": torch.zeros(3)}),
        ("clients.safetensors", None),
        ("summary.json", {"rounds": "two"}),
    ],
)
def test_what_was_trained_must_be_what_the_method_has(
    finished: Path, tmp_path: Path, name: str, tensors: dict[str, Any] | None
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    if name.endswith("json"):
        known = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**known, **(tensors or {})}))
    elif tensors is None:
        (folder / name).write_bytes(b"no tensors")
    else:
        known = load_file(folder / name) if (folder / name).exists() else {}
        save_file({**known, **tensors}, folder / name)
    with pytest.raises(RunFolderError, match="does not hold a trained model"):
        retest(folder, ["evaluation.priors=uniform"], tmp_path / "again")
    assert not (tmp_path / "again").exists()
    if name != "summary.json":
        with pytest.raises(RunFolderError, match="does not hold a usable model"):
            fedcue.load(folder)

"""A finished run tested again is the run that would have been made with those settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support import SMALL
from typer.testing import CliRunner

import fedcue
from fedcue.after.retest import retest
from fedcue.cli.main import app
from fedcue.clients.priors import estimate_priors
from fedcue.errors import ConfigError, RunFolderError
from fedcue.report.runs import find_runs

SETTINGS = [*SMALL, "snapshots=[]", "rounds=2"]


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


@pytest.mark.parametrize("kind", ["uniform", "em"])
def test_other_priors_equal_a_fresh_run_too(finished: Path, tmp_path: Path, kind: str) -> None:
    changes = ["method.logit_prior=test", f"evaluation.priors={kind}"]
    again = retest(finished, changes, tmp_path / "again")
    config = fedcue.configure("default", [*SETTINGS, "method=fedvpt", *changes])
    fresh = fedcue.run(config, tmp_path / "fresh")
    assert (again.folder / "clients.csv").read_bytes() == (fresh.folder / "clients.csv").read_bytes()


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


def numpy_em(scores: np.ndarray, steps: int) -> np.ndarray:
    """Estimate priors by plain EM, an image and a class at a time."""
    classes = scores.shape[1]
    priors = [1 / classes] * classes
    for _ in range(steps):
        shares = [[row[c] * priors[c] for c in range(classes)] for row in scores]
        priors = [sum(s[c] / sum(s) for s in shares) / len(shares) for c in range(classes)]
    return np.array(priors)


def gaussian_logits(priors: np.ndarray, images: int, seed: int) -> torch.Tensor:
    """Return exact log likelihoods of points around four corners, drawn with the given priors."""
    generator = np.random.default_rng(seed)
    corners = np.array([[0, 0], [2, 0], [0, 2], [2, 2]])
    points = corners[generator.choice(4, images, p=priors)] + generator.normal(size=(images, 2))
    return torch.from_numpy(-((points[:, None] - corners) ** 2).sum(-1) / 2)


def test_em_is_the_textbook_one() -> None:
    logits = gaussian_logits(np.array([0.6, 0.1, 0.3, 0.0]), 40, 0)
    found = estimate_priors(logits, steps=25, tolerance=0.0)
    np.testing.assert_allclose(found.numpy(), numpy_em(logits.softmax(1).numpy(), 25), atol=1e-12)


@pytest.mark.parametrize("priors", [[0.7, 0.2, 0.1, 0.0], [0.25] * 4, [0.0, 0.5, 0.5, 0.0]])
def test_em_finds_the_priors_the_images_were_drawn_with(priors: list[float]) -> None:
    found = estimate_priors(gaussian_logits(np.array(priors), 5000, 1)).numpy()
    np.testing.assert_allclose(found, priors, atol=0.03)

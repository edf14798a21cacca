"""The command line as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import SMALL

import fedcue


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "fedcue", *arguments]
    return subprocess.run(whole, capture_output=True, text=True, cwd=cwd, timeout=280, check=False)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedcue.run(fedcue.configure("default", SMALL), tmp_path_factory.mktemp("cli") / "run").folder


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "digit.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(path)
    return path


def test_version_and_help() -> None:
    assert command("--version").stdout == f"fedcue {fedcue.__version__}\n"
    text = command("run", "--help").stdout
    assert "fedcue run method=fedvpt" in text
    assert "KEY=VALUE" in text


def test_list_names_everything() -> None:
    text = command("list").stdout
    for name in ("default", "pep", "sgpt", "digits", "pathological", "embedded"):
        assert name in text


def test_run_prints_rounds_and_where_the_result_lies(tmp_path: Path) -> None:
    done = command("run", *SMALL, "--out", "here", "--seed", "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^round ", done.stdout, re.MULTILINE)) == 2
    assert "mean accuracy" in done.stdout
    assert "results in here" in done.stdout
    assert "seed = 4" in (tmp_path / "here" / "config.toml").read_text()


def test_run_as_json_prints_nothing_else(tmp_path: Path) -> None:
    done = command("run", *SMALL, "--json", "--out", str(tmp_path / "run"))
    result = json.loads(done.stdout)
    assert result["folder"] == str(tmp_path / "run")
    assert 0 <= result["mean_accuracy"] <= 1


def test_predict_as_table_and_as_json(run_folder: Path, picture: Path, tmp_path: Path) -> None:
    table = command("predict", str(run_folder), str(picture), "--client", "1")
    assert table.returncode == 0, table.stderr
    assert "digit.png" in re.sub(r"\s", "", table.stdout), "a long path is folded, not cut"
    priors = tmp_path / "priors.json"
    priors.write_text(json.dumps({"3": 1, "5": 1}))
    (row,) = json.loads(
        command("predict", str(run_folder), str(picture), "--priors", str(priors), "--json").stdout
    )
    assert set(row) == {"image", "class", "probability", "mixing_weights"}
    assert set(row["mixing_weights"]) <= {"3", "5"}
    assert sum(row["mixing_weights"].values()) == pytest.approx(1, abs=1e-5)
    priors.write_text(json.dumps({"3": 1_000_000, "5": 1_000_000}))
    known = ("--priors", "em", "--labelled", str(priors), "--json")
    (estimated,) = json.loads(command("predict", str(run_folder), str(picture), *known).stdout)
    assert sum(estimated["mixing_weights"].get(name, 0) for name in "35") > 0.5, "labels outweigh one image"


MISTAKES = {
    "recipe": (["run", "defalt"], "Unknown recipe 'defalt'"),
    "method": (["run", "method=fedvtp"], "Did you mean 'fedvpt'"),
    "key": (["run", "roundz=3"], "Did you mean 'rounds'"),
    "value": (["run", "rounds=many"], "rounds='many'"),
    "temperature": (["run", "method.temperature=0"], "greater than 0"),
    "layers": (["run", *SMALL, "method.layers=[12]"], "blocks are 0 to 11"),
    "backbone": (["run", "backbone=/nowhere"], "neither a folder nor a hub id"),
    "image size": (["run", "backbone.image_size=33"], "multiple of 8"),
    "no run": (["predict", "/nowhere", "x.png"], "holds no model.json"),
    "labels alone": (["predict", "/nowhere", "x.png", "--labelled", "n.json"], "give --priors em, too"),
    "resume": (["resume", "/nowhere"], "holds no config.toml"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_message_and_exit_code_2(case: str, tmp_path: Path) -> None:
    arguments, message = MISTAKES[case]
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_an_unreadable_image_is_named(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    done = command("predict", str(run_folder), str(tmp_path / "broken.png"))
    assert done.returncode == 2
    assert "broken.png" in done.stderr


def test_debug_shows_the_traceback() -> None:
    done = command("run", "method=fedvtp", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_a_folder_in_use_or_full_is_left_alone(run_folder: Path) -> None:
    done = command("run", *SMALL, "--out", str(run_folder))
    assert done.returncode == 2
    assert "--overwrite" in done.stderr


def test_resuming_a_finished_run_gives_the_same_result(run_folder: Path) -> None:
    before = (run_folder / "model.safetensors").read_bytes()
    done = command("resume", str(run_folder))
    assert done.returncode == 0, done.stderr
    assert (run_folder / "model.safetensors").read_bytes() == before

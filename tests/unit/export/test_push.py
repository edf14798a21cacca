"""A model on the hub and back, against a small hub on this machine's loopback interface."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from huggingface_hub.utils import get_session
from support.fake_hub import Hub, run_with_hub, serve

import fedcue
from fedcue.after.hub import found
from fedcue.errors import ConfigError, FedcueError, RunFolderError
from fedcue.export.push import push, staged

PUSH = """
import sys
from pathlib import Path
from fedcue.export.push import push
print(push(Path(sys.argv[1]), "someone/owls"))
"""

LOAD = """
import sys, fedcue, torch
try:
    model = fedcue.load("someone/owls")
    image = torch.arange(192, dtype=torch.uint8).view(8, 8, 3)
    print(model.predict(image).probabilities.tolist())
except fedcue.FedcueError as error:
    print("refused:", error)
print("os_of_a_stranger" in sys.modules)
"""


def test_what_is_pushed_is_loaded_by_its_name(finished: Callable[..., Path], tmp_path: Path) -> None:
    run = finished("cue")
    with serve({}) as hub:
        assert run_with_hub(PUSH, hub, tmp_path, str(run)) == f"{hub}/someone/owls"
        pushed = dict(Hub.files)
        said = run_with_hub(LOAD, hub, tmp_path).splitlines()
        description = json.loads(pushed["model.json"])
        description["method"] = {"name": "os_of_a_stranger:Method"}
        Hub.files["model.json"] = json.dumps(description).encode()
        refused = run_with_hub(LOAD, hub, tmp_path / "fresh").splitlines()
    assert set(pushed) == {
        "README.md", "labels.json", "model.json", "model.safetensors",
        "backbone/config.json", "backbone/model.safetensors",
    }  # fmt: skip
    assert description["clients"] == {}, "nothing of single clients"
    assert str(run.parent).encode() not in b"".join(pushed.values())
    image = torch.arange(192, dtype=torch.uint8).view(8, 8, 3)
    expected = fedcue.load(run).predict(image).probabilities
    torch.testing.assert_close(torch.tensor(json.loads(said[0])), expected)
    assert "by import path, and no folder decides what is imported" in refused[0]
    assert refused[-1] == "False"


def test_what_stays_at_clients_is_published_only_on_request(
    finished: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="Give --clients to publish them"):
        push(finished("ppt"), "someone/owls")
    for name in ("owls", "someone/ö", "someone/a..b", "someone/owls.git", "a/b/c", "someone/" + "o" * 97, ""):
        with pytest.raises(ConfigError, match="no repository of the hub"):
            push(tmp_path, name)


def test_nothing_else_of_this_machine_is_published(finished: Callable[..., Path], tmp_path: Path) -> None:
    """A stranger's folder may hold links, and name a backbone beside which another program's file lies."""
    run = Path(shutil.copytree(finished("fedvpt"), tmp_path / "run"))
    backbone = Path(json.loads((run / "model.json").read_text())["backbone"]["name"])
    tokens = json.loads((backbone / "config.json").read_text()) | {"auths": {"hub": {"auth": "c2VjcmV0"}}}
    shutil.copytree(backbone, run / "theirs")
    (tmp_path / "config.json").write_text(json.dumps(tokens))
    (run / "theirs" / "config.json").unlink()
    (run / "theirs" / "config.json").symlink_to(tmp_path / "config.json")
    about = json.loads((run / "model.json").read_text())
    about["backbone"]["name"] = str(run / "theirs")
    (run / "model.json").write_text(json.dumps(about))
    (tmp_path / "staged").mkdir()
    staged(run, tmp_path / "staged")
    assert not [
        path for path in (tmp_path / "staged").rglob("*") if path.is_file() and b"auth" in path.read_bytes()
    ]
    (run / "model.json").write_text(json.dumps(about | {"note": float("nan")}))
    with pytest.raises(RunFolderError, match=r"model\.json is damaged"):
        staged(run, tmp_path)
    (run / "model.json").write_text(json.dumps(about))
    (run / "model.safetensors").rename(tmp_path / "private")
    (run / "model.safetensors").symlink_to(tmp_path / "private")
    (tmp_path / "again").mkdir()
    with pytest.raises(RunFolderError, match="is a link: what it points to would be published"):
        staged(run, tmp_path / "again")


def test_a_name_is_a_repository_only_where_no_folder_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFolderError, match="on the hub may be fetched with --fetch"):
        found("runs/mine", False)
    (tmp_path / "runs").mkdir()
    assert found("runs/mine", None) == (Path("runs/mine"), False)
    assert found("/runs/mine", True) == (Path("/runs/mine"), True)


def test_a_hub_that_cannot_be_reached_is_told(
    finished: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        get_session().get("http://127.0.0.1:9")  # nobody listens there

    monkeypatch.setattr(HfApi, "create_repo", unreachable)
    with pytest.raises(FedcueError, match=r"someone/owls could not be written \(.*see that the network"):
        push(finished("cue"), "someone/owls")

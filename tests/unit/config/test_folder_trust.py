"""A run folder from a stranger names what is registered, and nothing else."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from support import SMALL

import fedcue
from fedcue.after.predict import load as load_model
from fedcue.after.retest import retest
from fedcue.config.layers import dump, load, load_folder
from fedcue.data.readers import hub
from fedcue.errors import BackboneError, ConfigError, DataError, FedcueError, RunFolderError
from fedcue.machine import network
from fedcue.model.backbone import load_backbone

BASES = {
    "method": "fedcue.methods.head:HeadTuning",
    "data": "fedcue.data.readers.digits:Digits",
    "partition": "fedcue.data.partition.iid:IID",
    "aggregate": "fedcue.aggregate.robust:Median",
    "privacy": "fedcue.privacy.mechanisms:Privacy",
}
STRANGER = "a_strangers_module"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, which nobody changes."""
    settings = [*SMALL, "method=head", "rounds=1"]
    return fedcue.run(load("default", settings), tmp_path_factory.mktemp("trust") / "run").folder


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a module with a class of every kind on the import path; importing it leaves a mark."""
    lines = [f"open({str(tmp_path / 'imported')!r}, 'w').close()"]
    for section, path in BASES.items():
        module, _, name = path.partition(":")
        lines += [f"from {module} import {name}", f"class My{section}({name}): pass"]
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / f"{STRANGER}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.delitem(sys.modules, STRANGER, raising=False)
    return tmp_path / "imported"


def folder_with(place: Path, section: str, name: str) -> Path:
    """Write the folder of a run whose ``section`` is called ``name``."""
    settings = dump(load("default", SMALL))
    settings[section] = {"name": name, **({"clients": 4} if section == "partition" else {})}
    place.mkdir()
    (place / "config.toml").write_text(tomli_w.dumps(settings))
    return place


@pytest.mark.parametrize("section", BASES)
def test_a_class_that_only_a_folder_names_is_not_imported(
    tmp_path: Path, stranger: Path, section: str
) -> None:
    name = f"{STRANGER}:My{section}"
    folder = folder_with(tmp_path / "run", section, name)
    for others in ([], ["another.module:Class"], [STRANGER]):
        with pytest.raises(ConfigError, match=f"--trust {name}"):
            load_folder(folder, trusted=others)
    with pytest.raises(ConfigError, match=f"--trust {name}"):
        retest(folder, [], tmp_path / "again")
    assert not stranger.exists()
    assert STRANGER not in sys.modules


@pytest.mark.parametrize("section", BASES)
def test_a_class_that_is_trusted_by_its_name_is_imported(
    tmp_path: Path, stranger: Path, section: str
) -> None:
    name = f"{STRANGER}:My{section}"
    config = load_folder(folder_with(tmp_path / "run", section, name), trusted=[name])
    assert type(getattr(config, section)).__name__ == f"My{section}"
    assert stranger.exists()


def test_a_class_given_on_the_command_line_is_imported_as_ever(stranger: Path) -> None:
    config = load("default", [f"method={STRANGER}:Mymethod"])
    assert type(config.method).__name__ == "Mymethod"


@pytest.mark.parametrize("key", ["scale", "per_method", "profile", "base"])
def test_no_other_key_of_a_folder_brings_a_class_in(tmp_path: Path, stranger: Path, key: str) -> None:
    folder = folder_with(tmp_path / "run", "method", "head")
    strange = {"method": {"name": f"{STRANGER}:Mymethod"}, "data": {"name": f"{STRANGER}:Mydata"}}
    settings = dump(load("default", [*SMALL, "method=head"]))
    (tmp_path / "other.toml").write_text(tomli_w.dumps(strange))
    values: dict[str, Any] = {"scale": {"x": strange}, "per_method": {"head": strange}}
    settings[key] = values.get(key, "../other.toml")
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    with suppress(FedcueError):
        load_folder(folder)
    assert not stranger.exists()


@pytest.mark.parametrize("section", ["cache", "data"])
def test_a_folder_has_nothing_made_outside_it(tmp_path: Path, section: str) -> None:
    folder, outside = folder_with(tmp_path / "run", "method", "head"), tmp_path / "outside"
    settings = dump(load("default", [*SMALL, "method=head"]))
    settings[section] |= {"folder" if section == "cache" else "cache_folder": str(outside)}
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    with pytest.raises(ConfigError, match=f"{section}.*does not exist"):
        load_folder(folder)
    assert not outside.exists()
    outside.mkdir()
    load_folder(folder)


def test_a_folder_that_is_built_on_another_file_is_refused(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "run", "method", "head")
    (folder / "config.toml").write_text('base = "/etc/hosts"\n')
    with pytest.raises(ConfigError, match="base"):
        load_folder(folder)


def test_resuming_into_a_strangers_folder_imports_nothing(tmp_path: Path, stranger: Path) -> None:
    folder = folder_with(tmp_path / "run", "method", f"{STRANGER}:Mymethod")
    with pytest.raises(RunFolderError, match="holds another run"):
        fedcue.run(load("default", SMALL), folder, resume=True)
    assert not stranger.exists()


def copy_with(finished: Path, place: Path, **changes: Any) -> Path:
    """Copy a model with another description."""
    place.mkdir()
    for name in ("model.safetensors", "summary.json"):
        (place / name).write_bytes((finished / name).read_bytes())
    description = json.loads((finished / "model.json").read_text())
    (place / "model.json").write_text(json.dumps(description | changes))
    return place


def test_a_model_may_not_name_a_class_unless_it_is_trusted(
    finished: Path, tmp_path: Path, stranger: Path
) -> None:
    name = f"{STRANGER}:Mymethod"
    folder = copy_with(finished, tmp_path / "run", method={"name": name})
    with pytest.raises(ConfigError, match=f"--trust {name}"):
        load_model(folder)
    assert not stranger.exists()
    assert type(load_model(folder, trusted=[name]).method).__name__ == "Mymethod"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for each question to the hub's client whether it may connect."""
    noted: list[bool] = []

    def note(*_: Any, local_files_only: bool = False, **__: Any) -> None:
        noted.append(not local_files_only)
        raise OSError("not here")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", note)
    monkeypatch.setattr("huggingface_hub.snapshot_download", note)
    return noted


def test_a_backbone_that_a_model_names_is_fetched_only_when_asked(
    finished: Path, tmp_path: Path, asked: list[bool]
) -> None:
    folder = copy_with(finished, tmp_path / "run", backbone={"name": "owner/vit"})
    with pytest.raises(BackboneError, match="--fetch"):
        load_model(folder)
    with pytest.raises(BackboneError, match="could not be downloaded"):
        load_model(folder, fetch=True)
    assert asked == [False, True]


def test_a_backbone_that_a_configuration_names_is_fetched_only_when_asked(
    finished: Path, tmp_path: Path, asked: list[bool]
) -> None:
    folder = copy_with(finished, tmp_path / "run")
    config = dump(load_folder(finished))
    config["backbone"]["name"] = "owner/vit"
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    with pytest.raises(BackboneError, match="--fetch"):
        retest(folder, [], tmp_path / "again")
    with pytest.raises(BackboneError, match="could not be downloaded"):
        retest(folder, [], tmp_path / "again", fetch=True)
    assert asked == [False, True]


@pytest.mark.parametrize("data", [{"name": "cifar100"}, {"name": "parquet", "hub": "owner/images"}])
def test_data_that_a_configuration_names_is_fetched_only_when_asked(
    finished: Path, tmp_path: Path, asked: list[bool], data: dict[str, str]
) -> None:
    folder = copy_with(finished, tmp_path / "run")
    config = dump(load_folder(finished)) | {"data": data}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    with pytest.raises(DataError, match="--fetch"):
        retest(folder, [], tmp_path / "again")
    with pytest.raises(DataError, match="could not be downloaded"):
        retest(folder, [], tmp_path / "again", fetch=True)
    assert asked == [False, True]


def test_what_is_named_on_the_command_line_is_fetched_as_ever(asked: list[bool]) -> None:
    with pytest.raises(BackboneError):
        load_backbone("owner/vit")
    with pytest.raises(DataError):
        hub.download("owner/images")
    with network(False), pytest.raises(BackboneError):
        load_backbone("owner/vit")
    assert asked == [True, True, False]

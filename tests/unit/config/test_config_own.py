"""What ``data=own`` and ``partition=own`` become, by what lies in the folder."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.data_files import save_picture

from fedcue.config.layers import dump, load, resolve
from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError


def folder(root: Path, *pattern: str, copies: int = 6) -> Path:
    """Make image files ``pattern/NUMBER.png`` below ``root``."""
    for place in pattern:
        for copy in range(copies):
            save_picture(root / place / f"{copy}.png", hash((place, copy)) % 2**32)
    return root


def own(root: Path, *settings: str) -> RunConfig:
    return load("own", [f"data.root={root}", "backbone=embedded", *settings])


def test_clients_of_the_data_become_the_clients(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"{client}/train/{label}" for client in ("ann", "bob", "cy") for label in ("cat", "dog")]
    config = own(folder(tmp_path, *names))
    assert (config.data.name, config.partition.name) == ("folder", "natural")
    assert "is read as CLIENT/train/CLASS/x.jpg or CLIENT/CLASS/x.jpg: 2 classes, 3 clients." in caplog.text
    assert (config.clients_per_round, config.method.name, config.recipe) == (3, "cue", "own")


def test_domains_become_a_client_each(tmp_path: Path) -> None:
    config = own(folder(tmp_path, "photo/cat", "photo/dog", "sketch/cat", "sketch/dog"))
    assert (config.data.name, config.partition.name) == ("folder", "domain")
    assert dump(config)["partition"]["clients_per_domain"] == 1
    assert (config.clients_per_round, config.rounds) == (2, 5)


def test_without_either_a_dirichlet_draw_is_made_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = folder(tmp_path, "cat", "dog", copies=100)
    config = own(root)
    assert dump(config)["partition"] == {
        "name": "dirichlet", "clients": 10, "alpha": 0.5, **_untouched(config)
    }  # fmt: skip
    assert "shared out among 10 clients by a Dirichlet draw (alpha 0.5, seed 0)" in caplog.text
    assert (config.clients_per_round, config.rounds) == (5, 8)  # 9 train, four passes
    own(root)
    assert caplog.text.count("Dirichlet draw") == 1, "it is told once"


def _untouched(config: RunConfig) -> dict[str, object]:
    plain = dump(config)["partition"]
    return {key: value for key, value in plain.items() if key not in ("name", "clients", "alpha")}


def test_few_images_make_few_clients(tmp_path: Path) -> None:
    config = own(folder(tmp_path, "cat", "dog", copies=12))
    assert dump(config)["partition"]["clients"] == 1
    assert config.clients_per_round == 1


def test_what_the_user_gives_is_kept(tmp_path: Path) -> None:
    root = folder(tmp_path, "photo/cat", "photo/dog", "sketch/cat", "sketch/dog", copies=20)
    config = own(root, "partition.clients_per_domain=2", "rounds=3", "clients_per_round=1", "seed=4")
    assert dump(config)["partition"]["clients_per_domain"] == 2
    assert (config.rounds, config.clients_per_round, config.seed) == (3, 1, 4)
    other = own(root, "partition=iid", "partition.clients=4")
    assert other.partition.name == "iid"
    assert load("default", ["data=own", f"data.root={root}"]).data.name == "folder"


def test_a_list_is_read_as_one(tmp_path: Path) -> None:
    folder(tmp_path, "x", copies=8)
    with open(tmp_path / "list.csv", "w", newline="") as file:
        rows = [[f"x/{n}.png", "cat" if n % 2 else "dog", "ann" if n < 4 else "bob"] for n in range(8)]
        csv.writer(file).writerows([["path", "label", "client"], *rows])
    config = own(tmp_path / "list.csv")
    assert (config.data.name, config.partition.name) == ("manifest", "natural")


def test_a_run_s_settings_name_what_was_decided(tmp_path: Path) -> None:
    config = own(folder(tmp_path, "photo/cat", "photo/dog", "sketch/cat", "sketch/dog"))
    assert dump(resolve(dump(config), name="own")) == dump(config)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Where are your images"):
        load("own")
    root = folder(tmp_path, "photo/cat", "photo/dog", "sketch/cat", "sketch/dog")
    with pytest.raises(ConfigError, match="Unknown key 'data.layuot'"):
        own(root, "data.layuot=domains")
    with pytest.raises(ConfigError, match="heldout='many'"):
        own(root, "heldout=many")
    with pytest.raises(ConfigError, match=r"Unknown key 'partition.alpha'"):
        own(root, "partition.alpha=0.1")

"""A node reads images and backbone once for a run; what the server settles by and by is heeded all the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import SMALL

pytest.importorskip("flwr")

import fedcue
from fedcue.config.settings import RunConfig
from fedcue.flower import holdings, node
from fedcue.flower.terms import RefusalError, Terms
from fedcue.model.shapes import shape_of

SETTINGS = [*SMALL, "method=fedvpt", "data.train_per_class=6", "data.test_per_class=2"]


def terms(run: str, *more: str) -> Terms:
    return terms_of(run, fedcue.configure("default", [*SETTINGS, *more]))


def terms_of(run: str, config: RunConfig) -> Terms:
    shape = shape_of(config.backbone.name, config.backbone.image_size)
    classes = config.data.outline(config.seed).classes
    return Terms.of(run, config, classes, shape, config.partition.planned_clients)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    holdings._read.cache_clear()
    monkeypatch.setattr(holdings, "was_read", [])
    return {"partition-id": 0, "num-partitions": 2, "memory": str(tmp_path / "memory")}


def test_all_messages_of_a_run_share_one_reading(here: dict[str, Any]) -> None:
    first = node.open_node(terms("run-1"), here)
    later = node.open_node(replace(terms("run-1"), asked=3), here)
    assert first.host.frozen is later.host.frozen
    assert later.vault is None
    assert len(holdings.was_read) == 1


@pytest.mark.parametrize("change", ["run", "setting", "node"])
def test_anything_else_is_read_anew(here: dict[str, Any], change: str) -> None:
    first = node.open_node(terms("run-1"), here)
    asked = terms("run-2") if change == "run" else terms("run-1", *["seed=1"] * (change == "setting"))
    other = node.open_node(asked, {**here, "partition-id": 1} if change == "node" else here)
    assert first.host.frozen is not other.host.frozen
    assert len(holdings.was_read) == 2


def test_the_noise_that_the_server_settles_reaches_a_client_whose_images_were_read(
    here: dict[str, Any],
) -> None:
    private = ["privacy=dp", "partition.classes_per_client=10"]
    config = fedcue.configure("default", [*SETTINGS, *private])
    assert config.privacy.noise is None
    settled = config.model_copy(update={"privacy": config.privacy.model_copy(update={"noise": 1.5})})
    first, later = (node.open_node(terms_of("run-1", one), here) for one in (config, settled))
    assert first.host.frozen is later.host.frozen
    assert later.host.config.privacy.noise == 1.5


def test_a_node_with_other_settings_is_refused_with_every_message(
    here: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = terms("run-1")
    node.open_node(asked, here)
    for differing in (
        replace(asked, method="0" * 64),
        replace(asked, backbone="0" * 64),
        replace(asked, version="0"),
    ):
        with pytest.raises(RefusalError, match="the server's is 0"):
            node.open_node(differing, here)


def test_another_process_reads_the_same(here: dict[str, Any]) -> None:
    node.open_node(terms("run-1"), here)
    (text,) = holdings.was_read
    holdings._read.cache_clear()
    holdings.read_again(text)
    assert len(holdings.was_read) == 2
    node.open_node(replace(terms("run-1"), asked=3), here)
    assert len(holdings.was_read) == 2, "it was there already"

"""The line a run shows of itself in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcue.cli.progress import BETTER, News, header
from fedcue.clients.roster import Roster
from fedcue.config.layers import load
from fedcue.model.vit import Architecture


def record(accuracy: float | None, failed: int = 0) -> dict[str, Any]:
    failures = {"failures": [{}] * failed} if failed else {}
    traffic = {"upload_bytes": 1000, "download_bytes": 500}
    return {"clients": [1, 2, 3], "train_loss": 0.5, "mean_accuracy": accuracy, **traffic, **failures}


def test_all_is_told_where_there_is_room() -> None:
    news = News()
    news.add(record(0.1), 100)
    assert news.add(record(0.95, failed=1), 100) == (
        "accuracy 95.0% ▁█  loss 0.500  3 kB  3 clients (1 failed)"
    )
    assert news.add(record(None), 100).startswith("accuracy 95.0% ▁█  loss")  # not tested this round


@pytest.mark.parametrize("room", range(20, 60))
def test_it_is_never_longer_than_the_room(room: int) -> None:
    news = News()
    for number in range(30):
        text = news.add(record(number / 30), room)
        assert len(text) <= room
        assert text.startswith("accuracy")


def roster(*settings: str, dropped: int = 0) -> Roster:
    shape = Architecture(width=32, depth=8, heads=2, patch=4, image_size=32, hidden=64)
    config = load("default", ["clients_per_round=1", *settings])
    sizes = np.array([5, 6, 7])
    return Roster(
        config, "pictures", ("a", "b"), shape, names="xyz", domains=["", "", ""], partition="natural",
        heldout=np.array([False, False, True]), train_sizes=sizes, test_sizes=sizes - 4, dropped=dropped,
    )  # fmt: skip


def test_the_header_says_what_is_run_and_where_it_goes() -> None:
    text = "\n".join(header(roster("precision=bfloat16", dropped=4), Path("runs/here")))
    for part in (
        "pep on pictures", "2 train / 1 held out / 4 dropped", "partition natural", "18 to train, 6 to test",
        "2 classes", "8 blocks, width 32, 32 pixels, embedded weights, bfloat16", "folder    runs/here",
    ):  # fmt: skip
        assert part in text
    assert "dropped" not in "\n".join(header(roster(), Path("x")))


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (["data=folder", "data.root=x"], True),
        (["data=folder", "data.root=x", "backbone=timm/other"], False),
        (["data=digits"], False),
    ],
)
def test_photographs_on_the_embedded_backbone_are_warned_of(settings: list[str], warned: bool) -> None:
    assert (f"backbone={BETTER}" in header(roster(*settings), Path("x"))[-1]) == warned

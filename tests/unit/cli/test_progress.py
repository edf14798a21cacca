"""The line a run shows of itself in a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from fedcue.cli.progress import News


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

"""The line a run shows of itself in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from support import SMALL

import fedcue
from fedcue.clients.roster import Roster
from fedcue.config.layers import load
from fedcue.model.vit import Architecture
from fedcue.rounds import progress as progress_module
from fedcue.rounds.observers import Silent
from fedcue.rounds.progress import BETTER, LiveDisplay, News, RunProgress, header, loss_text


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


def test_a_cluster_is_told_in_nodes_workers_and_visits() -> None:
    machines = {"nodes": 1, "workers": 8, "visits_per_second": 12.345}
    assert News().add(record(None) | machines, 100).endswith("3 clients  1 node, 8 workers, 12.3 visits/s")


@pytest.mark.parametrize("room", range(20, 60))
def test_it_is_never_longer_than_the_room(room: int) -> None:
    news = News()
    for number in range(30):
        text = news.add(record(number / 30), room)
        assert len(text) <= room
        assert text.startswith("accuracy")


def roster(*settings: str, **told: int) -> Roster:
    shape = Architecture(width=32, depth=8, heads=2, patch=4, image_size=32, hidden=64)
    config = load("default", ["clients_per_round=1", *settings])
    sizes = np.array([5, 6, 7])
    return Roster(
        config, "pictures", ("a", "b"), shape, names="xyz", domains=["", "", ""], partition="natural",
        heldout=np.array([False, False, True]), train_sizes=sizes, test_sizes=sizes - 4, **told,
    )  # fmt: skip


def test_the_header_says_what_is_run_and_where_it_goes() -> None:
    text = "\n".join(header(roster("precision=bfloat16", dropped=4), Path("runs/here")))
    for part in (
        "pep on pictures", "2 train / 1 held out / 4 dropped", "partition natural", "18 to train, 6 to test",
        "2 classes", "8 blocks, width 32, 32 pixels, embedded weights, bfloat16", "folder    runs/here",
    ):  # fmt: skip
        assert part in text
    assert "dropped" not in "\n".join(header(roster(), Path("x")))
    assert "engine" not in text
    clustered = header(roster("engine=ray", "engine.address=head:6379"), Path("x"))
    assert "engine    Ray at head:6379" in clustered


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


class Watching(Silent):
    """Remembers the stages it is told of."""

    def __init__(self) -> None:
        self.stages: dict[str, list[tuple[int, int]]] = {}

    def stage(self, name: str, done: int = 0, total: int = 0) -> None:
        self.stages.setdefault(name, []).append((done, total))


def test_a_run_tells_what_it_does_and_how_far_it_is(tmp_path: Path) -> None:
    watching = Watching()
    fedcue.run(fedcue.configure("default", SMALL), tmp_path / "run", observer=watching)
    assert list(watching.stages)[:3] == ["reading the data", "loading the backbone", "decoding images"]
    for name in ("decoding images", "warm start", "training", "testing"):
        told = watching.stages[name]
        assert told[0][0] in (0, 1), name
        assert told[-1][0] == told[-1][1] > 0, f"{name} is told to its end"
    assert {"prototypes on test images", "looking inside the model"} <= set(watching.stages)


def test_in_a_terminal_python_shows_progress_and_elsewhere_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = fedcue.configure("default", [*SMALL, "method=head", "rounds=1"])
    fedcue.run(config, tmp_path / "silent")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    fedcue.run(config, tmp_path / "shown")
    out, shown = capsys.readouterr()
    assert out == "", "results of a program may be piped"
    assert "head on digits: 1 round of 2 clients" in shown
    assert "decoding images" in shown


def test_a_stage_has_a_bar_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True, width=120)
    with RunProgress(console) as progress:
        for done in range(4):
            progress.stage("decoding images", done, 3)
        bar = progress.progress.tasks[1]
        assert (bar.description, bar.completed, bar.total, bar.visible) == ("decoding images", 3, 3, True)
        progress.stage("testing")
        bar = progress.progress.tasks[1]
        assert (bar.description, bar.completed, bar.total) == ("testing", 0, None)
    assert "testing" in capsys.readouterr().out


def test_a_notebook_gets_a_display_only_where_it_can_draw_one(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Console(force_jupyter=True)
    for found in (object(), None):
        monkeypatch.setattr(progress_module, "find_spec", lambda name, found=found: found)
        assert LiveDisplay(notebook).live == (found is not None)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"train_loss": 1.25, "epsilon": 2.0}, "loss 1.250"),
        ({"train_loss": None, "epsilon": 2.0}, "epsilon 2.00"),
        ({"train_loss": None}, "loss not told"),
    ],
)
def test_a_loss_that_clients_keep_to_themselves_is_not_missed(record: dict[str, float], words: str) -> None:
    assert loss_text(record) == words

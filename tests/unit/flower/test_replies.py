"""Whatever one node says, the run goes on without its client, which is named."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from google.protobuf.message import DecodeError
from support.canned_nodes import TRAIN_SIZE, canned, said
from support.memory_grid import MemoryGrid, Node

from fedcue.errors import FedcueError
from fedcue.flower import engine
from fedcue.flower.expected import LARGEST
from fedcue.flower.messages import EVALUATE, JOIN, TRAIN, WARM_UP
from fedcue.flower.reasons import cleaned
from fedcue.flower.server_app import Deployment, serve
from fedcue.rounds.observers import Silent
from fedcue.rounds.result import Result
from fedcue.types import pack, unpack

SETTINGS = "partition.clients=4 clients_per_round=4 rounds=2 heldout=0 snapshots=[] training.epochs=1"
LIAR = 2


def run(folder: Path, *nodes: Node, settings: str = "method=fedvpt", **more: Any) -> Result:
    grid = MemoryGrid({100 + place: node for place, node in enumerate(nodes)})
    options = {"out": str(folder / "run"), "poll": 0.001, "node_timeout": 0.05, "round_timeout": 5.0, **more}
    return serve(grid, Deployment.of({"settings": f"{SETTINGS} {settings}", **options}), Silent())


def with_liar(folder: Path, lie: Any, settings: str = "method=fedvpt") -> Result:
    result = run(folder, canned([0, 1, 3]), canned([LIAR], lie), settings=settings)
    for name, tensor in load_file(result.folder / "model.safetensors").items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name
    return result


def reasons(result: Result, step: str) -> dict[int, str]:
    return {
        failure["client"]: failure["reason"]
        for record in result.rounds
        for failure in record.get("failures", [])
        if failure["step"] == step
    }


def words(kind: str, **values: Any) -> Callable[[str, RecordDict], RecordDict]:
    return lambda asked, reply: said(reply, lambda lines: lines[0].update(values)) if asked == kind else reply


def sends(kind: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[..., RecordDict]:
    def lie(asked: str, reply: RecordDict) -> RecordDict:
        if asked == kind:
            tensors = dict(unpack(reply["tensors-0"]["data"].data))
            change(tensors)
            data = pack(tensors)
            reply["tensors-0"] = ArrayRecord({"data": Array("uint8", (len(data),), "safetensors", data)})
        return reply

    return lie


LIES = {
    "a huge score": (words(EVALUATE, score=[1e30, 1e30]), "evaluate", "whole number"),
    "more images": (words(TRAIN, samples=10**6), "train", f"joined with {TRAIN_SIZE}"),
    "escapes": (words(TRAIN, failure="\x1b[2Jgone"), "train", r"^\?\[2Jgone$"),
}
"""One of each kind; ``test_read_replies.py`` tries many more, without a run around them."""


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_words_is_a_named_failure(lie: str, tmp_path: Path) -> None:
    change, step, reason = LIES[lie]
    found = reasons(with_liar(tmp_path, change), step)
    assert found.keys() == {LIAR}
    assert re.search(reason, found[LIAR]), found
    assert len(found[LIAR]) <= 200


def test_finite_poison_is_a_named_failure(tmp_path: Path) -> None:
    """One at the warm start, one in a round; ``test_read_replies.py`` tries many more, without a run."""
    huge = sends(WARM_UP, lambda tensors: tensors["centroids"].fill_(3.4e38))
    failures = with_liar(tmp_path / "first", huge, "method=ncm").summary["warm_up_failures"]
    assert [failure["client"] for failure in failures] == [LIAR]
    assert "cannot be" in failures[0]["reason"]
    huge = sends(TRAIN, lambda tensors: tensors["head"].fill_(3.4e38))
    found = reasons(with_liar(tmp_path / "later", huge), "train")
    assert found.keys() == {LIAR}
    assert "cannot be" in found[LIAR]


def test_a_message_that_cannot_be_parsed_takes_no_other_with_it(tmp_path: Path) -> None:
    """Nor does one that claims to be the reply to another node's message."""

    class Poisoned(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = super().pull_messages(message_ids)
            for message in found:
                if message.metadata.src_node_id == 101 and message.metadata.message_type == TRAIN:
                    raise DecodeError("Error parsing message")
            return found

    grid = Poisoned({100: canned([0, 1, 3]), 101: canned([LIAR])})
    options = {"out": str(tmp_path / "run"), "poll": 0.001, "node_timeout": 0.05, "round_timeout": 5.0}
    settings = Deployment.of({"settings": f"{SETTINGS} method=fedvpt", **options})
    assert reasons(serve(grid, settings, Silent()), "train") == {
        LIAR: "its node's reply cannot be read (DecodeError)"
    }


def test_reasons_are_short_and_hold_no_paths() -> None:
    text = "cannot read '/srv/Jane Doe/x 1.png' or /home/jane/y.png or C:\\scans\\z.png \x1b[31m" + "!" * 999
    told = cleaned(text)
    assert told.startswith("cannot read (a path) or (a path) or (a path) ?[31m!!")
    assert len(told) == 200
    assert cleaned(told) == told


def test_a_run_starts_without_those_who_are_missing_and_they_join_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = canned([3])
    late.connected = False

    class Arrive(Silent):
        def finished_round(self, record: Any) -> None:
            late.connected = True

    grid = MemoryGrid({100: canned([0, 1, 2]), 101: late})
    options = {"out": str(tmp_path / "run"), "poll": 0.001, "node_timeout": 0.05, "round_timeout": 5.0}
    settings = f"{SETTINGS} method=fedvpt clients_per_round=3 rounds=6"
    with pytest.raises(FedcueError, match=r"missing: 3\..*Give min_clients"):
        serve(grid, Deployment.of({"settings": settings, **options}), Silent())
    result = serve(grid, Deployment.of({"settings": settings, "min-clients": 3, **options}), Arrive())
    assert "The run goes without clients that are not there: 3." in caplog.text
    assert 3 not in result.rounds[0]["clients"]
    assert any(3 in record["clients"] for record in result.rounds)
    assert set(json.loads((result.folder / "joined.json").read_text())) == {"0", "1", "2", "3"}
    assert "3,client-3," in (result.folder / "clients.csv").read_text()


def test_a_client_stays_with_the_key_of_its_first_node(tmp_path: Path) -> None:
    """Also in the next run, and when that node is absent; a node that comes back with another size is refused."""
    one, other, thief = canned([0, 1]), canned([2, 3]), canned([2, 3])
    one.key, other.key, thief.key = b"a", b"b", b"c"
    run(tmp_path, one, other)
    other.connected = False
    with pytest.raises(
        FedcueError, match=r"Node 102 was refused: its client 2 belongs to the node with the key"
    ):
        run(tmp_path, one, other, thief, out=str(tmp_path / "second"))
    assert set(json.loads((tmp_path / "nodes.json").read_text())) == {"0", "1", "2", "3"}


def test_what_a_node_says_when_it_joins_is_checked(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"id": 9}, {"more": 1}]
    for number, values in enumerate(wrong):
        lying = words(JOIN, **values)
        with pytest.raises(FedcueError, match=r"Node 101 was refused: it"):
            run(tmp_path / str(number), canned([0, 1, 3]), canned([LIAR], lying), node_timeout=0.001)


def test_a_name_is_written_out_where_a_terminal_would_obey_it(tmp_path: Path) -> None:
    result = with_liar(tmp_path, words(JOIN, name="\x1b[2J\ud800"))
    assert "2,\\x1b[2J\\ud800," in (result.folder / "clients.csv").read_text()


def test_nothing_but_words_is_read(tmp_path: Path) -> None:
    def lie(kind: str, reply: RecordDict) -> RecordDict:
        return RecordDict({"outcomes": ConfigRecord({"json": [1, 2]})}) if kind == TRAIN else reply

    assert reasons(with_liar(tmp_path, lie), "train") == {LIAR: "outcomes is not a text"}


def test_moments_beside_which_the_ridge_vanishes_end_no_run(tmp_path: Path) -> None:
    """All ones times 2^62: what others sent and the ridge are lost in rounding, and the sum is singular."""
    swallowing = sends(WARM_UP, lambda tensors: _fill_moments(tensors["moments"], 2.0**62))
    with_liar(tmp_path, swallowing, "method=fed3r")


def _fill_moments(half: torch.Tensor, value: float) -> None:
    width = math.isqrt(2 * len(half))
    diagonal = torch.arange(1, width + 1).cumsum(0) - 1
    half.fill_(value * math.sqrt(2))[diagonal] = value


def test_a_model_that_is_not_finite_ends_a_run_in_words(tmp_path: Path) -> None:
    """A generator that one client moves as far as it may, round after round, overflows in the end."""
    huge = sends(TRAIN, lambda tensors: tensors["prompt_change"].fill_(LARGEST))
    settings = "method=pfedpg method.server_optimiser=sgd method.server_lr=1 rounds=9"
    with pytest.raises(
        FedcueError, match=r"After round \d the model is not finite: basis, .*leave out a client"
    ):
        with_liar(tmp_path, huge, settings)


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        ({"spent": LARGEST}, "would spend epsilon="),
        ({"train_size": 10**9}, "too large for 1000000060 images"),
    ],
)
def test_who_claims_too_much_under_privacy_is_left_out(
    claim: dict[str, Any], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("dp_accounting")
    honest, liar = canned([0, 1, 3]), canned([LIAR], words(JOIN, **claim))
    settings = "method=fedvpt privacy=dp privacy.max_epsilon=8 clients_per_round=3"
    with pytest.raises(FedcueError, match=f"Client 2: .*{why}"):
        run(tmp_path, honest, liar, settings=settings)
    result = run(tmp_path, honest, liar, settings=settings, min_clients=3)
    assert {tuple(sorted(record["clients"])) for record in result.rounds} == {(0, 1, 3)}
    assert result.summary["privacy"]["epsilon"] == pytest.approx(8, rel=1e-3)


def test_nobody_waits_for_a_node_that_is_connected_and_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked to join, again and again, while the others work."""
    monkeypatch.setattr(engine, "ASK_AGAIN", 0.0)
    asked = []

    def silent(message: Message, context: Any) -> Any:
        asked.append(message.metadata.message_type)

    started = time.monotonic()
    run(tmp_path, canned([0, 1, 2, 3]), Node({}, silent), round_timeout=60.0)
    assert time.monotonic() - started < 55
    assert asked == [JOIN]


def test_a_node_that_joins_slowly_is_waited_for_if_it_is_needed(tmp_path: Path) -> None:
    """Longer than for nodes to connect, as long as for a round: it may have many images to read."""

    class Slow(MemoryGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            return super().pull_messages(message_ids) if time.monotonic() - started > 0.5 else []

    started, grid = time.monotonic(), Slow({100: canned([0, 1]), 101: canned([2, 3])})
    options = {"out": str(tmp_path / "run"), "poll": 0.001, "node_timeout": 0.05, "round_timeout": 30.0}
    result = serve(grid, Deployment.of({"settings": f"{SETTINGS} method=fedvpt", **options}), Silent())
    assert result.summary["rounds"] == 2

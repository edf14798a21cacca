"""Random replies of one node, well-formed and not, to every kind of message: no run ends, nothing gets past."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load_file
from support.canned_nodes import TEST_SIZE, TRAIN_SIZE, canned
from support.memory_grid import MemoryGrid

from fedcue.errors import ClientError
from fedcue.flower.expected import LARGEST, Expected
from fedcue.flower.messages import EVALUATE, TRAIN, WARM_UP, Member, Outcome, write_members, write_outcomes
from fedcue.flower.replies import MOST_IMAGES, read_members, read_outcomes
from fedcue.flower.server_app import Deployment, serve
from fedcue.privacy.mechanisms import Privacy
from fedcue.rounds.observers import Silent
from fedcue.types import TensorSpec, pack

METHODS = ("fedvpt", "pep", "cue", "sgpt", "pfedpg", "ncm", "fed3r", "fedcof")
MEMBER = Member(0, "a", "b", False, TRAIN_SIZE, TEST_SIZE)
NUMBERS = st.sampled_from([0, 1, -1, 2**62, 10**400, 1e30, 1.7e308, float("nan"), float("inf"), True])
VALUES = st.recursive(
    st.none() | NUMBERS | st.text(max_size=20) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("client", "samples", "loss", "score", "failure")
SPECS = (
    TensorSpec("head", (3, 2), returned=True, kind="shared"),
    TensorSpec("sums", (1, 3, 2), returned=True, kind="class_sums", rows=1),
    TensorSpec("counts", (3,), returned=True, kind="class_counts", dtype=torch.int64),
)
FLOATS = st.sampled_from([0.0, 1.0, -3.4e38, 3.4e38, LARGEST, 2 * LARGEST, float("nan"), float("inf")])


@st.composite
def lies(draw: Any) -> tuple[str, dict[str, Any], bytes | None, bool]:
    """Return to which message, which fields and which bytes a node answers wrongly, and whether at all."""
    kind = draw(st.sampled_from([WARM_UP, TRAIN, EVALUATE]))
    words = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))
    data = draw(st.none() | st.binary(max_size=64) | _packed())
    return kind, words, data, draw(st.booleans())


@st.composite
def _packed(draw: Any) -> bytes:
    value = draw(FLOATS)
    return pack({draw(st.sampled_from(["head", "holds", "centroids"])): torch.full((2, 2), value)})


def told(reply: RecordDict, words: dict[str, Any], data: bytes | None, whole: bool) -> RecordDict:
    """Return a reply with some of its fields and bytes exchanged; with ``whole`` all of its text."""
    lines = json.loads(str(reply["outcomes"]["json"]))
    text = json.dumps(list(words.values()) if whole else [{**line, **words} for line in lines])
    reply["outcomes"] = ConfigRecord({"json": text})
    if data is not None:
        reply["tensors-0"] = ArrayRecord({"data": Array("uint8", (len(data),), "safetensors", data)})
    return reply


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(lie=lies())
def test_no_reply_ends_a_run(method: str, lie: tuple[str, dict[str, Any], bytes | None, bool]) -> None:
    kind, words, data, whole = lie

    def answer(asked: str, reply: RecordDict) -> RecordDict:
        return told(reply, words, data, whole) if asked == kind else reply

    with tempfile.TemporaryDirectory() as folder:
        grid = MemoryGrid({1: canned([0, 1]), 2: canned([2], answer)})
        text = "partition.clients=3 clients_per_round=3 rounds=1 heldout=0 snapshots=[] training.epochs=1"
        options = {"out": str(Path(folder) / "run"), "poll": 0.001, "node_timeout": 0.1, "round_timeout": 2.0}
        result = serve(grid, Deployment.of({"settings": f"{text} method={method}", **options}), Silent())
        for name, tensor in load_file(result.folder / "model.safetensors").items():
            assert not tensor.is_floating_point() or tensor.isfinite().all(), name
        failed = result.summary.get("warm_up_failures", [])
        failed = [*failed, *(failure for record in result.rounds for failure in record.get("failures", []))]
        assert {failure["client"] for failure in failed} <= {2}
        assert all(len(failure["reason"]) <= 200 for failure in failed)


@settings(max_examples=300, deadline=None)
@given(words=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), tested=st.booleans())
def test_what_passes_is_what_was_agreed_upon(words: dict[str, Any], tested: bool) -> None:
    outcome = Outcome(0, _tensors(1.0, 1), TRAIN_SIZE, 0.5, (1, TEST_SIZE))
    reply = told(write_outcomes([outcome]), words, None, False)
    expected = Expected(() if tested else SPECS, Privacy(), 1, "test" if tested else None)
    found = read_outcomes(reply, [0], expected, {0: MEMBER})[0]
    if not isinstance(found, Outcome):
        assert len(found.reason) <= 200
        assert found.reason.isprintable()
    elif tested:
        assert found.score is not None
        assert 0 <= found.score[0] <= found.score[1] == TEST_SIZE
    else:
        assert found.samples == TRAIN_SIZE
        assert found.loss is None or abs(found.loss) <= LARGEST
    assert isinstance(found, Outcome) or words


@settings(max_examples=300, deadline=None)
@given(value=st.floats(width=32) | FLOATS, count=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 8))
def test_tensors_that_pass_stay_finite_when_they_are_summed(value: float, count: int) -> None:
    tensors = _tensors(value, count)
    try:
        Expected(SPECS, Privacy(), 1).check(tensors, TRAIN_SIZE)
    except ClientError:
        assert abs(value) > LARGEST or value != value or not 0 < 3 * count <= TRAIN_SIZE
        return
    assert abs(value) <= LARGEST * max(count, 1)
    assert 0 <= 3 * count <= TRAIN_SIZE
    summed = sum(tensors["sums"].double() for _ in range(1000))
    assert torch.isfinite(torch.as_tensor(summed).float().square()).all()


@settings(max_examples=300, deadline=None)
@given(words=st.dictionaries(st.sampled_from([*vars(MEMBER), "more"]), VALUES, max_size=3))
def test_who_joins_says_what_is_asked(words: dict[str, Any]) -> None:
    reply = write_members([MEMBER])
    line = {**json.loads(str(reply["members"]["json"]))[0], **words}
    try:
        (member,) = read_members(RecordDict({"members": ConfigRecord({"json": json.dumps([line])})}), 3)
    except ClientError:
        refused = True
    else:
        refused = False
    if refused:
        assert words, "what was asked for is refused"
        return
    assert 0 <= member.id < 3
    assert 1 <= member.train_size <= MOST_IMAGES
    assert member.name.isprintable()


def _tensors(value: float, count: int) -> dict[str, torch.Tensor]:
    head = torch.full((3, 2), min(max(value, -LARGEST), LARGEST)) if value == value else torch.zeros(3, 2)
    counts = torch.full((3,), count, dtype=torch.int64)
    return {"head": head, "sums": torch.full((1, 3, 2), value), "counts": counts}

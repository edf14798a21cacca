"""What is read of a node's words: at the edge of what was agreed upon, and just beyond it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch
from support.canned_nodes import TEST_SIZE, TRAIN_SIZE, members, said, tensors
from support.tables import roster_with

from fedcue.errors import ClientError
from fedcue.flower.expected import LARGEST, Expected, expected_replies
from fedcue.flower.messages import Member, Outcome, write_members, write_outcomes
from fedcue.flower.replies import MOST_IMAGES, NAME, read_members, read_outcomes
from fedcue.privacy.mechanisms import Privacy
from fedcue.rounds.engine import Failure
from fedcue.types import TensorSpec

SPECS = (TensorSpec("head", (3, 2), returned=True, kind="shared"),)
VALIDATION_SIZE = 3
MEMBER = replace(members([0])[0], validation_size=VALIDATION_SIZE)


def trained(**values: Any) -> Outcome | Failure:
    """Return what is read of a client that trained and says ``values`` instead of the truth."""
    reply = write_outcomes([Outcome(0, tensors(SPECS), TRAIN_SIZE, 0.5)])
    said(reply, lambda lines: lines[0].update(values))
    return read_outcomes(reply, [0], Expected(SPECS, Privacy(), 1), {0: MEMBER})[0]


def scored(score: Any, on: str = "test") -> Outcome | Failure:
    """Return what is read of a client that was tested and says ``score``."""
    reply = write_outcomes([Outcome(0, score=(1, TEST_SIZE))])
    said(reply, lambda lines: lines[0].update(score=score))
    return read_outcomes(reply, [0], Expected((), Privacy(), 1, on), {0: MEMBER})[0]  # type: ignore[arg-type]


def joined(*changes: dict[str, Any], clients: int = 2) -> list[Member]:
    """Return who is read of a node with one client for each of the changes."""
    reply = write_members(members(range(len(changes))))
    said(reply, lambda lines: [{**line, **change} for line, change in zip(lines, changes, strict=True)])
    return read_members(reply, clients)


def test_what_was_agreed_upon_is_taken() -> None:
    found = trained()
    assert isinstance(found, Outcome)
    assert (found.client, found.samples, found.loss) == (0, TRAIN_SIZE, 0.5)
    assert torch.equal(found.tensors["head"], tensors(SPECS)["head"])
    for loss in (None, 0, -LARGEST, LARGEST):
        assert isinstance(trained(loss=loss), Outcome)
    for right in (0, TEST_SIZE):
        assert scored([right, TEST_SIZE]) == Outcome(0, score=(right, TEST_SIZE))
    assert scored([1, VALIDATION_SIZE], "validation") == Outcome(0, score=(1, VALIDATION_SIZE))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"samples": TRAIN_SIZE + 1}, f"claims {TRAIN_SIZE + 1} images, but joined with {TRAIN_SIZE}"),
        ({"samples": TRAIN_SIZE - 1}, f"claims {TRAIN_SIZE - 1} images, but joined with {TRAIN_SIZE}"),
        ({"samples": float(TRAIN_SIZE)}, "number of images is not a whole number"),
        ({"samples": MOST_IMAGES + 1}, "number of images is not a whole number"),
        ({"loss": 1.0001 * LARGEST}, "its loss"),
        ({"loss": 10**400}, "its loss"),
        ({"loss": math.nan}, "its loss"),
        ({"loss": True}, "its loss"),
        ({"loss": "0.5"}, "its loss"),
        ({"failure": "x" * 5000}, r"^x{197}\.\.\.$"),
        ({"failure": "x" * 10**6}, "says too much"),
        ({"failure": "\x1b[2Jgone"}, r"^\?\[2Jgone$"),
        ({"failure": "\ud800"}, r"^\?$"),
        ({"client": 1}, "does not speak of every client, once, and of no other"),
        ({"client": False}, "does not speak of every client, once, and of no other"),
    ],
)
def test_a_lie_about_training_is_a_named_failure(values: dict[str, Any], reason: str) -> None:
    found = trained(**values)
    assert isinstance(found, Failure)
    assert re.search(reason, found.reason), found


@pytest.mark.parametrize(
    ("score", "on", "reason"),
    [
        ([1, TEST_SIZE + 1], "test", f"on {TEST_SIZE + 1} images, but joined with {TEST_SIZE}"),
        ([1, TEST_SIZE - 1], "test", f"on {TEST_SIZE - 1} images, but joined with {TEST_SIZE}"),
        ([1, TEST_SIZE], "validation", f"on {TEST_SIZE} images, but joined with {VALIDATION_SIZE}"),
        ([TEST_SIZE + 1, TEST_SIZE], "test", f"whole number from 0 to {TEST_SIZE}"),
        ([-1, TEST_SIZE], "test", f"whole number from 0 to {TEST_SIZE}"),
        ([True, TEST_SIZE], "test", "whole number"),
        ([1e30, 1e30], "test", "whole number"),
        ([1], "test", "it sent no score"),
        ("all", "test", "it sent no score"),
    ],
)
def test_a_lie_about_a_test_is_a_named_failure(score: Any, on: str, reason: str) -> None:
    found = scored(score, on)
    assert isinstance(found, Failure)
    assert reason in found.reason


POISON = [
    ("fedvpt", lambda t: t["head"].fill_(3.4e38), "cannot be"),
    ("fedvpt", lambda t: t["head"].fill_(1.0001 * LARGEST), "cannot be"),
    ("ncm", lambda t: t["centroids"].fill_(3.4e38), "cannot be"),
    ("cue", lambda t: t["moments"].fill_(3.4e38), "cannot be"),
    ("ncm", lambda t: t["holds"].fill_(2**62), f"joined with {TRAIN_SIZE}"),
    ("ncm", lambda t: t["holds"].fill_(-1), f"joined with {TRAIN_SIZE}"),
    ("ncm", lambda t: t["holds"].fill_(3), f"count 30 images, but it joined with {TRAIN_SIZE}"),
    ("ncm", lambda t: t["holds"].zero_(), "cannot be"),
    ("sgpt", lambda t: t["counts"].fill_(2**62), "cannot be"),
    ("sgpt", lambda t: t["counts"].fill_(-1), "cannot be"),
    ("pfedpg", lambda t: t["prompt_change"].fill_(-3.4e38), "cannot be"),
]


@pytest.mark.parametrize(("method", "change", "reason"), POISON)
def test_finite_numbers_that_no_client_can_have_are_named(method, change, reason) -> None:
    first, later, _ = expected_replies(roster_with(f"method={method}", "training.epochs=1"))
    expected = first if method in ("ncm", "cue") else later
    honest = dict(tensors(expected.specs))
    expected.check(honest, TRAIN_SIZE)
    change(honest)
    with pytest.raises(ClientError, match=reason):
        expected.check(honest, TRAIN_SIZE)


def test_who_joins_is_taken_to_the_edge_of_what_is_allowed() -> None:
    edge = {"id": 1, "name": "n" * NAME, "train_size": 1, "test_size": 0, "spent": LARGEST}
    assert [member.id for member in joined({}, edge)] == [0, 1]
    assert joined({"train_size": MOST_IMAGES, "identity": 64 * "a"})[0].identity == 64 * "a"


@pytest.mark.parametrize(
    "changes",
    [
        ({"id": 2},),
        ({"id": -1},),
        ({"id": True},),
        ({}, {"id": 0}),
        ({}, {}, {}),
        ({"train_size": 0},),
        ({"train_size": MOST_IMAGES + 1},),
        ({"test_size": -1},),
        ({"validation_size": MOST_IMAGES + 1},),
        ({"name": "n" * (NAME + 1)},),
        ({"domain": 3},),
        ({"heldout": 1},),
        ({"spent": -1.0},),
        ({"spent": math.inf},),
        ({"spent": True},),
        ({"identity": 63 * "a"},),
        ({"identity": 64 * "A"},),
        ({"more": 1},),
        (),
    ],
)
def test_who_joins_with_anything_else_is_refused(changes: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ClientError, match=r"^(it|its) "):
        joined(*changes)

"""Secure sums over a grid in this process: the simulator's bits, whoever falls silent at whichever step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support import SMALL
from test_run import without_times

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flwr.app import Context, Message
from support.memory_grid import MemoryGrid, Node, nodes
from test_flower_in_memory import Stop, deployment

import fedcue
from fedcue.clients.host import Host
from fedcue.errors import ClientError, FedcueError
from fedcue.flower.client_app import app
from fedcue.flower.messages import SECURE, TRAIN, WARM_UP, read_bytes
from fedcue.flower.server_app import serve
from fedcue.privacy.guard import simulated_stream
from fedcue.record.folder import read_metrics
from fedcue.rounds.observers import Silent
from fedcue.secure.messages import Confirmation, MaskedInput, Revealed, SealedShares

SIZES = ["heldout=0", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2", "evaluation.every=0"]
SECURELY = [*SIZES, "aggregate=secure", "aggregate.threshold=0.5"]
ALL = ["method=head", "rounds=1", "partition.clients=7", "clients_per_round=7"]
STEPS = ("train", SealedShares.kind, MaskedInput.kind, Confirmation.kind, Revealed.kind)
"""Where a client may fall silent: the kinds of its messages (the first is answered to training)."""


def step_of(reply: Message, number: int = 0) -> int:
    """Return the kind of the first client's message in a reply."""
    return read_bytes(reply.content, f"message-{number}")[4]


def silent_from(step: object) -> Callable[[Message, Context], Message | None]:
    """Return a node that works as it should until it reaches a step, and is never heard of again."""
    gone: list[bool] = []

    def answer(message: Message, context: Context) -> Message | None:
        kind = message.metadata.message_type
        if kind not in (WARM_UP, TRAIN, SECURE):
            return app(message, context)
        reply = None if gone else app(message, context)
        if (
            reply is None
            or (step == "train" and kind == TRAIN)
            or (kind == SECURE and step_of(reply) == step)
        ):
            gone.append(True)
            return None
        return reply

    return answer


def simulated(folder: Path, settings: list[str], failed: set[int] = frozenset()) -> fedcue.Result:
    """Run the simulator with some clients failing in round 1."""
    train = Host.train

    def failing(self: Host, download: Any, memory: Any) -> Any:
        if download.client in failed and download.round == 0:
            raise ClientError("it failed")
        return train(self, download, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "train", failing)
        return fedcue.run(fedcue.configure("default", [*SMALL, *settings]), folder)


@pytest.fixture(scope="module")
def everybody(tmp_path_factory: pytest.TempPathFactory) -> fedcue.Result:
    """The simulator's round over all seven clients."""
    return simulated(tmp_path_factory.mktemp("simulated") / "run", [*SECURELY, *ALL])


def assert_same(one: fedcue.Result, other: fedcue.Result) -> None:
    for name in ("model.safetensors", "clients.csv"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name


@pytest.mark.parametrize("method", ["pep", "sgpt", "ppt"])
def test_a_deployment_ends_with_the_bits_of_the_simulator(method: str, tmp_path: Path) -> None:
    settings = [
        *SECURELY,
        f"method={method}",
        "method.weighting=size",
        *(["method.groups=4"] * (method == "sgpt")),
    ]
    expected = simulated(tmp_path / "simulated", settings)
    result = serve(MemoryGrid(nodes(2, tmp_path)), deployment(tmp_path / "deployed", *settings), Silent())
    assert_same(result, expected)
    assert without_times(read_metrics(result.folder)) == without_times(read_metrics(expected.folder))


def test_one_client_may_drop_out_in_each_step_and_the_sum_is_right(tmp_path: Path) -> None:
    """Those silent before their words came are left out; those silent afterwards are in the sum."""
    settings = [*SECURELY, "method=head", "rounds=1", "partition.clients=12", "clients_per_round=12"]
    members = nodes(12, tmp_path)
    for number, step in enumerate(STEPS):
        members[100 + number].answer = silent_from(step)
    limits = {"round_timeout": 0.5, "step_timeout": 0.5}
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *settings, **limits), Silent())
    failures = {failure["client"]: failure["reason"] for failure in result.rounds[0]["failures"]}
    assert failures == dict.fromkeys((0, 1, 2), "no answer within 0.5 s")
    assert_same(result, simulated(tmp_path / "simulated", settings, {0, 1, 2}))


@pytest.mark.parametrize("step", STEPS)
def test_with_fewer_than_the_threshold_the_round_is_drawn_again(
    step: object, tmp_path: Path, everybody: fedcue.Result
) -> None:
    """Four of seven are silent at one step of the first attempt; nothing comes of it, and then the sum is right."""
    members, silent = nodes(7, tmp_path), Counter()

    def shy(message: Message, context: Context) -> Message | None:
        place = context.node_config["partition-id"]
        reply = app(message, context)
        kind = message.metadata.message_type
        here = kind == TRAIN if step == "train" else kind == SECURE and step_of(reply) == step
        silent[place] += here
        return None if here and silent[place] == 1 else reply

    for number in range(4):
        members[100 + number].answer = shy
    limits = {"round_timeout": 0.3, "step_timeout": 0.3}
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *SECURELY, *ALL, **limits), Silent())
    attempts = {failure["attempt"] for failure in result.rounds[0]["failures"]}
    assert attempts == {0}
    assert {failure["client"] for failure in result.rounds[0]["failures"]} == set(range(7))
    assert_same(result, everybody)


@pytest.mark.parametrize("after", range(1, 6))
def test_a_server_that_dies_in_a_sum_goes_on_with_it(
    after: int, tmp_path: Path, everybody: fedcue.Result
) -> None:
    """It dies when the first node has answered a step; nobody trains a second time once keys are shared."""
    members, trained, answers = nodes(3, tmp_path), Counter(), []

    def watched(message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN:
            trained[context.node_config["partition-id"]] += 1
        reply = app(message, context)
        if message.metadata.message_type in (TRAIN, SECURE) and context.node_config["partition-id"] == 0:
            answers.append(message)
            if len(answers) == after:
                raise Stop
        return reply

    for node in members.values():
        node.answer = watched
    run = deployment(tmp_path / "run", *SECURELY, *ALL)
    with pytest.raises(Stop):
        serve(MemoryGrid(members, fatal=(Stop,)), run, Silent())
    result = serve(MemoryGrid(members), run, Silent())
    assert_same(result, everybody)
    assert trained[0] == (2 if after == 1 else 1)


def test_a_server_that_dies_before_its_checkpoint_takes_the_sum_it_has(
    tmp_path: Path, everybody: fedcue.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client is asked again: a second sum over other survivors would show a single update."""

    def full(*_: Any) -> None:
        raise FedcueError("the disk is full")

    members, run = nodes(3, tmp_path), deployment(tmp_path / "run", *SECURELY, *ALL)
    with monkeypatch.context() as patch:
        patch.setattr("fedcue.record.folder.RunFolder.append_metrics", full)
        with pytest.raises(FedcueError, match="the disk is full"):
            serve(MemoryGrid(members), run, Silent())
    grid = MemoryGrid(members)
    result = serve(grid, run, Silent())
    assert not {kind for kind, _ in grid.sent} & {TRAIN, SECURE}
    assert_same(result, everybody)


def recorded(members: dict[int, Node]) -> list[Message]:
    """Let every node's replies be kept."""
    wire: list[Message] = []

    def answer(message: Message, context: Context) -> Message:
        wire.append(app(message, context))
        return wire[-1]

    for node in members.values():
        node.answer = answer
    return wire


def test_what_the_server_receives_of_one_client_is_uniform_and_the_sum_exact(
    tmp_path: Path, everybody: fedcue.Result
) -> None:
    members = nodes(7, tmp_path)
    wire = recorded(members)
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *SECURELY, *ALL), Silent())
    assert not [key for reply in wire for key in reply.content if key.startswith("tensors")]
    vectors = [
        np.frombuffer(read_bytes(reply.content, "message-0")[-8 * 1280 :], "<u8")
        for reply in wire
        if "message-0" in reply.content and step_of(reply) == MaskedInput.kind
    ]
    assert [len(vector) for vector in vectors] == [1280] * 7
    for vector in vectors:
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
        assert stats.kstest(vector / 2**64, "uniform").pvalue > 1e-6
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    assert stats.kstest(total / 2**64, "uniform").pvalue > 1e-6  # own masks hide the sum until the last step
    assert_same(result, everybody)
    words = [
        json.loads(str(reply.content["outcomes"]["json"])) for reply in wire if "outcomes" in reply.content
    ]
    assert {line["loss"] for lines in words for line in lines} == {None}


def changed(reply: Message, change: Callable[[bytes], bytes]) -> Message:
    data = read_bytes(reply.content, "message-0")
    array = reply.content["message-0"]["data"]
    array.data = change(data)
    array.shape = (len(array.data),)
    return reply


def test_messages_replayed_reordered_truncated_or_of_others_are_refused_by_name(tmp_path: Path) -> None:
    """Every kind of lie is told by a node of its own in the first step after training; the rest is summed up."""
    members = nodes(12, tmp_path)
    seen: dict[str, bytes] = {}

    def liar(lie: Callable[[bytes], bytes]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if message.metadata.message_type == TRAIN:
                seen[f"keys-{context.node_config['partition-id']}"] = read_bytes(reply.content, "message-0")
            if message.metadata.message_type == SECURE and step_of(reply) == SealedShares.kind:
                return changed(reply, lie)
            return reply

        return answer

    members[104].answer = liar(lambda data: data)
    lies = {
        0: (lambda data: seen["keys-0"], "'Advertisement' was sent where"),
        1: (lambda data: data[:-1], "bytes and should have"),
        2: (
            lambda data: data[:9] + (int.from_bytes(data[9:13]) + 1).to_bytes(4) + data[13:],
            "message of round",
        ),
        3: (
            lambda data: data[:13] + (4).to_bytes(4) + data[17:],
            "A message of client 4 was sent as client 3's",
        ),
        4: (lambda data: data[:17] + bytes(32) + data[49:], "is of another session"),
    }
    for number, (lie, _) in lies.items():
        members[100 + number].answer = liar(lie)
    settings = [*SECURELY, "method=head", "rounds=1", "partition.clients=12", "clients_per_round=12"]
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *settings), Silent())
    reasons = {failure["client"]: failure["reason"] for failure in result.rounds[0]["failures"]}
    assert reasons.keys() == lies.keys()
    for number, (_, words) in lies.items():
        assert words in reasons[number]
    assert_same(result, simulated(tmp_path / "simulated", settings, set(lies)))


def test_a_node_never_sends_words_without_a_sum_nor_takes_part_in_a_lax_one(tmp_path: Path) -> None:
    """The server leaves the sum out, lowers the threshold, or says another round: the node refuses."""

    def without(message: Message) -> None:
        del message.content["session"]

    def lax(change: dict[str, Any]) -> Callable[[Message], None]:
        def of(message: Message) -> None:
            values = json.loads(str(message.content["session"]["json"])) | change
            message.content["session"]["json"] = json.dumps(values)

        return of

    replies = {}

    def tampered(number: int, change: Callable[[Message], None]) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            if message.metadata.message_type == TRAIN:
                change(message)
                replies[number] = app(message, context)
                return replies[number]
            return app(message, context)

        return answer

    members = nodes(7, tmp_path)
    for number, change in enumerate((without, lax({"round": 5}), lax({"fraction_bits": 8}))):
        members[100 + number].answer = tampered(number, change)
    settings = [*SIZES, "aggregate=secure", *ALL, "aggregate.threshold=0.5"]
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *settings), Silent())
    reasons = {failure["client"]: failure["reason"] for failure in result.rounds[0]["failures"]}
    assert reasons[0] == "the server asked for an update, and the settings for a secure sum"
    assert reasons[1] == "the server began a sum of round 5 in round 1"
    assert "the settings allow 4 or more, and the same fixed-point numbers" in reasons[2]
    assert not [key for reply in replies.values() for key in reply.content if key != "outcomes"]


def test_owners_who_know_the_keys_refuse_others(tmp_path: Path) -> None:
    members = nodes(7, tmp_path)
    first = serve(MemoryGrid(members), deployment(tmp_path / "first", *SECURELY, *ALL), Silent())
    joined = json.loads((first.folder / "joined.json").read_text())
    keys = {client: member["identity"] for client, member in joined.items()}
    written = [json.loads(path.read_text()) for path in tmp_path.glob("node-*/identities.json")]
    assert {client: key for own in written for client, key in own.items()} == keys
    assert len(set(keys.values())) == 7
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    (tmp_path / "other.json").write_text(json.dumps({**keys, "3": keys["4"]}))
    for number in range(7):
        members[100 + number].config["identities"] = str(
            tmp_path / ("other.json" if number == 6 else "keys.json")
        )
    result = serve(MemoryGrid(members), deployment(tmp_path / "second", *SECURELY, *ALL), Silent())
    assert [(f["client"], f["reason"]) for f in result.rounds[0]["failures"]] == [
        (6, "the key of client 3 is not the one that its owner knows")
    ]
    for path in tmp_path.rglob("identity.key"):
        assert path.stat().st_mode & 0o077 == 0


def test_checkpoints_after_every_round_are_needed(tmp_path: Path) -> None:
    settings = deployment(tmp_path / "run", *SECURELY, "checkpoint.every=2")
    with pytest.raises(FedcueError, match="aggregate=secure needs checkpoint.every=1"):
        serve(MemoryGrid(nodes(2, tmp_path)), settings, Silent())


def test_clients_add_their_shares_of_the_noise_before_they_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the simulator's streams of noise a deployment ends with its bits; with its own it does not."""
    pytest.importorskip("dp_accounting")
    settings = [
        *SECURELY,
        "method=pep",
        "rounds=1",
        "privacy=dp",
        "privacy.where=distributed",
        "privacy.noise=9",
    ]
    expected = simulated(tmp_path / "simulated", [*settings, "privacy.max_epsilon=50"])
    run = deployment(tmp_path / "run", *settings, "privacy.max_epsilon=50")
    fresh = serve(MemoryGrid(nodes(2, tmp_path / "a")), run, Silent())
    monkeypatch.setattr("fedcue.flower.node.NoiseStream.secret", simulated_stream(0))
    again = deployment(tmp_path / "again", *settings, "privacy.max_epsilon=50")
    repeated = serve(MemoryGrid(nodes(2, tmp_path / "b")), again, Silent())
    assert_same(repeated, expected)
    assert fresh.summary["privacy"]["epsilon"] == expected.summary["privacy"]["epsilon"]
    models = [(result.folder / "model.safetensors").read_bytes() for result in (fresh, expected)]
    assert models[0] != models[1]

"""All methods over an in-memory grid with real serialisation end as the simulator does."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support import SMALL
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from support.data_files import encoded, write_parquet
from support.memory_grid import MemoryGrid, Node, nodes
from test_run import without_times

import fedcue
from fedcue.clients.federation import load_federation
from fedcue.clients.host import Host
from fedcue.errors import ClientError, ConfigError, FedcueError, RunFolderError
from fedcue.flower.client_app import app
from fedcue.flower.memory import MemoryStore
from fedcue.flower.messages import TRAIN, Outcome, write_outcomes
from fedcue.flower.server_app import Deployment, serve
from fedcue.model.backbone import locate
from fedcue.record.folder import RunFolder, read_metrics
from fedcue.registry import METHODS
from fedcue.rounds.observers import Silent
from fedcue.types import ClientMemory, unpack

SETTINGS = [*SMALL, "heldout=1", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2"]


def deployment(out: Path, *settings: str, **more: object) -> Deployment:
    return Deployment.of(
        {
            "settings": " ".join([*SETTINGS, *settings]),
            "out": str(out),
            "poll": 0.001,
            "node_timeout": 1.0,
            **more,
        }
    )


def test_what_needs_all_images_in_one_place_is_not_deployed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a deployment leaves them where they are"):
        serve(MemoryGrid({}), deployment(tmp_path / "deployed", "method=central"), Silent())


@pytest.mark.parametrize("method", [name for name in METHODS.builtin if name != "central"])
def test_every_method_ends_as_in_the_simulator_bit_for_bit(method: str, tmp_path: Path) -> None:
    expected = fedcue.run(
        fedcue.configure("default", [*SETTINGS, f"method={method}"]), tmp_path / "simulated"
    )
    grid = MemoryGrid(nodes(2, tmp_path))
    result = serve(grid, deployment(tmp_path / "deployed", f"method={method}"), Silent())
    for name in ("model.safetensors", "clients.csv"):
        assert (result.folder / name).read_bytes() == (expected.folder / name).read_bytes(), name
    assert without_times(read_metrics(result.folder)) == without_times(read_metrics(expected.folder))
    assert result.mean_accuracy == expected.mean_accuracy
    assert json.loads((result.folder / "model.json").read_text())["clients"]["0"] == {"name": "client-0"}


def spoiled(change: Callable[[dict[str, Tensor]], dict[str, Tensor]], victim: int) -> Callable[..., Message]:
    """Return a ClientApp whose client ``victim`` changes what it sends when it trains."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type != TRAIN:
            return reply
        for number, line in enumerate(json.loads(str(reply.content["outcomes"]["json"]))):
            if line["client"] == victim:
                sent = unpack(reply.content[f"tensors-{number}"]["data"].data)
                other = write_outcomes([Outcome(victim, change(dict(sent)))])
                reply.content[f"tensors-{number}"] = other["tensors-0"]
        return reply

    return answer


FAULTS = {
    "nan": (lambda t: {**t, "head": t["head"] * float("nan")}, "its update of head is not finite"),
    "shape": (
        lambda t: {**t, "head": t["head"][:1]},
        r"its head has shape \[1, 128\] instead of \[10, 128\]",
    ),
    "type": (lambda t: {**t, "head": t["head"].double()}, "its head is of type torch.float64"),
    "name": (lambda t: {**t, "tail": t["head"].clone()}, "its update has an unknown 'tail'"),
    "missing": (lambda t: {name: v for name, v in t.items() if name != "head"}, "its update has no head"),
    "huge": (lambda t: {**t, "head": torch.zeros(5000, 5000)}, "holds 100.* bytes, at most"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> fedcue.Result:
    """The simulator's run in which the first client that is sampled fails, in every round it is in."""
    config = fedcue.configure("default", [*SETTINGS, "method=fedvpt"])
    victim, train = load_federation(config).roster.schedule.drawn(0)[0], Host.train

    def broken(self: Host, download: Any, memory: Any) -> Any:
        if download.client == victim:
            raise ClientError("it is broken")
        return train(self, download, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "train", broken)
        return fedcue.run(config, tmp_path_factory.mktemp("runs") / "broken")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_update_is_left_out_by_name(fault: str, expected: fedcue.Result, tmp_path: Path) -> None:
    change, reason = FAULTS[fault]
    victim = expected.rounds[0]["failures"][0]["client"]
    members = nodes(2, tmp_path)
    members[100 + victim % 2].answer = spoiled(change, victim)
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", "method=fedvpt"), Silent())
    failure = result.rounds[0]["failures"][0]
    assert failure["client"] == victim
    assert re.search(reason, failure["reason"])
    assert (result.folder / "model.safetensors").read_bytes() == (
        expected.folder / "model.safetensors"
    ).read_bytes()


def test_a_bug_at_a_node_is_named_by_type_and_its_traceback_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server learns that it is a bug and of which type; a patient's name in it stays at the node."""
    train = Host.train

    def faulty(self: Host, download: Any, memory: Any) -> Any:
        if download.client == 1:
            raise KeyError("misspelt, by Jane Doe")
        return train(self, download, memory)

    monkeypatch.setattr(Host, "train", faulty)
    settings = ["method=head", "heldout=0", "clients_per_round=5", "rounds=1"]
    result = serve(MemoryGrid(nodes(2, tmp_path)), deployment(tmp_path / "run", *settings), Silent())
    failure = result.rounds[0]["failures"][0]
    assert failure["client"] == 1
    assert failure["reason"] == "a bug in train, KeyError; the node's log has the traceback"
    assert "Jane Doe" not in json.dumps(result.rounds)
    traceback = next(record.exc_text for record in caplog.records if record.exc_info)
    assert "in faulty" in str(traceback)


def test_a_silent_node_and_a_dying_one_are_left_out(tmp_path: Path) -> None:
    def when_training(then: Callable[[], Any]) -> Callable[..., Any]:
        return lambda message, context: (
            then() if message.metadata.message_type == TRAIN else app(message, context)
        )

    def die() -> None:
        raise RuntimeError("out of memory")

    members = nodes(3, tmp_path)
    members[100].answer = when_training(lambda: None)
    members[101].answer = when_training(die)
    settings = deployment(
        tmp_path / "run", "method=head", "heldout=0", "clients_per_round=5", "rounds=1", round_timeout=0.5
    )
    result = serve(MemoryGrid(members), settings, Silent())
    reasons = {failure["client"]: failure["reason"] for failure in result.rounds[0]["failures"]}
    assert reasons == {
        0: "no answer within 0.5 s",
        3: "no answer within 0.5 s",
        1: "its node failed: out of memory",
        4: "its node failed: out of memory",
    }


def test_too_few_clients_end_the_run_with_a_checkpoint_and_it_goes_on_when_they_are_back(
    tmp_path: Path,
) -> None:
    whole = serve(
        MemoryGrid(nodes(2, tmp_path / "a")), deployment(tmp_path / "whole", "method=ppt"), Silent()
    )
    members = nodes(2, tmp_path / "b")
    settings = deployment(tmp_path / "run", "method=ppt", "min_updates=2", node_timeout=0.2)

    class Leave(Silent):
        def finished_round(self, record: Any) -> None:
            members[101].connected = members[100].connected = False

    with pytest.raises(FedcueError, match=r"Fewer than 2 clients were connected for node_timeout=0.2 s"):
        serve(MemoryGrid(members), settings, Leave())
    assert (tmp_path / "run" / "checkpoints" / "round-000001.ckpt").exists()
    for node in members.values():
        node.connected = True
    result = serve(MemoryGrid(members), settings, Silent())
    assert (result.folder / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors"
    ).read_bytes()


class Stop(Exception):  # noqa: N818
    """The server dies."""


@pytest.mark.parametrize("method", ["ppt", "pfedpg"])
def test_a_server_that_dies_after_clients_trained_goes_on_with_the_memories_of_before(
    method: str, tmp_path: Path
) -> None:
    """The clients have trained round 2 when the server dies; the resumed server repeats it."""
    options = (f"method={method}", "heldout=0", "clients_per_round=5", "rounds=3")
    whole = serve(MemoryGrid(nodes(2, tmp_path / "a")), deployment(tmp_path / "whole", *options), Silent())
    members, visits = nodes(2, tmp_path / "b"), []

    def dying(message: Message, context: Context) -> Message:
        reply = app(message, context)
        visits.append(message.metadata.message_type)
        if visits.count(TRAIN) == 2:
            raise Stop
        return reply

    members[101].answer = dying
    grid = MemoryGrid(members, fatal=(Stop,))
    with pytest.raises(Stop):
        serve(grid, deployment(tmp_path / "run", *options), Silent())
    members[101].answer = app
    kept = {path.name for path in (tmp_path / "b").rglob("round-*.safetensors")}
    assert kept == {"round-000000.safetensors", "round-000001.safetensors"}
    result = serve(MemoryGrid(members), deployment(tmp_path / "run", *options), Silent())
    assert (result.folder / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors"
    ).read_bytes()
    assert (result.folder / "clients.csv").read_bytes() == (whole.folder / "clients.csv").read_bytes()
    for folder in (tmp_path / "b").rglob("client-*"):
        assert len(list(folder.iterdir())) == 2


def test_a_client_that_disagrees_is_refused_by_name(tmp_path: Path) -> None:
    members = nodes(2, tmp_path)
    other = tmp_path / "backbone"
    shutil.copytree(locate("embedded").parent, other)
    config = json.loads((other / "config.json").read_text())
    config["pretrained_cfg"] = {**config.get("pretrained_cfg", {}), "mean": [0.1, 0.2, 0.3]}
    (other / "config.json").write_text(json.dumps(config))
    members[101].config["backbone"] = str(other)
    with pytest.raises(FedcueError, match=r"Node 101 was refused: its backbone \(hash.*preprocessing"):
        serve(MemoryGrid(members), deployment(tmp_path / "run", node_timeout=0.1), Silent())
    del members[101].config["backbone"]
    assert serve(MemoryGrid(members), deployment(tmp_path / "run", "method=head"), Silent()).rounds
    with pytest.raises(FedcueError, match="is finished"):
        serve(MemoryGrid(members), deployment(tmp_path / "run", "method=head"), Silent())


def test_a_visit_that_ends_late_takes_no_newer_memory_away(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, "run")
    for loaded, round_ in ((None, 0), (0, 3), (3, 7), (3, 5)):
        store.save(1, loaded, round_, ClientMemory({"prompts": torch.tensor([float(round_)])}))
    assert store.load(1, 7).tensors["prompts"] == 7
    assert store.load(1, 3).tensors["prompts"] == 3
    with pytest.raises(ClientError, match="its memory of round 1 is lost"):
        store.load(1, 0)


def test_whatever_nodes_answer_the_round_goes_on(tmp_path: Path) -> None:
    def nonsense(text: str) -> Callable[..., Message]:
        reply = RecordDict({"outcomes": ConfigRecord({"json": text})})
        return lambda message, context: (
            Message(reply, reply_to=message)
            if message.metadata.message_type == TRAIN
            else app(message, context)
        )

    members = nodes(5, tmp_path)
    for number, text in enumerate(["[[]]", "null", "[" * 5000, '[{"client": "x"}]']):
        members[100 + number].answer = nonsense(text)
    settings = deployment(tmp_path / "run", "method=head", "heldout=0", "clients_per_round=5", "rounds=1")
    result = serve(MemoryGrid(members), settings, Silent())
    assert {failure["client"] for failure in result.rounds[0]["failures"]} == {0, 1, 2, 3}


def test_sites_with_images_of_their_own_join_by_class_name(tmp_path: Path) -> None:
    """Two sites hold different parts of the class list, one of them as a Parquet file; a third holds a class
    nobody knows.
    """
    held = {"a": ["cat", "dog"], "b": ["dog", "owl"], "c": ["dog", "unicorn"]}
    generator = np.random.default_rng(0)
    for site, classes in ("a", held["a"]), ("c", held["c"]):
        for number in range(16):
            name = tmp_path / site / classes[number % 2] / f"{number}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(name)
    labels, pictures = zip(*((n % 2, encoded(n)) for n in range(16)), strict=True)
    write_parquet(tmp_path / "b.parquet", {"label": labels}, pictures, names={"label": held["b"]})
    members = {
        number: Node({"partition-id": number, "data": str(tmp_path / file), "name": f"site {file[0]}"})
        for number, file in enumerate(["a", "b.parquet", "c"])
    }
    settings = {
        "settings": 'rounds=1 clients_per_round=2 data=folder data.classes=\'["cat","dog","owl"]\' '
        "partition=natural heldout=0 training.epochs=1 snapshots=[]",
        "poll": 0.001,
        "node_timeout": 0.5,
    }
    two = dict(list(members.items())[:2])
    result = serve(
        MemoryGrid(two), Deployment.of({**settings, "out": str(tmp_path / "run"), "clients": 2}), Silent()
    )
    rows = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows[1:]] == ["site a", "site b"]
    state = load_file(result.folder / "model.safetensors")
    assert state["has_prototype"].tolist() == [True, True, True]
    with pytest.raises(
        FedcueError, match=r"Node 2 was refused: its data holds a class that the server does not"
    ):
        serve(
            MemoryGrid(members),
            Deployment.of({**settings, "out": str(tmp_path / "x"), "clients": 3}),
            Silent(),
        )


def test_a_round_that_a_dead_server_asked_for_stays_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh noise cannot be drawn again: what clients released before the server died counts twice."""
    pytest.importorskip("dp_accounting")
    options = ("method=fedvpt", "heldout=0", "clients_per_round=5", "privacy=dp", "privacy.noise=9")
    options = (*options, "privacy.max_epsilon=50", "rounds=3")
    whole = serve(MemoryGrid(nodes(2, tmp_path / "a")), deployment(tmp_path / "whole", *options), Silent())
    assert whole.summary["privacy"]["releases_of_one_client"] == 3

    def full(*_: Any) -> None:
        raise FedcueError("the disk is full")

    members, settings = nodes(2, tmp_path / "b"), deployment(tmp_path / "run", *options)
    with monkeypatch.context() as patch:
        patch.setattr("fedcue.record.folder.RunFolder.append_metrics", full)
        with pytest.raises(FedcueError, match="the disk is full"):
            serve(MemoryGrid(members), settings, Silent())
    result = serve(MemoryGrid(members), settings, Silent())
    assert result.summary["privacy"]["releases_of_one_client"] == 4
    assert result.summary["privacy"]["epsilon"] > whole.summary["privacy"]["epsilon"]


def test_a_journal_survives_a_line_cut_short_and_is_not_believed_when_damaged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_release([0, 2], 1)
    with (tmp_path / "releases.jsonl").open("a") as file:
        file.write('{"clients": [1')
    folder.append_release([1], 2)
    assert folder.read_releases() == [([0, 2], 1), ([1], 2)]
    entries = [(3, 1), ([0], -5), ([0], 0), ([], 1), ([0], 10**400), ([2**40], 1), ([0.5], 1), ([True], 1)]
    texts = [json.dumps({"clients": clients, "releases": releases}) for clients, releases in entries]
    for damage in ["{}", "[]", "?", *texts]:
        (tmp_path / "releases.jsonl").write_text(damage + "\n")
        with pytest.raises(RunFolderError, match=r"damaged.*Put it back, or start a new run"):
            folder.read_releases()


@pytest.mark.parametrize("method", ["fedvpt", "ncm", "pep"])
def test_a_private_deployment_without_its_journal_does_not_go_on(tmp_path: Path, method: str) -> None:
    """Nor does one that lost a line of it, or whose journal is another federation's."""
    pytest.importorskip("dp_accounting")
    options = (f"method={method}", "heldout=0", "clients_per_round=5", "privacy=dp")
    options = (*options, "privacy.noise=0.01", "privacy.max_epsilon=1e6")
    members, settings = nodes(2, tmp_path / "a"), deployment(tmp_path / "run", *options)
    serve(MemoryGrid(members), settings, Silent())
    (tmp_path / "run" / "summary.json").unlink()
    journal = tmp_path / "run" / "releases.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    stranger = '{"clients": [99], "releases": 1}\n'
    for damaged in ("", "".join(lines[:-1]), "".join([*lines, stranger])):
        journal.write_text(damaged)
        with pytest.raises(RunFolderError, match=r"what was spent is not known. Put the file back"):
            serve(MemoryGrid(members), settings, Silent())
    journal.write_text("".join(lines))
    assert serve(MemoryGrid(members), settings, Silent()).summary["privacy"]["releases_of_one_client"] > 0


def test_a_deployment_without_checkpoints_does_not_replace_somebody_elses_run(tmp_path: Path) -> None:
    members = nodes(2, tmp_path / "a")
    serve(MemoryGrid(members), deployment(tmp_path / "run", "method=fedvpt"), Silent())
    (tmp_path / "run" / "summary.json").unlink()
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    with pytest.raises(RunFolderError, match="holds an unfinished run with other settings"):
        serve(
            MemoryGrid(members), deployment(tmp_path / "run", "method=head", "checkpoint.every=0"), Silent()
        )
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == before


def test_a_deployment_without_checkpoints_starts_anew_but_a_private_one_needs_them(tmp_path: Path) -> None:
    members = nodes(2, tmp_path / "a")
    settings = deployment(tmp_path / "run", "method=head", "checkpoint.every=0")
    first = serve(MemoryGrid(members), settings, Silent())
    (tmp_path / "run" / "summary.json").unlink()
    again = serve(MemoryGrid(members), settings, Silent())
    assert [record["mean_accuracy"] for record in again.rounds] == [
        record["mean_accuracy"] for record in first.rounds
    ]
    private = deployment(tmp_path / "private", "method=fedvpt", "privacy=dp", "checkpoint.every=0")
    with pytest.raises(FedcueError, match="privacy=dp needs checkpoints"):
        serve(MemoryGrid(members), private, Silent())


def test_a_sample_that_clients_can_compute_is_not_called_secret(tmp_path: Path) -> None:
    settings = deployment(tmp_path / "run", "method=fedvpt", "privacy=dp", "privacy.sample=secret")
    with pytest.raises(FedcueError, match=r"Give privacy.sample=known"):
        serve(MemoryGrid(nodes(2, tmp_path)), settings, Silent())


def test_what_images_released_counts_in_every_later_run(tmp_path: Path) -> None:
    """Another seed and another folder start at what was spent; the node itself refuses what is too much."""
    pytest.importorskip("dp_accounting")
    options = ("method=head", "heldout=0", "clients_per_round=5", "privacy=dp", "privacy.noise=9", "rounds=2")
    members = nodes(2, tmp_path / "a")
    first = serve(MemoryGrid(members), deployment(tmp_path / "1", *options), Silent()).summary["privacy"]
    again = deployment(tmp_path / "2", *options, "seed=1", "privacy.max_epsilon=50")
    second = serve(MemoryGrid(members), again, Silent()).summary["privacy"]
    assert (first["releases_of_one_client"], second["releases_of_one_client"]) == (2, 4)
    assert second["epsilon"] > first["epsilon"]
    lines = (tmp_path / "a" / "node-0" / "releases.jsonl").read_text().splitlines()
    assert len(lines) == 3 * 2 * 2, "three clients, two rounds, two runs"
    assert (tmp_path / "a" / "node-0").stat().st_mode & 0o777 == 0o700
    little = deployment(tmp_path / "3", *options, f"privacy.max_epsilon={1.01 * second['epsilon']}")
    with pytest.raises(
        FedcueError, match=r"Client 0: with its releases in earlier runs this one would spend"
    ):
        serve(MemoryGrid(members), little, Silent())


def test_a_node_keeps_a_budget_of_its_own(tmp_path: Path) -> None:
    """It refuses visits that would exceed it, and runs that promise nothing."""
    pytest.importorskip("dp_accounting")
    members = nodes(2, tmp_path / "a")
    members[101].config["max-epsilon"] = 1.0
    options = ("method=head", "heldout=0", "clients_per_round=5", "rounds=3", "evaluation.every=0")
    private = ("privacy=dp", "privacy.noise=6", "privacy.max_epsilon=50")
    result = serve(MemoryGrid(members), deployment(tmp_path / "1", *options, *private), Silent())
    refused = [{failure["client"] for failure in r.get("failures", [])} for r in result.rounds]
    assert refused == [set(), set(), {1, 3}]
    assert "would spend epsilon=" in result.rounds[2]["failures"][0]["reason"]
    with pytest.raises(FedcueError, match=r"Node 101 was refused: its images have a budget of max-epsilon=1"):
        serve(MemoryGrid(members), deployment(tmp_path / "2", *options, node_timeout=0.05), Silent())

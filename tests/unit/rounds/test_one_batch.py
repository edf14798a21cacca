"""A run with ``engine.together``: when clients share a batch, how many, and what becomes of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import SMALL

import fedcue
from fedcue.clients import together as together_module
from fedcue.clients.federation import Federation, load_federation
from fedcue.clients.host import Host
from fedcue.clients.together import bytes_of_a_step, one_by_one, together
from fedcue.config.layers import load
from fedcue.errors import DataError
from fedcue.rounds.engine import Failure
from fedcue.rounds.executor import Executor
from fedcue.rounds.progress import header
from fedcue.types import ClientMemory, Download, ServerState

FEW = ["data.train_per_class=5", "data.test_per_class=2", "clients_per_round=4", "training.batch_size=6"]


def small(*settings: str) -> Federation:
    return load_federation(load("default", [*SMALL, *FEW, "method=fedvpt", *settings]))


@contextmanager
def at_work(federation: Federation) -> Iterator[tuple[Executor, list[tuple[Download, ClientMemory]]]]:
    """Return an executor and the downloads of four clients."""
    roster = federation.roster
    state = ServerState(0, roster.method.table(roster.sizes).first(0))
    sent = [roster.method.download(state, client, roster.sizes, 0) for client in range(4)]
    with Executor(federation, federation.config.workers) as executor:
        yield executor, [(Download(c, 0, tensors), ClientMemory()) for c, tensors in enumerate(sent)]


@pytest.mark.parametrize("workers", [1, 2])
def test_updates_come_in_order_and_as_they_would_one_by_one(workers: int) -> None:
    """In groups of three and one, by one process and by two."""
    with at_work(small()) as (executor, jobs):
        assert executor.together == 1
        alone = [update for update, _ in executor.train(jobs)]
    with at_work(small("engine.together=3", f"workers={workers}")) as (executor, jobs):
        assert executor.together == 3
        grouped = [update for update, _ in executor.train(jobs)]
    for mine, theirs in zip(grouped, alone, strict=True):
        assert (mine.client, mine.samples) == (theirs.client, theirs.samples)
        for name, tensor in mine.tensors.items():
            torch.testing.assert_close(tensor, theirs.tensors[name], atol=1e-5, rtol=1e-4)


def test_bfloat16_comes_close_too() -> None:
    outcomes = []
    for number in (1, 2):
        with at_work(small("precision=bfloat16", f"engine.together={number}")) as (executor, jobs):
            outcomes.append([update for update, _ in executor.train(jobs[:2])])
    for mine, theirs, (download, _) in zip(*outcomes, jobs[:2], strict=True):
        for name, tensor in mine.tensors.items():
            moved = (theirs.tensors[name] - download.tensors[name]).norm()
            assert (tensor - theirs.tensors[name]).norm() < 0.1 * moved


def test_what_stops_a_whole_group_is_suffered_by_its_client_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    arrive = Host.arrive

    def unreadable(self: Host, download: Download, memory: ClientMemory) -> Any:
        if download.client == 2:
            raise DataError("its disk is gone")
        return arrive(self, download, memory)

    monkeypatch.setattr(Host, "arrive", unreadable)
    with at_work(small("engine.together=4")) as (executor, jobs):
        outcomes = list(executor.train(jobs))
    assert outcomes[2] == Failure(2, "its disk is gone")
    assert [outcome[0].client for outcome in outcomes if not isinstance(outcome, Failure)] == [0, 1, 3]


def test_a_bug_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = small("engine.together=4")
    monkeypatch.setattr(type(federation.roster.method), "loss", lambda self, fixed: lambda *given: 1 / 0)
    with at_work(federation) as (executor, jobs), pytest.raises(ZeroDivisionError) as bug:
        list(executor.train(jobs))
    assert "training with engine.together=4 of client 0 in round 1" in bug.value.__notes__[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["method=fedvpt"], ""),
        (["method=sgpt"], "method=sgpt as it is set"),
        (["method=fedpr"], "method=fedpr as it is set"),
        (["method=ppt", "method.alternate=true"], "method=ppt as it is set"),
        (["method=cue", "method.logit_prior=train+test"], "method=cue as it is set"),
        (["method=pep", "method.score_source=bare"], "method=pep as it is set"),
        (["data.augment=flip+crop"], "data.augment=flip+crop"),
        (["client_timeout=60"], "client_timeout=60"),
    ],
)
def test_what_keeps_clients_apart_is_named_in_the_header(settings: list[str], reason: str) -> None:
    roster = small("engine.together=3", *settings).roster
    assert one_by_one(roster) == reason
    assert together(roster) == (1 if reason else 3)
    told = f"together  no, because of {reason}" if reason else "together  3"
    assert told in header(roster, Path("run"))


def test_a_gpu_takes_as_many_as_half_of_its_free_memory_holds() -> None:
    roster = small().roster
    each = bytes_of_a_step(roster.architecture, 6)
    assert [together(roster, each * count) for count in (0, 2, 7, 1000)] == [1, 1, 3, 4]
    assert together(roster, None) == 1
    assert together(small("engine.together=2").roster, each * 1000) == 2


def test_a_whole_run_learns_the_same(tmp_path: Path) -> None:
    settings = [*SMALL, *FEW, "method=pep", "evaluation.every=0"]
    alone, grouped = (
        fedcue.run(fedcue.configure("default", [*settings, *more]), tmp_path / f"run{len(more)}")
        for more in ([], ["engine.together=4"])
    )
    losses = [[record["train_loss"] for record in one.rounds] for one in (alone, grouped)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0] != losses[1]


def test_other_devices_tell_no_free_memory() -> None:
    assert together_module.free_memory(torch.device("cpu")) is None

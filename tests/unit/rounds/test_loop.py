"""What a round writes down: who was asked, what travelled, what failed, when was tested, at which rates."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_federation import TinyFederation

from fedcue.clients.host import Host
from fedcue.errors import BudgetSpent, ClientError, FedcueError
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.methods.ppt import PPT
from fedcue.privacy.accounting import Ledger
from fedcue.train.settings import Training

HEAD = 4 * 32
"""Floats of the head of a tiny federation."""


class Stumbling(Host):
    """Clients 1 and 2 fail at their first visit, client 2 at its second one, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left = {1: 1, 2: 2}

    def train(self, download, memory):
        if self.left.get(download.client, 0):
            self.left[download.client] -= 1
            raise ClientError("it stumbled")
        return super().train(download, memory)


def test_a_round_that_is_drawn_again_counts_the_last_draw_alone():
    run = TinyFederation(HeadTuning(), images=8, host_kind=Stumbling, settings=["min_updates=2"]).run(
        1, (0, 1, 2)
    )
    (record,) = run.result.rounds
    assert record["clients"] == [0, 1, 2]
    assert (record["upload_floats"], record["download_floats"]) == (2 * HEAD, 3 * HEAD)
    assert run.result.summary["total_upload_floats"] == 2 * HEAD
    losses = [update.loss for update in run.updates[0]]
    assert len(losses) == 3, "one of the first draw, two of the second"
    assert record["train_loss"] == pytest.approx(sum(losses[1:]) / 2)
    failed = [(one["attempt"], one["client"], one["step"]) for one in record["failures"]]
    assert failed == [(0, 1, "train"), (0, 2, "train"), (1, 2, "train")]


def test_under_differential_privacy_every_draw_is_counted_and_a_resumed_run_counts_it_again():
    """All three are drawn both times: whoever failed may have sent something, and the others did."""
    pytest.importorskip("dp_accounting")
    settings = ["min_updates=2", "privacy=dp", "privacy.noise=1.5", "privacy.max_epsilon=50"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=Stumbling, settings=settings)
    (record,) = tiny.run(1, (0, 1, 2)).result.rounds
    assert record["attempts"] == 2
    twice = Ledger(releases=dict.fromkeys(range(3), 2))
    assert record["epsilon"] == twice.epsilon(1.5, 1e-5)
    again = tiny.made(1, (0, 1, 2)).roster.budget.fresh()
    again.schedule = tiny.made(1, (0, 1, 2)).roster.schedule
    again.replay([record], 10)
    assert again.ledger.releases == twice.releases


@pytest.mark.parametrize(("every", "tested"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_clients_are_tested_every_so_many_rounds_and_after_the_last(every, tested):
    run = TinyFederation(HeadTuning(), images=8, settings=[f"evaluation.every={every}"]).run(3)
    assert [record["round"] for record in run.result.rounds if "mean_accuracy" in record] == tested
    last = run.result.rounds[-1]
    assert last["mean_accuracy"] == run.result.summary["mean_accuracy"]


def test_each_round_says_its_own_rates_of_prompts_and_head_and_totals_are_of_all_rounds():
    training = Training(head_lr=0.05, prompt_lr=0.2, lr_decay=0.5, epochs=1)
    result = TinyFederation(HeadTuning(), training=training, images=8).run(2).result
    assert [(record["lr"], record["head_lr"]) for record in result.rounds] == [(0.2, 0.05), (0.1, 0.025)]
    for name in ("upload_floats", "download_floats"):
        assert [record[name] for record in result.rounds] == [3 * HEAD] * 2
        assert result.summary[f"total_{name}"] == 6 * HEAD


class Failing(Host):
    """Clients that never get through, counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = 0

    def train(self, download, memory):
        self.asked += 1
        raise ClientError("it stumbled")


def test_a_round_in_which_all_clients_fail_is_drawn_ten_times():
    tiny, made = TinyFederation(HeadTuning(), images=8, host_kind=Failing), []
    build = tiny.made
    tiny.made = lambda *given: made.append(build(*given)) or made[-1]
    with pytest.raises(
        FedcueError, match=r"Round 1 got fewer than min_updates=1 updates in 10 draws \(client"
    ):
        tiny.run(1)
    assert made[0].host.asked == 10 * 3


class Unanswering(Host):
    """Client 1 cannot answer before the first round."""

    silent = (1,)

    def warm_up(self, client):
        if client in self.silent:
            raise ClientError("it is cold")
        return super().warm_up(client)


class Silent(Unanswering):
    """Nobody answers."""

    silent = range(4)


def test_who_does_not_answer_before_the_first_round_is_named_and_left_out():
    run = TinyFederation(PEP(), images=8, host_kind=Unanswering).run(1)
    assert [reply.client for reply in run.replies] == [0, 2]
    assert run.result.summary["warm_up_failures"] == [{"client": 1, "reason": "it is cold"}]
    assert run.result.rounds[0]["failures"] == [{"step": "warm up", "client": 1, "reason": "it is cold"}]
    floats = sum(tensor.numel() for reply in run.replies for tensor in [reply.tensors["centroids"]])
    assert run.result.summary["warm_up_upload_floats"] == floats


def test_without_any_answer_there_is_no_run():
    with pytest.raises(
        FedcueError, match=r"0 clients answered before round 0, aggregate=mean needs at least 1"
    ):
        TinyFederation(PEP(), images=8, host_kind=Silent).run(1)


def test_checkpoints_and_snapshots_are_those_of_the_rounds_asked_for():
    """The newest two of the rounds 0, 2 and 4 are kept."""
    settings = ["checkpoint.every=2", "snapshots=[0,3]"]
    run = TinyFederation(HeadTuning(), images=8, settings=settings).run(4)
    folder = run.result.folder
    names = {
        part: sorted(path.stem for path in (folder / part).iterdir()) for part in ("checkpoints", "snapshots")
    }
    assert names["checkpoints"] == ["round-000002", "round-000004"]
    assert names["snapshots"] == ["round-000000", "round-000003"]


def test_a_run_that_was_resumed_can_be_resumed_again():
    run = TinyFederation(HeadTuning(), images=8).run(1).more(1).more(1)
    whole = TinyFederation(HeadTuning(), images=8).run(3)
    assert [record["round"] for record in run.result.rounds] == [1, 2, 3]
    assert torch.equal(run.state.tensors["head"], whole.state.tensors["head"])


PRIVATE = ["privacy=dp", "privacy.max_epsilon=50"]


class FailingOnce(Host):
    """Client 1 fails at its first visit in the round ``when``."""

    when = 1
    failed = False

    def train(self, download, memory):
        if (download.client, download.round, self.failed) == (1, self.when, False):
            self.failed = True
            raise ClientError("it stumbled")
        return super().train(download, memory)


class FailingAtFirst(FailingOnce):
    """The same in the first round."""

    when = 0


def test_a_round_that_would_cost_more_than_is_left_ends_the_run_and_says_why():
    """Two rounds were planned, and the second one has to be drawn again."""
    settings = [*PRIVATE, "min_updates=3"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=FailingOnce, settings=settings)
    summary = tiny.run(2, (0, 1, 2)).result.summary
    assert summary["rounds"] == 1
    assert "Round 2 would spend epsilon=" in summary["ended_early"]
    assert summary["ended_early"].endswith(
        "It was drawn again because clients failed (client 1: it stumbled)."
    )


def test_a_first_round_that_would_cost_more_than_there_is_is_no_run():
    settings = [*PRIVATE, "min_updates=3"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=FailingAtFirst, settings=settings)
    with pytest.raises(BudgetSpent, match="Round 1 would spend"):
        tiny.run(1, (0, 1, 2))


@pytest.mark.parametrize("simulated", [True, False])
def test_releases_are_written_down_beforehand_where_noise_cannot_be_repeated(simulated):
    tiny = TinyFederation(HeadTuning(), images=8, settings=PRIVATE)
    build = tiny.made

    def made(*given):
        federation = build(*given)
        federation.roster.repeats_noise = simulated
        return federation

    tiny.made = made
    run = tiny.run(2, (0, 2))
    journal = run.result.folder / "releases.jsonl"
    if simulated:
        assert not journal.exists()
    else:
        assert [json.loads(line) for line in journal.read_text().splitlines()] == [
            {"clients": [0, 2], "releases": 1}
        ] * 2


def test_rounds_after_the_last_checkpoint_are_done_again_and_not_listed_twice():
    run = TinyFederation(HeadTuning(), images=8).run(1)
    with open(run.result.folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 2, "of": "a run that was killed"}\n')
    assert [(record["round"], record.get("of")) for record in run.more(1).result.rounds] == [
        (1, None),
        (2, None),
    ]


def test_what_clients_keep_is_left_in_a_file():
    run = TinyFederation(PPT(), images=8).run(1, (0, 2))
    kept = load_file(run.result.folder / "clients.safetensors")
    assert sorted(kept) == ["0/private_prompts", "2/private_prompts"]
    for client in (0, 2):
        assert torch.equal(kept[f"{client}/private_prompts"], run.memories[client].tensors["private_prompts"])

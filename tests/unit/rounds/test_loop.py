"""What a round writes down: who was asked, what travelled, what failed, when was tested, at which rates."""

from __future__ import annotations

import pytest
from support.tiny_federation import TinyFederation

from fedcue.clients.host import Host
from fedcue.errors import ClientError
from fedcue.methods.head import HeadTuning
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

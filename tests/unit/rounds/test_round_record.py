"""One line of the metrics: who was asked, what was lost, what travelled, who failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedcue.rounds.engine import Failure
from fedcue.rounds.round_record import RoundRecord
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, Update

TRAINING = Training(lr=0.5, head_lr=0.2, lr_decay=0.5)


def line(record: RoundRecord) -> dict[str, Any]:
    found = record.line(TRAINING, {"upload_floats": 7}, {"epsilon": 0.5})
    assert found.pop("seconds") >= 0
    return found


def test_a_round_has_its_clients_its_rates_and_the_mean_of_the_losses_that_were_told() -> None:
    record = RoundRecord(3, [])
    record.draw(0, [4, 2, 9])
    for client, loss in ((4, 1.0), (2, None), (9, 2.0)):
        record.update(Update(client, 5, {}, loss), ClientMemory({"own": torch.tensor(client)}))
    assert line(record) == {
        "round": 3,
        "lr": 0.125,
        "head_lr": 0.05,
        "clients": [4, 2, 9],
        "train_loss": 1.5,
        "upload_floats": 7,
        "epsilon": 0.5,
    }
    assert {client: int(memory.tensors["own"]) for client, memory in record.memories.items()} == {
        4: 4,
        2: 2,
        9: 9,
    }


def test_where_nobody_tells_a_loss_there_is_none() -> None:
    record = RoundRecord(1, [])
    record.draw(0, [4])
    record.update(Update(4, 5, {}, None), ClientMemory())
    assert line(record)["train_loss"] is None


def test_a_round_drawn_again_keeps_the_failures_and_nothing_else() -> None:
    record = RoundRecord(1, [{"step": "warm up", "client": 8, "reason": "late"}])
    record.draw(0, [4, 5])
    record.update(Update(4, 5, {}, 9.0), ClientMemory())
    record.failure(Failure(5, "cold"))
    record.draw(1, [6])
    record.update(Update(6, 5, {}, 1.0), ClientMemory())
    assert (record.failed, list(record.memories)) == ([], [6])
    found = line(record)
    assert (found["clients"], found["train_loss"]) == ([6], 1.0)
    assert found["failures"] == [
        {"step": "warm up", "client": 8, "reason": "late"},
        {"step": "train", "attempt": 0, "client": 5, "reason": "cold"},
    ]


def test_what_was_tested_and_who_could_not_be_stands_in_the_line() -> None:
    record = RoundRecord(2, [])
    record.draw(0, [4])
    untested = [{"client": 3, "reason": "gone"}]
    accuracies: Any = SimpleNamespace(metrics=lambda: {"mean_accuracy": 0.5}, untested=lambda: untested)
    assert record.tested(accuracies) == {"round": 2, "mean_accuracy": 0.5}
    found = line(record)
    assert found["mean_accuracy"] == pytest.approx(0.5)
    assert found["failures"] == [{"step": "evaluate", "client": 3, "reason": "gone"}]

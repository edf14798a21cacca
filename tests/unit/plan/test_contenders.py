"""What fedcue is measured against does the same work: a visit ends with the same tensors."""

from __future__ import annotations

import pytest
from contenders import TypicalModel
from task import Task
from visits import compare, ours

import fedcue

SMALL = [
    "partition.clients=4", "partition.classes_per_client=3", "heldout=0", "clients_per_round=2", "workers=1",
    "data.train_per_class=8", "data.test_per_class=1", "training.epochs=2", "training.batch_size=4",
    "training.head_lr=0.01", "training.prompt_lr=0.01", "training.weight_decay=0",
]  # fmt: skip


@pytest.mark.parametrize("method", ["head", "fedvpt", "fedvpt_deep", "pep"])
def test_contenders_end_a_visit_where_fedcue_ends_it(method: str) -> None:
    task = Task(fedcue.configure("default", [f"method={method}", *SMALL]))
    visits = {"typical": TypicalModel(task).visit, "tuned": task.tuned_visit, "fedcue": ours(task)}
    found = compare(visits, task, turns=2, within=0)
    moved = [
        float((end - task.start[name]).abs().max()) for name, end in ours(task)(0, 0, task.start).items()
    ]
    assert min(moved) > 1e-3
    for contender in found.values():
        assert contender["largest_difference_from_tuned"] < 1e-5

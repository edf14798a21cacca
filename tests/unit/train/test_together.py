"""Clients that train in one batch end with what each would have learnt alone."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.double import DoubleHost
from support.tiny_federation import TINY, TinyFederation, random_vit
from test_sgd import Numbers, plain
from torch.utils._python_dispatch import TorchDispatchMode

import fedcue.train.together as module
from fedcue.clients.together import train_together
from fedcue.errors import ClientError
from fedcue.methods.base import Method
from fedcue.registry import METHODS
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.train.sgd import fit
from fedcue.train.together import Learner, _attention, _clip, _stacked, fit_together, planned
from fedcue.types import ClientMemory, Download, ServerState, Update

SIZES = (13, 5, 16, 16)
CLASSES_OF = ((0, 1), (1,), (0, 1, 2), (2, 3))
LABELS = [[own[i % len(own)] for i in range(n)] for own, n in zip(CLASSES_OF, SIZES, strict=True)]
OPTIONS: dict[str, dict[str, Any]] = {
    "pep": {"layers": (1, 2)},
    "ppt": {"alternate": False},
    "fedrod": {"prompts": 1},
}
TRAINED = [name for name in METHODS.builtin if METHODS.get(name).fixed.get("rounds") != 0]
PLAIN = [name for name in TRAINED if METHODS.get(name)().trains_together()]
SHAPE = replace(TINY, depth=3)
TRAINING = Training(lr=0.05, epochs=2, batch_size=6, clip_norm=1.0, momentum=0.9, weight_decay=1e-2)


def method(name: str) -> Method:
    return METHODS.get(name)(**OPTIONS.get(name, {}))


def federation(method: Method, training: Training = TRAINING, double: bool = True) -> TinyFederation:
    model = random_vit(SHAPE)
    if double:
        model.backbone.double()
    kind = {"host_kind": DoubleHost} if double else {}
    return TinyFederation(method, model, training, labels=LABELS, **kind)


@cache
def state(name: str) -> ServerState:
    return federation(method(name), double=False).start()


def jobs(tiny: TinyFederation, clients: range = range(3)) -> list[tuple[Download, ClientMemory]]:
    sent = state(tiny.method.name)
    return [(Download(c, 0, tiny.sent(sent, c)), ClientMemory()) for c in clients]


def largest_difference(one: Update, other: Update) -> float:
    assert set(one.tensors) == set(other.tensors)
    pairs = [(tensor.double(), other.tensors[name].double()) for name, tensor in one.tensors.items()]
    differences = [(mine - theirs).abs().max() for mine, theirs in pairs]
    return max(map(float, [*differences, abs((one.loss or 0) - (other.loss or 0))]))


def differences(tiny: TinyFederation) -> list[float]:
    """Train one by one and together; return by how much anything sent or kept differs."""
    alone = [tiny.host.train(*job) for job in jobs(tiny)]
    found = []
    for (update, kept), outcome in zip(alone, train_together(tiny.host, jobs(tiny)), strict=True):
        assert not isinstance(outcome, Exception)
        found.append(largest_difference(update, outcome[0]))
        for name, tensor in kept.tensors.items():
            found.append(float((tensor - outcome[1].tensors[name]).abs().max()))
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_in_float64(name: str) -> None:
    """With clients of 13, 5 and 16 images in batches of 6, of two, one and three classes."""
    tiny = federation(method(name))
    assert max(differences(tiny)) < 1e-9


@pytest.mark.parametrize(
    "change",
    [
        {"optimiser": "adam", "lr": 0.01},
        {"clip_norm": None, "momentum": 0.0},
        {"batch_size": 50},
        {"batch_size": 1, "epochs": 1},
        {"clip_norm": 1e-3},
    ],
    ids=str,
)
def test_the_same_with_every_optimiser_and_size_of_batch(change: dict[str, Any]) -> None:
    training = TRAINING.model_copy(update=change)
    assert max(differences(federation(method("pep"), training))) < 1e-9


def test_within_rounding_in_float32() -> None:
    found = differences(federation(method("pep"), double=False))
    assert 0 < max(found) < 2e-6


class Operators(TorchDispatchMode):
    """Counts the operators that are launched."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[str(function)] += 1
        return function(*args, **(kwargs or {}))


def operators_of_a_step(name: str, clients: int) -> Counter[str]:
    """Return what a visit of three steps launches more than one of two does."""
    counts = []
    for images in (16, 24):
        training = Training(lr=0.1, epochs=1, batch_size=8, clip_norm=1.0)
        tiny = TinyFederation(method(name), random_vit(SHAPE), training, images=images)
        given = jobs(tiny, range(clients))
        with Operators() as found:
            assert len(list(train_together(tiny.host, given))) == clients
        counts.append(found.count)
    return counts[1] - counts[0]


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_launches_as_many_operators_for_four_clients_as_for_two(name: str) -> None:
    two = operators_of_a_step(name, clients=2)
    assert two.total() > 20
    assert operators_of_a_step(name, clients=4) == two


def test_a_client_whose_loss_is_no_number_fails_alone() -> None:
    tiny = federation(method("pep"))
    given = jobs(tiny)
    head = given[1][0].tensors["head"] * torch.nan
    spoilt = replace(given[1][0], tensors={**given[1][0].tensors, "head": head})
    outcomes = list(train_together(tiny.host, [given[0], (spoilt, ClientMemory()), given[2]]))
    assert isinstance(outcomes[1], ClientError)
    assert str(outcomes[1]).startswith("loss nan at step 1;")
    for number in (0, 2):
        alone = tiny.host.train(*given[number])[0]
        assert largest_difference(alone, outcomes[number][0]) < 1e-9


class Counted(Numbers):
    """Images that are numbers, and how many of them pass at a time."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self.passed: list[int] = []

    def prefix(self, rows: torch.Tensor, generator: torch.Generator | None = None) -> Any:
        self.passed.append(len(rows))
        return super().prefix(rows, generator)


def learners(*sizes: int, check: Any = lambda: None) -> tuple[list[Learner], Counted]:
    """Return clients with so many images, which are 1, 2, 3 and so on, and the images of all of them."""
    values = torch.arange(1.0, 1 + sum(sizes), dtype=torch.float64)
    found = []
    for number, own in enumerate(values.split(sizes)):
        samples = Samples(Numbers(own), torch.arange(len(own)), torch.zeros(2).double(), check)
        start = {"head": torch.full((1,), number + 0.5).double(), "spare": torch.ones(1).double()}
        fixed = {"shift": torch.full((1,), float(number)).double()}
        found.append(Learner(start, fixed, samples, torch.Generator().manual_seed(number)))
    return found, Counted(values)


def pulled(fixed: Any) -> Any:
    """Return a loss: the mean squared distance of a number from each image that counts, and a shift."""

    def loss(trained: Any, batch: Any) -> torch.Tensor:
        counts = (batch.labels >= 0).double()
        apart = (trained["head"] + fixed["shift"] - batch.inputs.tokens.flatten()).square()
        return (apart * counts).sum() / counts.sum()

    return loss


@pytest.mark.parametrize("sizes", [(4, 3, 1), (1, 5), (2, 2)])
def test_numbers_are_learnt_together_as_alone_and_leave_when_they_are_done(sizes, monkeypatch) -> None:
    training, copies = plain(lr=0.1, momentum=0.5, batch_size=2, epochs=2, lr_decay=0.9), []
    given, images = learners(*sizes)
    copy = module._copy
    monkeypatch.setattr(module, "_copy", lambda *each: copies.append(each[2].tolist()) or copy(*each))
    found = fit_together(pulled, given, images, training, 3)
    for learner, (trained, loss) in zip(learners(*sizes)[0], found, strict=True):
        alone = fit(pulled(learner.fixed), learner.start, learner.samples, training, 3, learner.generator)
        torch.testing.assert_close(trained["head"], alone[0]["head"])
        assert loss == pytest.approx(alone[1])
    steps = [2 * -(-size // 2) for size in sizes]
    last = {
        steps.index(step): [n for n, own in enumerate(steps) if own == step] for step in sorted(set(steps))
    }
    assert copies == list(last.values()), "nothing is copied but of those that leave"


def test_places_that_nobody_fills_do_not_pass_the_model() -> None:
    given, images = learners(3, 1)
    fit_together(pulled, given, images, plain(batch_size=2), 0)
    assert images.passed == [4, 1], "two of each client, then the third image of the first one"


def test_the_check_is_asked_before_every_step() -> None:
    asked: list[int] = []
    given, images = learners(5, 2, check=lambda: asked.append(len(images.passed)))
    fit_together(pulled, given, images, plain(batch_size=2), 0)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("sizes", [(4, 3), (5, 1), (1, 1)])
def test_the_plan_is_everybodys_own_order_beside_the_others(sizes) -> None:
    """Rows of the second client's images follow those of the first."""
    given, _ = learners(*sizes)
    plan = planned(given, plain(batch_size=2, epochs=2))
    for client, (size, first) in enumerate(zip(sizes, (0, sizes[0]), strict=True)):
        generator, steps = torch.Generator().manual_seed(client), []
        for _ in range(2):
            order = first + torch.randperm(size, generator=generator)
            steps += [[*rows.tolist(), -1][:2] for rows in order.split(2)]
        steps += [[-1, -1]] * (2 * -(-max(sizes) // 2) - len(steps))
        assert plan[:, client].tolist() == steps


def test_fewer_rows_are_filled_up_with_zeros_and_fewer_classes_with_one_that_has_no_prior() -> None:
    def learner(rows: int, *log_priors: float) -> Learner:
        samples = Samples(Numbers(torch.zeros(1)), torch.zeros(1).long(), torch.tensor(log_priors))
        start = {"prompts": torch.full((rows, 2), 7.0), "classes": torch.full((rows,), 5)}
        return Learner(start, {}, samples, torch.Generator())

    stacked = _stacked([learner(1, -1.0, -2.0, -torch.inf), learner(3, 0.0, -1.0, -2.0)], "start")
    assert stacked["prompts"].tolist() == [[[7, 7], [0, 0], [0, 0]], [[7, 7]] * 3]
    assert stacked["classes"].tolist() == [[5, 2, 2], [5, 5, 5]]


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_each_clients_gradient_is_shortened_as_torch_would(size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2, 4), (3, 5), (3, 1))
    gradients = [size * torch.randn(shape, generator=generator).double() for shape in shapes]
    gradients[0][1] *= 0.1
    gradients[1][1] *= 0.1
    expected = []
    for client in range(3):
        own = [torch.zeros_like(gradient[client]).requires_grad_() for gradient in gradients]
        for tensor, gradient in zip(own, gradients, strict=True):
            tensor.grad = gradient[client].clone()
        torch.nn.utils.clip_grad_norm_(own, 2 * size)
        expected.append([tensor.grad for tensor in own])
    _clip(gradients, 2 * size)
    for client in range(3):
        for gradient, other in zip(gradients, expected[client], strict=True):
            torch.testing.assert_close(gradient[client], other)


def test_attention_is_fused_where_that_takes_all_clients_at_once() -> None:
    assert isinstance(_attention(torch.device("cuda")), nullcontext)
    assert not isinstance(_attention(torch.device("cpu")), nullcontext)

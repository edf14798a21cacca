"""Several clients in one batch: the backbone is frozen and one for all, what each of them trains is small.

Every tensor of theirs has a leading axis of clients, over which ``torch.vmap`` maps the method's own loss:
a step is one forward and one backward pass, with as many operators as that of a single client. The loss is
the sum of the clients' means, so that no gradient holds anything of another client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedcue.errors import ClientError
from fedcue.model.prompted import Prefix
from fedcue.train.batches import Batch, FrozenValues, Samples
from fedcue.train.settings import Training
from fedcue.train.sgd import Loss, mean_loss, optimiser_for
from fedcue.types import Tensors

_PADDING = -100
"""The label of an image that only fills up a smaller batch: cross-entropy leaves it out."""


@dataclass(frozen=True)
class Learner:
    """One of the clients: what it trains and what stays as it is, its images, its random stream."""

    start: Tensors
    fixed: Tensors
    samples: Samples
    generator: Generator


def fit_together(
    loss: Callable[[Tensors], Loss],
    learners: Sequence[Learner],
    images: FrozenValues,
    training: Training,
    finished_rounds: int,
) -> list[tuple[dict[str, Tensor], float] | ClientError]:
    """Train each learner as ``sgd.fit`` does; ``images`` are those of all of them, one after the other.

    Who has done its steps leaves the batch. A loss that is not finite fails its own client alone.
    """
    plan, group = planned(learners, training), Group.of(loss, learners, images)
    trained = {name: tensor.requires_grad_() for name, tensor in _stacked(learners, "start").items()}
    final = {name: tensor.detach().clone() for name, tensor in trained.items()}
    optimiser, losses = optimiser_for(trained, training, finished_rounds), []
    alive = torch.arange(len(learners))
    first, *_ = learners
    for rows in plan:
        first.samples.check()
        stays = rows[alive, 0] >= 0
        leaving, alive = alive[~stays], alive[stays]
        if len(leaving):
            _copy(trained, final, leaving)
        value = group.losses(trained, alive, rows[alive])
        optimiser.zero_grad()
        value.sum().backward()
        if training.clip_norm is not None:
            _clip([tensor.grad for tensor in trained.values() if tensor.grad is not None], training.clip_norm)
        optimiser.step()  # who has left is moved, too, and not looked at again
        losses.append(value.detach())
    _copy(trained, final, alive)
    return _outcomes(learners, final, plan, torch.cat(losses).cpu())


def planned(learners: Sequence[Learner], training: Training) -> Tensor:
    """Return the rows of each step's images ``[steps, clients, batch]``, as if each were alone; -1: none."""
    size, first = training.batch_size, 0
    orders: list[list[NDArray[np.int64]]] = []
    for learner in learners:
        epochs = [learner.samples.order(learner.generator).numpy() for _ in range(training.epochs)]
        batches = [np.split(first + epoch, range(size, len(epoch), size)) for epoch in epochs]
        orders.append([rows for epoch in batches for rows in epoch])
        first += len(learner.samples)
    plan = np.full((max(map(len, orders)), len(learners), size), -1)
    for client, order in enumerate(orders):
        for step, rows in enumerate(order):
            plan[step, client, : len(rows)] = rows
    return torch.from_numpy(plan)


@dataclass(frozen=True)
class Group:
    """What stays as it is while some clients train: their loss, their images, their fixed tensors."""

    loss: Callable[[Tensors], Loss]
    images: FrozenValues
    labels: Tensor
    log_priors: Tensor
    fixed: Tensors

    @classmethod
    def of(cls, loss: Callable[[Tensors], Loss], learners: Sequence[Learner], images: FrozenValues) -> Group:
        """Join what the learners have; what is a client's has a leading axis of clients."""
        labels = torch.cat([learner.samples.labels for learner in learners])
        priors = torch.stack([learner.samples.log_priors for learner in learners])
        return cls(loss, images, labels, priors, _stacked(learners, "fixed"))

    def losses(self, trained: Tensors, alive: Tensor, rows: Tensor) -> Tensor:
        """Return the mean losses ``[alive]`` of these clients, each on its ``rows [alive, batch]``.

        A smaller batch is filled up with its first image, which then does not count.
        """
        rows = rows[:, (rows >= 0).any(0)]
        there = torch.where(rows < 0, rows[:, :1], rows)
        labels = torch.where(rows < 0, _PADDING, self.labels[there])
        prefix = self.images.prefix(there.flatten())
        device = prefix.tokens.device
        inputs = {"tokens": prefix.tokens, "qkv": prefix.qkv}
        found = {name: each.unflatten(0, there.shape) for name, each in inputs.items() if each is not None}

        def of_one(
            trained: Tensors, fixed: Tensors, log_priors: Tensor, labels: Tensor, x: Tensors
        ) -> Tensor:
            own = Prefix(prefix.block, x["tokens"], x.get("qkv"))
            return self.loss(fixed)(trained, Batch(labels, own, labels, log_priors, self.images))

        with _attention(device):
            mapped: Callable[..., Tensor] = torch.vmap(of_one)
            own = [_rows(tensors, alive) for tensors in (trained, self.fixed)]
            return mapped(*own, self.log_priors[alive.to(device)], labels.to(device), found)


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """Return with which attention to work: torch's fused one for CPUs takes one client after the other."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def _stacked(learners: Sequence[Learner], part: str) -> dict[str, Tensor]:
    """Stack the tensors of all learners ``[clients, ...]``; fewer class rows are filled up.

    They are filled with zeros or, where they name classes, with one that has no prior: their weight is zero.
    """
    stacked = {}
    first, *_ = learners
    for name in getattr(first, part):
        each = [getattr(learner, part)[name] for learner in learners]
        shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in each), strict=True)]
        whole = [tensor.new_zeros(shape) for tensor in each]
        for learner, tensor, room in zip(learners, each, whole, strict=True):
            if tensor.dtype == torch.int64 and tensor.shape != room.shape:
                room.fill_(int(learner.samples.log_priors.argmin()))
            room[tuple(map(slice, tensor.shape))] = tensor
        stacked[name] = torch.stack(whole)
    return stacked


def _rows(tensors: Tensors, clients: Tensor) -> dict[str, Tensor]:
    return {name: tensor[clients.to(tensor.device)] for name, tensor in tensors.items()}


@torch.no_grad()
def _copy(source: Tensors, target: Tensors, clients: Tensor) -> None:
    for name, tensor in source.items():
        rows = clients.to(tensor.device)
        target[name][rows] = tensor[rows]


def _clip(gradients: Sequence[Tensor], most: float) -> None:
    """Shorten each client's gradient as ``clip_grad_norm_`` does one client's."""
    lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (most / (lengths + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient *= factors.view(-1, *[1] * (gradient.ndim - 1))


def _outcomes(
    learners: Sequence[Learner], final: Tensors, plan: Tensor, losses: Tensor
) -> list[tuple[dict[str, Tensor], float] | ClientError]:
    """Return what each has learnt, without the rows that filled it up, and its mean loss."""
    sizes = (plan >= 0).sum(-1)  # [steps, clients]
    table = torch.full_like(sizes, torch.nan, dtype=losses.dtype).masked_scatter(sizes > 0, losses)
    outcomes: list[tuple[dict[str, Tensor], float] | ClientError] = []
    for number, learner in enumerate(learners):
        trained = {
            name: final[name][number][tuple(map(slice, own.shape))] for name, own in learner.start.items()
        }
        steps = sizes[:, number] > 0
        try:
            outcomes.append(
                (trained, mean_loss(table[steps, number].tolist(), sizes[steps, number].tolist()))
            )
        except ClientError as error:
            outcomes.append(error)
    return outcomes

"""The local training loop: mini-batch SGD on a few named tensors.

It trains one client; ``together`` trains several in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor

from fedcue.errors import ClientError
from fedcue.train.batches import Batch, Samples
from fedcue.train.settings import Training
from fedcue.types import Tensors

Loss = Callable[[Tensors, Batch], Tensor]
StepFilter = Callable[[str, Tensor], Tensor]
"""From a tensor's name and the optimiser's change to the change that is made."""

Moments = dict[str, Tensor]
"""An optimiser's memory of the tensor ``name``: ``name_mean``, ``name_square`` and ``name_steps``."""


class Fit(Protocol):
    """The training loop: ``train.sgd.fit``, or what stands in for it where nothing is computed."""

    def __call__(
        self,
        loss: Loss,
        start: Tensors,
        samples: Samples,
        training: Training,
        finished_rounds: int,
        generator: Generator,
        step_filter: StepFilter | None = None,
        moments: Moments | None = None,
    ) -> tuple[dict[str, Tensor], float]:
        """Train copies of ``start`` on ``samples``; return them and the mean loss."""


HEAD = ("head", "head_bias", "personal_head", "personal_head_bias")
"""What has the rate of the head."""


def rate(training: Training, name: str, finished_rounds: int) -> float:
    """Return the learning rate of the tensor ``name`` after so many rounds."""
    own = training.head_lr if name in HEAD else training.prompt_lr
    if name == "class_prompts" and training.class_prompt_lr is not None:
        own = training.class_prompt_lr
    return (training.lr if own is None else own) * training.lr_decay**finished_rounds


def fit(
    loss: Loss,
    start: Tensors,
    samples: Samples,
    training: Training,
    finished_rounds: int,
    generator: torch.Generator,
    step_filter: StepFilter | None = None,
    moments: Moments | None = None,
) -> tuple[dict[str, Tensor], float]:
    """Train copies of the tensors ``start`` on ``samples``; return them and the mean loss.

    The optimiser is new at every call, or goes on from ``moments``, which are left as they then are.
    ``step_filter`` sees each change after momentum, clipping and weight decay. Losses stay on the device
    until the end: reading one would wait for all that was begun.
    """
    trainable = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    optimiser = optimiser_for(trainable, training, finished_rounds)
    if moments is not None:
        _restore(optimiser, trainable, moments)
    losses: list[Tensor] = []
    sizes: list[int] = []
    for _ in range(training.epochs):
        for batch in samples.batches(training.batch_size, generator):
            value = loss(trainable, batch)
            optimiser.zero_grad()
            value.backward()
            if training.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(trainable.values(), training.clip_norm)
            _step(optimiser, trainable, step_filter)
            losses.append(value.detach())
            sizes.append(len(batch))
    mean = mean_loss(torch.stack(losses).tolist(), sizes)
    if moments is not None:
        moments |= _moments(optimiser, trainable)
    return {name: tensor.detach() for name, tensor in trainable.items()}, mean


def mean_loss(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the mean over images of all steps' losses; name the first step whose loss is not finite."""
    total = 0.0
    for step, (number, size) in enumerate(zip(losses, sizes, strict=True), 1):
        if not math.isfinite(number):
            raise ClientError(f"loss {number} at step {step}; lower training.lr or head_lr and prompt_lr")
        total += number * size
    return total / sum(sizes)


class SGD:
    """Stochastic gradient descent with momentum, bit for bit what ``torch.optim.SGD`` computes.

    Torch's own optimisers import its compiler, which costs each process that trains a second and 60 MB.
    """

    def __init__(self, rates: Mapping[Tensor, float], momentum: float, weight_decay: float) -> None:
        self.rates, self.momentum, self.weight_decay = dict(rates), momentum, weight_decay
        self.state: dict[Tensor, dict[str, Tensor]] = {tensor: {} for tensor in rates}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for tensor in self.rates:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each tensor that has a gradient."""
        for tensor, lr in self.rates.items():
            if tensor.grad is None:
                continue
            change = tensor.grad
            if self.weight_decay:
                change = change.add(tensor, alpha=self.weight_decay)
            if self.momentum:
                memory = self.state[tensor]
                if "momentum_buffer" in memory:
                    change = memory["momentum_buffer"].mul_(self.momentum).add_(change)
                else:
                    change = memory["momentum_buffer"] = change.clone()
            tensor.add_(change, alpha=-lr)


Optimiser = SGD | torch.optim.Adam


def optimiser_for(trainable: Tensors, training: Training, finished_rounds: int) -> Optimiser:
    """Return a new optimiser of these tensors, each with its rate."""
    rates = {tensor: rate(training, name, finished_rounds) for name, tensor in trainable.items()}
    if training.optimiser == "adam":
        groups = [{"params": [tensor], "lr": lr} for tensor, lr in rates.items()]
        return torch.optim.Adam(groups, weight_decay=training.weight_decay)
    return SGD(rates, training.momentum, training.weight_decay)


PARTS = {
    torch.optim.Adam: {"mean": "exp_avg", "square": "exp_avg_sq", "steps": "step"},
    SGD: {"mean": "momentum_buffer"},
}
"""What each optimiser remembers, and under which names."""


def _restore(optimiser: Optimiser, trainable: Tensors, moments: Tensors) -> None:
    for name, tensor in trainable.items():
        for part, theirs in PARTS[type(optimiser)].items():
            optimiser.state[tensor][theirs] = moments[f"{name}_{part}"].clone()


def _moments(optimiser: Optimiser, trainable: Tensors) -> Moments:
    return {
        f"{name}_{part}": optimiser.state[tensor][theirs].detach()
        for name, tensor in trainable.items()
        for part, theirs in PARTS[type(optimiser)].items()
    }


@torch.no_grad()
def _step(optimiser: Optimiser, trainable: Tensors, step_filter: StepFilter | None) -> None:
    before = {} if step_filter is None else {name: tensor.clone() for name, tensor in trainable.items()}
    optimiser.step()
    if step_filter is not None:
        for name, tensor in trainable.items():
            tensor.copy_(before[name] + step_filter(name, tensor - before[name]))

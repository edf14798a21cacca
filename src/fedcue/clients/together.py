"""Several clients of a round in one batch: when that can be, how many, and what each then sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fedcue.clients.host import Host, Visit
from fedcue.clients.roster import Roster
from fedcue.errors import SUFFERED, ClientError, DataError
from fedcue.model.vit import Architecture
from fedcue.train.together import Learner, fit_together
from fedcue.types import ClientMemory, Download, Update

_KEPT_FOR_BACKWARD = 16
"""Numbers kept of a token in a block until the backward pass, in widths: about what autograd holds on to."""


def together(roster: Roster, free_bytes: int | None = None) -> int:
    """Return how many clients train in one batch; ``free_bytes`` is a GPU's memory, if there is one here."""
    config = roster.config
    if one_by_one(roster):
        return 1
    if config.engine.together or free_bytes is None:
        return config.engine.together or 1
    each = bytes_of_a_step(roster.architecture, config.training.batch_size)
    return max(1, min(config.clients_per_round, free_bytes // 2 // each))


def free_memory(device: torch.device) -> int | None:
    """Return how many bytes of a GPU are free; none for another device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def one_by_one(roster: Roster) -> str:
    """Name what keeps clients from training in one batch; empty if nothing does."""
    config = roster.config
    if not config.method.trains_together():
        return f"method={config.method.name} as it is set"
    if config.data.augment != "none":
        return f"data.augment={config.data.augment}"
    return "" if config.client_timeout is None else f"client_timeout={config.client_timeout:g}"


def bytes_of_a_step(shape: Architecture, images: int) -> int:
    """Return about what one client's training step takes of the memory."""
    return images * shape.tokens * shape.depth * shape.width * 4 * _KEPT_FOR_BACKWARD


def train_together(
    host: Host, jobs: Sequence[tuple[Download, ClientMemory]]
) -> Iterator[tuple[Update, ClientMemory] | ClientError | DataError]:
    """Train clients in one batch; yield what each sends and remembers, or why it alone failed."""
    visits = [host.arrive(download, memory) for download, memory in jobs]
    images = host.frozen.view(np.concatenate([visit.images for visit in visits]))
    learners = [_learner(host, visit) for visit in visits]
    training, finished_rounds = host.config.training, jobs[0][0].round
    outcomes = fit_together(host.method.loss, learners, images, training, finished_rounds)
    for visit, outcome in zip(visits, outcomes, strict=True):
        if isinstance(outcome, ClientError):
            yield outcome
            continue
        try:
            yield host.leave(visit, host.method.reply(visit.at_work, visit.sent, *outcome))
        except SUFFERED as error:
            yield error


def _learner(host: Host, visit: Visit) -> Learner:
    """Split what a client works with into what it trains and what stays."""
    at_work, names = visit.at_work, host.table.trained
    tensors = host.method.personal(at_work, visit.sent)
    fixed = {name: tensor for name, tensor in tensors.items() if name not in names}
    start = {name: tensors[name] for name in names}
    return Learner(start, fixed, at_work.samples, at_work.generator)

"""What testing all clients gave: accuracies, and at the end of a simulation what the figures need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.errors import FedcueError
from fedcue.evaluate.metrics import by_domain, summarise
from fedcue.federate.backbone_accuracy import prototype_accuracy
from fedcue.federate.federation import Federation
from fedcue.federate.roster import Roster
from fedcue.federate.site import Prediction
from fedcue.types import ClientMemory, ServerState


@dataclass(frozen=True)
class Evaluation:
    """How many of its test images the model got right for each client, under one state.

    A client of whom nothing is known has a total of 0. Only a simulation knows the ``prediction``.
    """

    roster: Roster
    correct: NDArray[np.int64]
    total: NDArray[np.int64]
    prediction: Prediction | None = None
    missing: Mapping[int, str] = field(default_factory=dict)
    """Clients that were asked in vain, and why."""

    @classmethod
    def of(cls, roster: Roster, prediction: Prediction, missing: Mapping[int, str]) -> Evaluation:
        """Count what was predicted right."""
        right = prediction.clients[prediction.labels == prediction.predicted]
        count = partial(np.bincount, minlength=len(roster))
        return cls(roster, count(right), count(prediction.clients), prediction, missing)

    def checked(self) -> Evaluation:
        """Return the evaluation itself, unless it says nothing of the clients that train."""
        if self.total[~self.roster.heldout].any():
            return self
        reasons = "; ".join(f"client {client}: {why}" for client, why in list(self.missing.items())[:3])
        raise FedcueError(f"No client that trains could be tested ({reasons}). Mend them, then resume.")

    @property
    def accuracies(self) -> NDArray[np.float64]:
        """Accuracy of every client; nan where it is not known or the method cannot serve it."""
        return np.where(self.total > 0, self.correct / np.maximum(self.total, 1), np.nan)

    def metrics(self) -> dict[str, float | None]:
        """Return mean and worst accuracy of the clients that train and of those held out."""
        heldout, known = self.roster.heldout, self.total > 0
        out = {"heldout_mean_accuracy": None, "heldout_worst_accuracy": None}
        own, others = self.accuracies[known & ~heldout], self.accuracies[known & heldout]
        return {**summarise(own), **out, **summarise(others, "heldout_")}

    def untested(self) -> dict[str, list[dict[str, Any]]]:
        """Return, for a summary, which clients are not in these numbers and why, if there are any."""
        missing = [{"client": client, "reason": why} for client, why in self.missing.items()]
        return {"untested": missing} if missing else {}

    def domains(self) -> dict[str, dict[str, float]]:
        """Return accuracy by domain over the clients that train, if there are several domains."""
        if len(set(self.roster.domains)) < 2:
            return {}
        keep = np.flatnonzero((self.total > 0) & ~self.roster.heldout)
        domains = [self.roster.domains[client] for client in keep.tolist()]
        return by_domain(domains, self.accuracies[keep], self.total[keep])

    def client_rows(self) -> Iterator[dict[str, Any]]:
        """Yield one line per listed client for ``clients.csv``; columns say on which images it was tested."""
        roster, accuracies, split = self.roster, self.accuracies, self.roster.config.evaluation.on
        sizes = self.total if split == "validation" else roster.test_sizes
        for client in roster.listed.tolist():
            accuracy = accuracies[client]
            yield {
                "id": client,
                "name": roster.names[client],
                "domain": roster.domains[client],
                "heldout": str(bool(roster.heldout[client])).lower(),
                "train_size": int(roster.train_sizes[client]),
                f"{split}_size": int(sizes[client]),
                f"{split}_accuracy": "" if np.isnan(accuracy) else f"{accuracy:.6f}",
            }


def client_groups(federation: Federation, without: Collection[int] = ()) -> list[list[int]]:
    """Group consecutive clients into chunks of about ``evaluation.chunk`` test images.

    The groups follow from the data alone. A method with memories is tested client by client.
    """
    groups: list[list[int]] = []
    images = 0
    for client in federation.roster.listed.tolist():
        served = federation.method.supports_heldout or not federation.roster.heldout[client]
        if client in without or not served:
            continue
        size = federation.test_size(client)
        if federation.method.keeps_memory or not groups or images + size > federation.config.evaluation.chunk:
            groups.append([])
            images = 0
        groups[-1].append(client)
        images += size
    return groups


def analyse(
    federation: Federation, state: ServerState, memories: Mapping[int, ClientMemory], evaluation: Evaluation
) -> dict[str, Tensor]:
    """Return what the figures need: confusions, mean mixing weights by class, cls tokens, prototypes."""
    classes, prediction = federation.setting.classes, evaluation.prediction
    assert prediction is not None, "a simulation knows what was predicted"
    pairs = prediction.labels * classes + prediction.predicted
    tensors = {
        "images": torch.from_numpy(prediction.images).int(),
        "clients": torch.from_numpy(prediction.clients).int(),
        "labels": torch.from_numpy(prediction.labels).int(),
        "predicted": torch.from_numpy(prediction.predicted).int(),
        "confusion": torch.from_numpy(np.bincount(pairs, minlength=classes**2)).view(classes, classes).int(),
    }
    if federation.config.evaluation.clients == "all":
        for part in ("train", federation.config.evaluation.on):
            owned = (getattr(client, f"{part}_labels") for client in federation.clients)
            counts = np.stack([np.bincount(labels, minlength=classes) for labels in owned])
            tensors[f"{part}_class_counts"] = torch.from_numpy(counts).int()
        tensors |= prototype_accuracy(federation, prediction.images)
    return tensors | _look_inside(federation, state, memories, client_groups(federation, evaluation.missing))


@torch.no_grad()
def _look_inside(
    federation: Federation,
    state: ServerState,
    memories: Mapping[int, ClientMemory],
    groups: Sequence[Sequence[int]],
) -> dict[str, Tensor]:
    """Average what the method shows of each image by true class; take some cls tokens of all clients."""
    method, model, config = federation.method, federation.model, federation.config
    share = -(-config.evaluation.cls_sample // len(groups))
    blocks = tuple(range(method.first_block(federation.setting), model.depth + 1))
    sums: dict[str, Tensor] = {}
    seen = torch.zeros(federation.setting.classes)
    cls, labels = [], []
    for group in groups:
        download = method.download(state, group[0], config.seed)
        memory = memories.get(group[0], ClientMemory())
        samples, tensors = federation.prepare_test(group, download, memory)
        for number, batch in enumerate(samples.batches(config.evaluation.chunk)):
            seen += torch.bincount(batch.labels.cpu(), minlength=len(seen))
            for name, values in method.inspect(model, tensors, batch).items():
                total = sums.setdefault(name, torch.zeros(len(seen), *values.shape[1:]))
                total.index_add_(0, batch.labels.cpu(), values.cpu())
            if number == 0 and share and len(blocks) > 1:
                tokens = model.cls_tokens(batch.inputs, method.prompter(model, tensors, batch), blocks)
                cls.append(tokens[:share].cpu())
                labels.append(batch.labels[:share].cpu())
    means = {f"mean_{name}": t / seen.clamp(min=1).view(-1, *[1] * (t.ndim - 1)) for name, t in sums.items()}
    return means | ({"cls_tokens": torch.cat(cls), "cls_labels": torch.cat(labels).int()} if cls else {})

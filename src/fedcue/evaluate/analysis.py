"""What the figures need of a finished simulation: confusions, mixing weights, cls tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedcue.clients.federation import Federation
from fedcue.evaluate.accuracy import Accuracies
from fedcue.evaluate.prototype_accuracy import Tell, prototype_accuracy
from fedcue.types import ClientMemory, Download, ServerState


def analyse(
    federation: Federation,
    state: ServerState,
    memories: Mapping[int, ClientMemory],
    accuracies: Accuracies,
    tell: Tell = lambda name, done, total: None,
) -> dict[str, Tensor]:
    """Return what the figures need: confusions, mean mixing weights by class, cls tokens, prototypes."""
    classes, prediction = federation.host.sizes.classes, accuracies.prediction
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
        tensors |= prototype_accuracy(federation, prediction.images, tell)
    groups = federation.test_groups(accuracies.missing)
    return tensors | _look_inside(federation, state, memories, groups, tell)


@torch.no_grad()
def _look_inside(
    federation: Federation,
    state: ServerState,
    memories: Mapping[int, ClientMemory],
    groups: Sequence[Sequence[int]],
    tell: Tell,
) -> dict[str, Tensor]:
    """Average what the method shows of each image by true class; take some cls tokens of all clients."""
    host, config = federation.host, federation.config
    method = config.method
    share = -(-config.evaluation.cls_sample // len(groups))
    blocks = tuple(range(method.first_block(host.sizes), host.sizes.depth + 1))
    sums: dict[str, Tensor] = {}
    seen = torch.zeros(federation.host.sizes.classes)
    cls, labels = [], []
    for done, group in enumerate(groups):
        tell("looking inside the model", done, len(groups))
        sent = method.download(state, group[0], host.sizes, config.seed)
        download = Download(group[0], state.round, sent)
        memory = memories.get(group[0], ClientMemory())
        samples, tensors = host.prepare_test(group, download, memory)
        left = share
        for batch in samples.batches(config.evaluation.chunk):
            seen += torch.bincount(batch.labels.cpu(), minlength=len(seen))
            for name, values in method.inspect(tensors, batch).items():
                total = sums.setdefault(name, values.new_zeros(len(seen), *values.shape[1:]).cpu())
                total.index_add_(0, batch.labels.cpu(), values.cpu())
            if left > 0 and len(blocks) > 1:
                tokens = batch.cls_tokens(method.prompter(tensors, batch), blocks)
                cls.append(tokens[:left].cpu())
                labels.append(batch.labels[:left].cpu())
                left -= len(batch)
    means = {f"mean_{name}": t / seen.clamp(min=1).view(-1, *[1] * (t.ndim - 1)) for name, t in sums.items()}
    return means | ({"cls_tokens": torch.cat(cls), "cls_labels": torch.cat(labels).int()} if cls else {})

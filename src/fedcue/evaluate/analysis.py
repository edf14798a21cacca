"""What the figures need from a finished simulation: confusions, mixing weights, cls tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.clients.federation import Federation
from fedcue.evaluate.accuracy import Accuracies
from fedcue.model.prompted import no_prompts
from fedcue.rng import rng
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
        "confusion": torch.from_numpy(np.bincount(pairs, minlength=classes * classes))
        .view(classes, classes)
        .int(),
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
    """Average what the method shows for each image by true class; take some cls tokens of all clients."""
    host, config = federation.host, federation.config
    method = config.method
    share = -(-config.evaluation.cls_sample // len(groups))
    blocks = tuple(range(method.first_block(host.sizes), host.sizes.depth + 1))
    sums: dict[str, Tensor] = {}
    seen = torch.zeros(federation.host.sizes.classes)
    cls, labels = [], []
    for done, group in enumerate(groups):
        tell("looking inside the model", done, len(groups))
        client, *_ = group
        sent = method.download(state, client, host.sizes, config.seed)
        download = Download(client=client, round=state.round, tensors=sent)
        memory = memories.get(client, ClientMemory())
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


Tell = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done and how many there are."""


EQUAL = 1e-12
"""Cosine similarities closer than this are a tie, as all of them are where cls has seen no image yet."""


def prototype_accuracy(
    federation: Federation, tested: NDArray[np.int64], tell: Tell = lambda name, done, total: None
) -> dict[str, Tensor]:
    """Return top-1 and top-5 accuracy of the nearest prototypes, by block input and last the output.

    The prototypes are class means of cls over the training clients' images or a sample of them; the
    images named are those ``tested`` or a sample of them: ``evaluation.prototype_sample``. Beside them
    stands how many of how many images were taken.
    """
    sample, seed = federation.config.evaluation.prototype_sample, federation.config.seed
    if not sample:
        return {}
    most = None if sample == "all" else sample
    training = np.concatenate(
        [federation.clients[client].train for client in federation.roster.training_clients]
    )
    known = rng(seed, "prototype sample", "training").permutation(training)[:most]
    asked = rng(seed, "prototype sample", "test").permutation(tested)[:most]
    labels = torch.from_numpy(federation.dataset.labels)
    shape = (federation.host.sizes.classes, federation.model.depth + 1, federation.host.sizes.width)
    sums = torch.zeros(shape, dtype=torch.float64)
    for images, vectors in _cls_by_block(federation, known, partial(tell, "prototypes of training images")):
        sums.index_add_(0, labels[images], vectors)
    held = torch.bincount(labels[known], minlength=len(sums)) > 0
    hits = {k: torch.zeros(shape[1], dtype=torch.float64) for k in (1, 5)}
    for images, vectors in _cls_by_block(federation, asked, partial(tell, "prototypes on test images")):
        similarity = _cosines(vectors, sums)  # [n, L, C]
        similarity[:, :, ~held] = -torch.inf
        own = similarity[torch.arange(len(images)), :, labels[images]]  # [n, L]
        for k, found in hits.items():
            found += top_share(similarity, own, k).sum(0)
    counts = torch.tensor([len(known), len(training), len(asked), len(tested)], dtype=torch.int32)
    shares = {f"prototype_top{k}": (found / len(asked)).float() for k, found in hits.items()}
    return {**shares, "prototype_images": counts}


def top_share(similarity: Tensor, own: Tensor, k: int) -> Tensor:
    """Return the chance that the own class is among the ``k`` nearest, ties broken at random: ``[n, L]``."""
    nearer = (similarity > own[..., None] + EQUAL).sum(2)
    equal = (similarity >= own[..., None] - EQUAL).sum(2) - nearer  # its own class at least
    share = ((k - nearer) / equal).clamp(0, 1)
    return torch.where(own.isfinite(), share, 0.0)


def _cosines(vectors: Tensor, means: Tensor) -> Tensor:
    unit, prototypes = (torch.nn.functional.normalize(t, dim=2) for t in (vectors, means))
    return torch.einsum("nld,cld->nlc", unit, prototypes)


@torch.no_grad()
def _cls_by_block(
    federation: Federation, images: NDArray[np.int64], progress: Callable[[int, int], None]
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield images and their bare cls at every block's input and at the output: ``[n, depth + 1, d]``."""
    model, chunk = federation.model, federation.config.evaluation.chunk
    blocks = tuple(range(model.depth + 1))
    for start in range(0, len(images), chunk):
        federation.host.stop.check()
        progress(start, len(images))
        some = images[start : start + chunk]
        prefix = model.prefix(federation.pixels[some], project=False)
        yield some, model.cls_tokens(prefix, no_prompts, blocks).double().cpu()

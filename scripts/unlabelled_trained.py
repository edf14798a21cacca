"""Clients without labels under the models of finished runs: the second table of docs/unlabelled.md.

python scripts/unlabelled_trained.py docs/results RUN... [KEY=VALUE]...

Clients are drawn from the test images of a run's data as in ``unlabelled``, the same ones for every method.
Where priors enter the prompts (PEP-FedPT), estimates come from even mixing, and each takes another pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from unlabelled import (
    CLIENTS,
    COLUMNS,
    IMAGES,
    SEEDS,
    TEMPERATURE,
    Client,
    Floats,
    Images,
    Integers,
    Row,
    former_em,
    grouped,
    mix_of,
    show,
    write,
)

import fedcue
from fedcue.after.predict import Model
from fedcue.clients.priors import concentration_of
from fedcue.config.layers import load_folder, parse
from fedcue.data.pixels import decode_images
from fedcue.methods.pep import PEP
from fedcue.train.batches import Samples


@dataclass(frozen=True)
class Trained:
    """The model of a finished run, and the test images of its data."""

    model: Model
    pixels: Tensor
    labels: Integers
    domains: Integers

    @classmethod
    def of(cls, folder: Path, settings: dict[str, Any]) -> Trained:
        """Read a run folder and its data."""
        config, model = load_folder(folder, settings), fedcue.load(folder)
        dataset = config.data.load(config.seed)
        rows = np.flatnonzero(dataset.is_test)
        pixels = decode_images(dataset, rows, model.model.architecture.image_size, config.data)[rows]
        domains = np.zeros(len(dataset), dtype=np.int64) if dataset.domains is None else dataset.domains
        return cls(model, pixels, dataset.labels[rows], domains[rows])

    @property
    def mixes(self) -> bool:
        """Whether priors enter the prompts, so that other priors need another pass."""
        return isinstance(self.model.method, PEP)

    @torch.no_grad()
    def logits(self, rows: Integers, priors: Floats) -> Floats:
        """Return the method's scores of some images under priors ``[n, C]``, none added to them yet."""
        log_priors = torch.from_numpy(priors).log().float()
        tensors = self.model.tensors(log_priors, None)
        seen = self.model.one_pass(self.pixels[rows])
        batches = Samples(seen, torch.zeros(len(rows), dtype=torch.int64), log_priors).batches(100)
        logits = torch.cat([self.model.method.logits(tensors, batch).float() for batch in batches])
        return logits.numpy().astype(np.float64)

    def under_even_priors(self) -> Images:
        """Return all test images with the scores that know of no priors."""
        classes = len(self.model.classes)
        even = np.full((len(self.labels), classes), 1 / classes)
        return Images(self.logits(np.arange(len(self.labels)), even), self.labels, self.domains)

    def under(self, clients: Sequence[Client], priors: Sequence[Floats]) -> list[Client]:
        """Return the clients with scores under their priors, where that makes a difference."""
        if not self.mixes:
            return list(clients)
        sizes = [len(client.rows) for client in clients]
        found = self.logits(np.concatenate([client.rows for client in clients]), np.repeat(priors, sizes, 0))
        parts = np.split(found, np.cumsum(sizes)[:-1])
        return [replace(client, logits=part) for client, part in zip(clients, parts, strict=True)]


def rows_of_trained(run: Trained, source: Images, split: str, seed: int) -> Iterator[Row]:
    """Yield accuracies of one trained model, with the prior on its logits and, if it mixes by it, without."""
    method, classes, rng = run.model.method.name, len(run.model.classes), np.random.default_rng(seed)
    held, even = classes // 10, np.full(classes, 1 / classes)
    mixes = [mix_of(split, classes, held, rng) for _ in range(CLIENTS)]
    learned = concentration_of(rng.multinomial(50, mix) for mix in mixes)
    for images in IMAGES[:3]:
        own = source.clients(split, held, images, CLIENTS // 2, rng)
        ways = {
            "uniform": [even for _ in own],
            "EM": [former_em(client) for client in own],
            "em": [client.estimate(learned, TEMPERATURE) for client in own],
            "true": [client.mix for client in own],
        }
        for way, priors in ways.items() if own else ():
            scored = own if way == "uniform" else run.under(own, priors)
            added = [client.accuracy(prior) for client, prior in zip(scored, priors, strict=True)]
            yield f"{method}, log prior", split, images, way, seed, fmean(added)
            if run.mixes:
                yield method, split, images, way, seed, fmean(client.accuracy(even) for client in scored)


def trained(out: Path, folders: Sequence[str], settings: dict[str, Any]) -> None:
    """Write the accuracies of clients without labels under the models of finished runs to a CSV."""
    rows: list[Row] = []
    for folder in folders:
        run = Trained.of(Path(folder), settings)
        source = run.under_even_priors()
        for split, seed in product(("pathological", "Dir(0.3)"), range(SEEDS)):
            rows += rows_of_trained(run, source, split, seed)
            write(out / "unlabelled-trained.csv", ("method", *COLUMNS[1:]), rows)
    show(grouped(rows))


if __name__ == "__main__":
    given = parse([text for text in sys.argv[2:] if "=" in text])
    trained(Path(sys.argv[1]), [text for text in sys.argv[2:] if "=" not in text], given)

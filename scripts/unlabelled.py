"""What missing labels cost a client, and what its images without labels give back (docs/unlabelled.md).

python scripts/unlabelled.py features FOLDER NAME RECIPE PER_TRAIN PER_TEST [KEY=VALUE]...
python scripts/unlabelled.py tables FOLDER docs/results

The first keeps the final cls tokens of some images of each class under cue's first prompts, for NAME
cifar100, tiny or pacs. The second is arithmetic on them: heads are made of two thirds of the training images,
settings are chosen on clients drawn from the others, and clients drawn from test images decide nothing.
``unlabelled_trained`` draws such clients from the test images of finished runs.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedcue.aggregate.closed_form import prototype_head, whitening
from fedcue.clients.priors import concentration_of, estimate_priors, is_doubtful
from fedcue.config.sections import EvaluationOptions
from fedcue.report.figures.draw import save
from fedcue.report.figures.figure import Axis, Figure, Panel, Series

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Row = tuple[str, str, int, str, int, float]
"""Data set, split, images of a client, how priors are known, seed, mean accuracy over clients (or a rate)."""
Groups = dict[tuple[str, str, int, str], list[float]]
"""The values of all seeds."""

SEEDS, CLIENTS, IMAGES = 3, 40, (10, 20, 40, 100)
TEMPERATURE, TEMPERATURES = EvaluationOptions().temperature, (1.0, 1.25, 1.5, 2.0)
HELD = {"cifar100": 10, "tiny": 10, "pacs": 5}
"""Classes of a client of the pathological split, equally frequent but for chance."""
COLUMNS = ("data", "split", "images", "priors", "seed", "value")


@dataclass(frozen=True)
class Client:
    """One client: how frequent its classes are, and the logits and labels of its images."""

    mix: Floats
    logits: Floats
    labels: Integers
    rows: Integers
    """Which of the images it was drawn from are its own."""

    def accuracy(self, priors: Floats) -> float:
        """Return how many of its images are classified right under these priors."""
        with np.errstate(divide="ignore"):
            return float(((self.logits + np.log(priors)).argmax(1) == self.labels).mean())

    def estimate(self, concentration: float, temperature: float, labelled: ArrayLike = 0) -> Floats:
        """Estimate its priors as fedcue does, as exactly as a table needs."""
        return estimate_priors(self.logits, concentration, temperature, labelled, tolerance=1e-4)


@dataclass(frozen=True)
class Images:
    """Logits, labels and domains of images."""

    logits: Floats
    labels: Integers
    domains: Integers

    def client(self, mix: Floats, images: int, rng: np.random.Generator) -> Client | None:
        """Draw a client of one domain, no image twice; none if a class has too few images."""
        domain = rng.choice(np.unique(self.domains))
        rows = [np.flatnonzero((self.domains == domain) & (self.labels == c)) for c in range(len(mix))]
        counts = rng.multinomial(images, mix)
        if any(n > len(own) for n, own in zip(counts, rows, strict=True)):
            return None
        chosen = np.concatenate([rng.permutation(own)[:n] for own, n in zip(rows, counts, strict=True)])
        return Client(mix, self.logits[chosen], self.labels[chosen], chosen)

    def clients(
        self, split: str, held: int, images: int, count: int, rng: np.random.Generator
    ) -> list[Client]:
        """Draw so many clients; none if too few of those tried find their images."""
        drawn: list[Client] = []
        for _ in range(20 * count):
            client = self.client(mix_of(split, self.logits.shape[1], held, rng), images, rng)
            drawn += [client] if client is not None else []
            if len(drawn) == count:
                return drawn
        return []


def mix_of(split: str, classes: int, held: int, rng: np.random.Generator) -> Floats:
    """Draw how frequent a client's classes are."""
    if split == "Dir(0.3)":
        return rng.dirichlet(np.full(classes, 0.3))
    mix = np.zeros(classes)
    mix[rng.permutation(classes)[:held]] = rng.uniform(0.4, 0.6, held)
    return np.asarray(mix / mix.sum())


def images_of(folder: Path, name: str, seed: int) -> tuple[Images, Images]:
    """Return validation and test images, under a head made of two thirds of the training images."""
    kept = np.load(folder / f"{name}.npz")
    vectors, labels, test = kept["features"].astype(np.float64), kept["labels"], kept["is_test"]
    rng, fit = np.random.default_rng(seed), np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(~test & (labels == label))
        fit[rng.permutation(rows)[: 2 * len(rows) // 3]] = True
    means = np.stack([vectors[fit & (labels == c)].mean(0) for c in np.unique(labels)])
    apart = vectors[fit] - means[labels[fit]]
    transform = whitening(torch.from_numpy(apart.T @ apart / (fit.sum() - len(means)))).double()
    head = prototype_head(torch.from_numpy(means), torch.ones(len(means), dtype=torch.bool), 10.0, transform)
    logits = vectors @ head["head"].numpy().T + head["head_bias"].numpy()
    validation, tests = (Images(logits[p], labels[p], kept["domains"][p]) for p in (~test & ~fit, test))
    return validation, tests


def former_em(client: Client) -> Floats:
    """Estimate priors by plain EM over the softmax of the logits."""
    scores = np.exp(client.logits - client.logits.max(1, keepdims=True))
    priors = np.full(scores.shape[1], 1 / scores.shape[1])
    for _ in range(200):
        shares = scores * priors
        priors = (shares / shares.sum(1, keepdims=True)).mean(0)
    return priors


def changed(mix: Floats, how: str, rng: np.random.Generator) -> Floats:
    """Return a mix after training: drawn around the old one, or the same shares of other classes."""
    if how == "around":
        return rng.dirichlet(10 * mix + 0.01)
    order, half = np.argsort(-mix), len(mix) // 2
    new = np.zeros_like(mix)
    new[rng.permutation(order[half:])[:half]] = mix[order[:half]]
    return np.asarray(new / new.sum())


def rows_of(folder: Path, name: str, split: str, seed: int) -> Iterator[Row]:
    """Yield all numbers of one data set, split and seed."""
    validation, test = images_of(folder, name, seed)
    classes, rng = test.logits.shape[1], np.random.default_rng(seed)
    mixes = [mix_of(split, classes, HELD[name], rng) for _ in range(CLIENTS)]
    learned = concentration_of(rng.multinomial(50, mix) for mix in mixes)
    even = np.full(classes, 1 / classes)

    def row(images: int, priors: str, values: list[float]) -> Row:
        return name, split, images, priors, seed, fmean(values)

    def clients(source: Images, images: int) -> list[Client]:
        return source.clients(split, HELD[name], images, CLIENTS, rng)

    many = 20 if name == "pacs" else 40
    held_out = clients(validation, many)
    if held_out:
        yield row(many, "validation, EM", [c.accuracy(former_em(c)) for c in held_out])
    for temperature in TEMPERATURES if held_out else ():
        found = [c.accuracy(c.estimate(learned, temperature)) for c in held_out]
        yield row(many, f"validation, temperature {temperature:g}", found)
    yield row(0, "concentration", [learned])
    for images in IMAGES:
        own = clients(test, images)
        if not own:
            continue
        yield row(images, "uniform", [c.accuracy(even) for c in own])
        yield row(images, "EM", [c.accuracy(former_em(c)) for c in own])
        yield row(images, "em", [c.accuracy(c.estimate(learned, TEMPERATURE)) for c in own])
        yield row(images, "true", [c.accuracy(c.mix) for c in own])
        yield row(images, "false alarms", [float(is_doubtful(c.logits, c.mix)) for c in own])
        for k in (1, 2, 5) if images == 40 else ():
            labelled = [k * (c.mix > 1 / (10 * classes)) for c in own]
            found = [
                c.accuracy(c.estimate(learned, TEMPERATURE, n)) for c, n in zip(own, labelled, strict=True)
            ]
            yield row(images, f"em, {k} labelled", found)
    for how in ("around", "disjoint"):
        pairs = [(old, test.client(changed(old, how, rng), 40, rng)) for old in mixes]
        moved = [(0.99 * old + 0.01 * even, c) for old, c in pairs if c is not None]
        if moved:
            yield row(40, f"{how}: labels", [c.accuracy(old) for old, c in moved])
            yield row(40, f"{how}: em", [c.accuracy(c.estimate(learned, TEMPERATURE)) for _, c in moved])
            yield row(40, f"{how}: uniform", [c.accuracy(even) for _, c in moved])
            yield row(40, f"{how}: warned", [float(is_doubtful(c.logits, old)) for old, c in moved])


def tables(folder: Path, out: Path) -> None:
    """Write every number to a CSV, and show their means."""
    names = [name for name in HELD if (folder / f"{name}.npz").is_file()]
    cells = product(names, ("pathological", "Dir(0.3)"), range(SEEDS))
    rows = [row for name, split, seed in cells for row in rows_of(folder, name, split, seed)]
    write(out / "unlabelled.csv", COLUMNS, rows)
    groups = grouped(rows)
    if "cifar100" in names:
        save(figure(groups), out / "unlabelled.png")
    show(groups)


def write(file: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows to a CSV."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows((*row[:-1], f"{row[-1]:.4f}") for row in rows)


def grouped(rows: Sequence[Row]) -> Groups:
    """Return the values of all seeds together."""
    groups: Groups = {}
    for *key, _, value in rows:
        groups.setdefault(tuple(key), []).append(value)  # type: ignore[arg-type]
    return groups


def show(groups: Groups) -> None:
    """Show means and their spread over seeds."""
    for key, values in groups.items():
        spread = 100 * stdev(values) if len(values) > 1 else 0.0
        print(*key, f"{100 * fmean(values):.1f} ± {spread:.1f}", sep=" | ")


LINES = {"true": "the true class mix", "em": "em, from the images", "EM": "plain EM", "uniform": "uniform"}
"""How priors are known, and what the figure calls it."""


def figure(groups: Groups) -> Figure:
    """Draw accuracy by the number of images, for clients of ten classes of CIFAR-100."""
    series = []
    for slot, (priors, label) in enumerate(LINES.items()):
        found = {n: groups["cifar100", "pathological", n, priors] for n in IMAGES}
        series.append(Series(label, list(found), [fmean(v) for v in found.values()], slot))
    title = "CIFAR-100, ten classes a client: what images without labels give back"
    axes = Axis("images of a client, without labels", log=True), Axis("mean accuracy", percent=True)
    return Figure("unlabelled", title, (Panel("line", *axes, tuple(series), title=title),))


def features(
    folder: Path, name: str, recipe: str, per_train: int, per_test: int, settings: list[str]
) -> None:
    """Keep the final cls tokens of some images of each class, under cue's first prompts."""
    from fedcue.after.images import OnePass
    from fedcue.clients.federation import load_model
    from fedcue.config.layers import load
    from fedcue.data.pixels import decode_images
    from fedcue.methods.cue import Cue
    from fedcue.types import Sizes

    limits = [f"data.train_per_class={per_train}", f"data.test_per_class={per_test}"]
    config = load(recipe, ["method=cue", "precision=float32", *limits, *settings])
    dataset, model, cue = config.data.load(config.seed), load_model(config), Cue()
    shape = model.architecture
    sizes = Sizes(len(dataset.classes), shape.width, shape.depth, shape.patch, clients=1)
    tensors, out = cue.table(sizes).first(config.seed), np.zeros((len(dataset), shape.width), np.float32)
    for rows in np.array_split(np.arange(len(dataset)), len(dataset) // 64 + 1):
        pixels = decode_images(dataset, rows, shape.image_size, config.data)
        with torch.no_grad():
            batch = OnePass(model, pixels[rows], 0, ()).whole(torch.zeros(sizes.classes))
            out[rows] = batch.features(cue.prompter(tensors, batch))[:, 0].numpy()
    domains = np.zeros(len(dataset), dtype=np.int64) if dataset.domains is None else dataset.domains
    kept: dict[str, Any] = {
        "features": out,
        "labels": dataset.labels,
        "is_test": dataset.is_test,
        "domains": domains,
    }
    np.savez(folder / f"{name}.npz", **kept)


if __name__ == "__main__":
    if sys.argv[1] == "features":
        name, recipe, per_train, per_test, *settings = sys.argv[3:]
        features(Path(sys.argv[2]), name, recipe, int(per_train), int(per_test), settings)
    else:
        tables(Path(sys.argv[2]), Path(sys.argv[3]))

"""Accuracy of heads in closed form against epsilon: the table and the figure of docs/trust.md.

python scripts/accuracy_by_epsilon.py measure cifar100-pathological FEATURES.npy scale=full data.root=FOLDER
python scripts/accuracy_by_epsilon.py show

``measure`` writes the frozen backbone's features of all images to FEATURES.npy and then does both halves
of every run with the package's own code, noise and accounting. It goes on where it stopped: what the table
has is not measured again. Every client replies once for each method and unit; noise is drawn anew for each
epsilon and seed.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcue.clients.federation import describe, load_model, prompted, split
from fedcue.clients.host import Host
from fedcue.clients.roster import Roster
from fedcue.config.layers import load
from fedcue.config.settings import RunConfig
from fedcue.data.clients import Clients
from fedcue.data.dataset import Dataset, Indices
from fedcue.data.pixels import decode_images
from fedcue.errors import FedcueError
from fedcue.evaluate.accuracy import Accuracies
from fedcue.model.prompted import Prefix, PromptedViT
from fedcue.model.vit import VisionTransformer
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.guard import simulated_stream
from fedcue.report.figures.draw import save
from fedcue.report.figures.figure import Axis, Figure, Panel, Series
from fedcue.types import ClientMemory, Download, Update

TABLE = Path(__file__).parents[1] / "docs" / "results" / "epsilon.csv"
PAGE = TABLE.parents[1] / "trust.md"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
METHODS = {
    "ncm": [],
    "ncm, whitened": ["method.whiten=true"],
    "fed3r": [],
    "fedcof": [],
}
REFUSED = [("fedcof", "central")]
UNITS = ("image", "client")
PLACES = ("central", "local")
NOISY = {"central": "server", "local": "each client"}
PRIORS = ("none", "test")
CHUNK = 1024


@dataclass(frozen=True)
class Kept:
    """Features that were computed once, for the images asked for."""

    model: PromptedViT
    features: NDArray[np.float32]
    images: Indices | None = None

    def view(self, images: Indices, augment: object = None) -> Kept:
        """Return the features of some images, in the order given."""
        return replace(self, images=images)

    def prefix(self, rows: Tensor, generator: object = None) -> Prefix:
        """Return the final cls tokens of the images at ``rows``, as long as the model makes them."""
        assert self.images is not None
        tokens = torch.from_numpy(self.features[self.images[rows.numpy()]])[:, None]
        return Prefix(self.model.depth, tokens * self.model.feature_scale)

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return no tokens of inner blocks: no head in closed form asks for them."""
        return inputs.tokens[:, :0]


@dataclass(frozen=True)
class Task:
    """The clients of a recipe, their images' features and the backbone that made them."""

    recipe: str
    settings: Sequence[str]
    dataset: Dataset
    clients: Clients
    backbone: VisionTransformer
    features: NDArray[np.float32]

    @classmethod
    def of(cls, recipe: str, file: Path, settings: Sequence[str]) -> Task:
        """Read the data and compute the features that are not in the file yet."""
        config = load(recipe, ["method=ncm", "precision=float32", *settings])
        dataset, model = config.data.load(config.seed), load_model(config)
        features = computed(config, dataset, model, file)
        return cls(recipe, settings, dataset, split(config, dataset), model.backbone, features)

    def run(self, method: str, *settings: str) -> Run:
        """Return one run with further settings."""
        given = [*self.settings, "precision=float32", f"method={method.split(',')[0]}", *METHODS[method]]
        config = load(self.recipe, [*given, *settings])
        model = prompted(config, self.backbone, "cpu")
        roster = describe(config, self.dataset, model.architecture, self.clients)
        kept, everyone = Kept(model, self.features), range(len(self.clients))
        return Run(roster, Host(config, self.clients, everyone, kept, roster.sizes, roster.protection))


def computed(config: RunConfig, dataset: Dataset, model: PromptedViT, file: Path) -> NDArray[np.float32]:
    """Return the final cls token of every image; what the file lacks is computed."""
    shape = (len(dataset), model.architecture.width)
    if not file.exists():
        np.save(file, np.zeros(shape, np.float32))
    features = np.load(file, mmap_mode="r+")
    missing = np.flatnonzero(~features.any(1))
    for start in range(0, len(missing), CHUNK):
        part = missing[start : start + CHUNK]
        pixels = decode_images(dataset, part, model.architecture.image_size, config.data)
        for images in np.array_split(part, max(1, len(part) // 64)):
            features[images] = model.prefix(pixels[images], model.depth).tokens[:, 0].float().numpy()
        print(f"{start + len(part)} of {len(missing)} images", flush=True)
    return np.asarray(features)


@dataclass(frozen=True)
class Run:
    """What a run without rounds does, step by step."""

    roster: Roster
    host: Host

    def replies(self) -> list[Update]:
        """Return what every client sends if it adds no noise itself."""
        protection = self.roster.protection
        if isinstance(protection.privacy, DifferentialPrivacy):
            quiet = protection.privacy.model_copy(update={"where": "central"})
            protection = replace(protection, privacy=quiet)
        host = replace(self.host, protection=protection)
        replies = (host.warm_up(client) for client in self.roster.schedule.first())
        return [reply for reply in replies if reply is not None]

    def accuracies(self, replies: Sequence[Update], seed: int, local: bool) -> dict[str, float]:
        """Return the clients' mean accuracy under the noise of a seed, with and without their priors."""
        method = self.roster.method
        protection = replace(self.roster.protection, stream=simulated_stream(seed))
        adding = protection.adding({}, "warm up")
        for reply in replies:
            adding.add(protection.guard(reply.client, "warm up").leave(reply, {}) if local else reply)
        try:
            state = method.start(self.roster.sizes, seed, adding.sums())
        except FedcueError:  # the noise hides all classes, and the run ends
            return dict.fromkeys(PRIORS, math.nan)
        everyone = self.roster.tested()
        found = {}
        for prior in PRIORS:
            deciding = method.model_copy(update={"logit_prior": prior})
            host = replace(self.host, config=self.host.config.model_copy(update={"method": deciding}))
            sent = Download(0, 0, method.download(state, 0, self.roster.sizes, seed))
            prediction = host.test(everyone, sent, ClientMemory(), True)
            found[prior] = float(Accuracies.of(self.roster, prediction, {}).accuracies.mean())
        return found


@dataclass(frozen=True)
class Cell:
    """The mean accuracy of the clients in one run, in percent; the fields are the columns of the table."""

    data: str
    method: str
    prior: str
    unit: str
    where: str
    epsilon: str
    seed: int
    accuracy: float


def measured(task: Task, seeds: int, known: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the accuracy of every method, unit, place of the noise, epsilon, seed and prior not known yet."""
    data, there = task.dataset.name, {astuple(cell)[:-1] for cell in known}
    for where, unit in product(("", *PLACES), UNITS):
        replies: dict[str, list[Update]] = {}
        for seed, method, epsilon in product(range(seeds), METHODS, EPSILONS):
            ways = (data, method, "none", unit, where, f"{epsilon:g}", seed)
            if not where:
                ways = (data, method, "none", "", "", "none", 0)
            if ways in there or (method, where) in REFUSED:
                continue
            there.add(ways)
            private = [f"privacy.unit={unit}", f"privacy.where={where}", f"privacy.max_epsilon={epsilon}"]
            run = task.run(method, *(["privacy=dp", *private] if where else []))
            assert not where or 0.999 * epsilon < run.roster.budget.planned().epsilon <= epsilon
            replies[method] = replies.get(method) or run.replies()
            for prior, accuracy in run.accuracies(replies[method], seed, where == "local").items():
                yield Cell(data, method, prior, *ways[3:], 100 * accuracy)


def measure(recipe: str, file: str, *settings: str) -> None:
    """Add to the table what it lacks of a recipe's data; what is measured is kept at once."""
    cells = kept()
    for cell in measured(Task.of(recipe, Path(file), settings), 3, cells):
        print(*astuple(cell), flush=True)
        cells.append(cell)
        with TABLE.open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(field.name for field in fields(Cell))
            writer.writerows((*astuple(cell)[:-1], f"{cell.accuracy:.2f}") for cell in cells)


def kept() -> list[Cell]:
    """Return the cells of the table."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return [
            Cell(**cast(Any, line | {"seed": int(line["seed"]), "accuracy": float(line["accuracy"])}))
            for line in csv.DictReader(file)
        ]


def mean(cells: Sequence[Cell], **wanted: str) -> float | None:
    """Return the mean over seeds of the cells with these values."""
    found = [cell.accuracy for cell in cells if wanted.items() <= asdict(cell).items()]
    return fmean(found) if found else None


def table(cells: Sequence[Cell], prior: str) -> str:
    """Return the table of one way to decide: a line for each method, unit and place of the noise."""
    columns = [f"{epsilon:g}" for epsilon in EPSILONS]
    lines = [f"| data | head | protected | noise by | {' | '.join(columns)} | none |"]
    lines.append("|---|---|---|---|" + "---:|" * (len(EPSILONS) + 1))
    datasets = dict.fromkeys(cell.data for cell in cells)
    for data, method, unit, where in product(datasets, METHODS, UNITS, PLACES):
        if (method, where) in REFUSED:
            continue
        same = {"data": data, "method": method, "prior": prior}
        values = [mean(cells, **same, unit=unit, where=where, epsilon=epsilon) for epsilon in columns]
        values.append(mean(cells, **same, epsilon="none"))
        shown = ["" if value is None else "–" if math.isnan(value) else f"{value:.1f}" for value in values]
        lines.append(f"| {data} | {method} | {unit} | {NOISY[where]} | {' | '.join(shown)} |")
    return "\n".join(lines)


def figure(cells: Sequence[Cell]) -> Figure:
    """Return accuracy by epsilon for one protected image, a panel for each dataset."""
    panels = []
    for data in dict.fromkeys(cell.data for cell in cells):
        lines = []
        heads = ("ncm", "ncm, whitened", "fed3r")
        for slot, (method, where) in enumerate(product(heads, PLACES)):
            same = {"data": data, "method": method, "prior": "none", "unit": "image", "where": where}
            found = [mean(cells, **same, epsilon=f"{epsilon:g}") for epsilon in EPSILONS]
            values = [None if value is None or math.isnan(value) else value / 100 for value in found]
            lines.append(Series(f"{method}, noise by {NOISY[where]}", list(EPSILONS), values, slot))
        axes = Axis("epsilon", log=True), Axis("mean accuracy of the clients", percent=True)
        panels.append(Panel("line", *axes, tuple(lines), title=f"{data}: what it costs to hide one image"))
    return Figure("accuracy-epsilon", "Accuracy of heads in closed form by epsilon", tuple(panels))


def show() -> None:
    """Write the tables into the page between their marks, and the figure beside the table."""
    cells, page = kept(), PAGE.read_text()
    for prior in PRIORS:
        begin, end = f"<!-- accuracy by epsilon, prior {prior} -->\n", "\n<!-- end -->"
        head, rest = page.split(begin)
        page = head + begin + table(cells, prior) + end + rest.split(end, 1)[1]
    PAGE.write_text(page)
    save(figure(cells), TABLE.with_suffix(".png"))


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {"measure": measure, "show": show}
    commands[sys.argv[1]](*sys.argv[2:])

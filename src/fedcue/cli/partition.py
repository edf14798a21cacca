"""``fedcue partition``: who would hold which images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli.arguments import Json, Settings, split_settings
from fedcue.errors import many, printable

if TYPE_CHECKING:
    import numpy as np

    from fedcue.config.settings import RunConfig
    from fedcue.data.partition import Partition
    from fedcue.report.partition_map import PartitionMap


def partition(
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for partition.png and partition.csv.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Short for seed=N.", show_default="0")] = None,
    as_json: Json = False,
) -> None:
    """Show how a recipe shares its data out: sizes and classes of the clients, and a map of both.

    Without data.root the dataset's description is used: its sizes, its classes evenly filled.

    For example:
      fedcue partition cifar100-pathological --out maps/pathological

      fedcue partition partition=dirichlet partition.alpha=0.1 partition.clients=30 --out maps/mine

    """
    import numpy as np

    from fedcue.config.layers import load

    recipe, overrides = split_settings(settings, seed)
    config = load(recipe, overrides)
    shared, parts, described = _share(config)
    files = [] if out is None else shared.write(out)
    facts = {
        "title": shared.title,
        "clients": len(shared.clients),
        "classes": len(shared.classes),
        "training_images": int(shared.train.sum()),
        "test_images": int(shared.test.sum()),
        "training_images_per_client": _spread(shared.train.sum(1)),
        "test_images_per_client": _spread(shared.test.sum(1)),
        "classes_per_client": _spread(np.count_nonzero(shared.train, 1)),
        "clients_per_class": _spread(np.count_nonzero(shared.train, 0)),
        "from_description": described,
        "notes": parts.notes,
        "files": [str(file) for file in files],
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    console = Console(soft_wrap=True)
    _show(console, shared, facts)
    for note in parts.notes:
        console.print(escape(printable(note)), highlight=False)
    for file in files:
        console.print(f"written {file}", highlight=False)


def _share(config: RunConfig) -> tuple[PartitionMap, Partition, bool]:
    """Share the data of a configuration out and count it."""
    import numpy as np

    from fedcue.data.image_sources import only_outlined
    from fedcue.report.partition_map import PartitionMap
    from fedcue.rng import rng

    dataset = config.data.outline(config.seed)
    parts = config.partition.split(dataset, rng(config.seed, "partition"))
    classes = len(dataset.classes)
    train, test = (
        np.stack([np.bincount(dataset.labels[indices], minlength=classes) for indices in part])
        for part in (parts.train, parts.test)
    )
    options = config.partition.model_dump(exclude_none=True, exclude={"own_clients"})
    detail = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in options.items())
    rule = "its own clients" if parts.instead_of else f"{parts.rule} ({detail})"
    title = f"{dataset.name}, {rule}, seed {config.seed}"
    shared = PartitionMap(title, parts.names, parts.domains, dataset.classes, train, test)
    return shared, parts, only_outlined(dataset.images)


def _spread(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, float]:
    import numpy as np

    return {"min": int(values.min()), "median": float(np.median(values)), "max": int(values.max())}


def _show(console: Console, shared: PartitionMap, facts: dict[str, object]) -> None:
    console.print(f"[bold]{escape(shared.title)}[/]", highlight=False)
    if facts["from_description"]:
        console.print("sizes from the dataset's description; give data.root=FOLDER to count", highlight=False)
    console.print(
        f"{many(len(shared.clients), 'client')}, {many(len(shared.classes), 'class', 'classes')}, "
        f"{facts['training_images']:,} training and {facts['test_images']:,} test images",
        highlight=False,
    )
    for key in (
        "training_images_per_client",
        "test_images_per_client",
        "classes_per_client",
        "clients_per_class",
    ):
        spread = facts[key]
        assert isinstance(spread, dict)
        text = f"{spread['min']:,} to {spread['max']:,}, median {spread['median']:,.0f}"
        console.print(f"  {key.replace('_', ' '):28s}{text}", highlight=False)
    _show_clients(console, shared)


def _show_clients(console: Console, shared: PartitionMap, limit: int = 10) -> None:
    """List the first clients with their most frequent classes."""
    import numpy as np

    for client, name in enumerate(shared.clients[:limit]):
        counts = shared.train[client]
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        top = ", ".join(f"{shared.classes[label]} {counts[label]}" for label in order[:5].tolist())
        more = f", and {len(order) - 5} more classes" if len(order) > 5 else ""
        line = (
            f"  {name}: {counts.sum()} training images ({top}{more}), {shared.test[client].sum()} test images"
        )
        console.print(escape(printable(line)), highlight=False)
    if len(shared.clients) > limit:
        console.print(f"  ... and {many(len(shared.clients) - limit, 'more client')}", highlight=False)

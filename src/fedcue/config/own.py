"""Images of one's own: what a recipe leaves open (``data = "own"``) is decided by looking at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedcue.config.settings import RunConfig
from fedcue.data.clients import choose_heldout
from fedcue.data.dataset import Dataset, tell_once
from fedcue.data.partition import ByDomain, Dirichlet, Natural, PartitionOptions
from fedcue.data.readers.recognise import guess
from fedcue.errors import ConfigError, many
from fedcue.registry import DATASETS, PARTITIONS
from fedcue.rng import rng

OWN = "own"
"""Name that stands for what the images themselves suggest."""

CLIENTS, ALPHA, IMAGES = 10, 0.5, (10, 4)
"""Where images have no owners: most clients, their concentration, fewest training and test images of each."""

PER_ROUND, PASSES, ROUNDS = 5, 4, (5, 50)
"""Clients in a round, how often an image is trained on about, and rounds at least and at most."""


def decided(open_settings: Mapping[str, Any], known: Callable[[dict[str, Any]], RunConfig]) -> dict[str, Any]:
    """Return the settings with what was left open: reader, partition, clients in a round and rounds.

    ``known`` makes a configuration of settings, to see what they say besides.
    """
    settings = deepcopy(dict(open_settings))
    if settings["data"]["name"] == OWN:
        settings["data"]["name"] = _reader(settings["data"].get("root"))
    if settings["partition"]["name"] != OWN:
        return settings
    config = known(deepcopy(settings) | {"partition": {"name": Natural.name}})
    dataset = config.data.outline(config.seed)
    given = {key: value for key, value in settings["partition"].items() if key != "name"}
    chosen = _suggested(dataset, config.seed)
    partition = {"name": PARTITIONS.name_of(type(chosen)), **chosen.model_dump(exclude_unset=True), **given}
    clients = chosen.split(dataset, rng(config.seed, "partition"))
    training = len(clients) - len(choose_heldout(clients, config.heldout, rng(config.seed, "heldout")))
    drawn = int(settings.get("clients_per_round", min(PER_ROUND, training)))
    least, most = ROUNDS
    rounds = min(most, max(least, math.ceil(PASSES * training / max(1, drawn))))
    return {"rounds": rounds, **settings, "clients_per_round": drawn, "partition": partition}


def _reader(root: Any) -> str:
    """Return the name of the reader that suits the files."""
    if not isinstance(root, str | Path) or not str(root):
        raise ConfigError(
            "Where are your images? Give data.root=FOLDER, or the path of a list (.csv, .parquet)."
        )
    return DATASETS.name_of(type(guess(Path(root))))


def _suggested(dataset: Dataset, seed: int) -> PartitionOptions:
    """Return the partition a dataset suggests: by its clients, by its domains, or else a drawn one."""
    if dataset.owners is not None:
        return Natural()
    if dataset.domains is not None:
        return ByDomain(clients_per_domain=1)
    room = (len(part) // images for part, images in zip((dataset.train, dataset.test), IMAGES, strict=True))
    clients = max(1, min(CLIENTS, *room))
    tell_once(
        f"Nothing says whose the images are: they are shared out among {many(clients, 'client')} by a "
        f"Dirichlet draw (alpha {ALPHA}, seed {seed}). Folders CLIENT/CLASS/x.jpg say it, or a list with a "
        "column client."
    )
    return Dirichlet(clients=clients, alpha=ALPHA)

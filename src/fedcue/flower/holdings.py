"""What a node reads for a run: its clients' images and the backbone, in its own words and the server's.

Once read it serves every message of the run, in this process and in those that are forked from it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedcue.clients.federation import frozen_values, load_model, split
from fedcue.config.layers import resolve
from fedcue.config.settings import RunConfig
from fedcue.data.apportion import by_owner
from fedcue.data.clients import ClientData, drop_images, make_clients
from fedcue.data.dataset import Dataset
from fedcue.data.options import DataOptions
from fedcue.data.partition import Partition
from fedcue.data.pixels import decode_images
from fedcue.data.readers.parquet import Parquet
from fedcue.data.readers.recognise import guess
from fedcue.errors import ConfigError
from fedcue.flower.journal import Images
from fedcue.flower.terms import RefusalError, Terms
from fedcue.foreign import expanded
from fedcue.machine import one_thread
from fedcue.model.frozen_cache import FrozenCache
from fedcue.types import Sizes

log = logging.getLogger(__name__)
_OF_PIXELS = ("root", "classes", "on_bad_image", "max_pixels", "augment", "cache_bytes", "cache_folder")
"""Settings of a dataset that do not say who owns its images."""


@dataclass(frozen=True)
class _Wanted:
    """What has to be read for a message: by everything that decides it, and with the terms in full."""

    what: str
    items: tuple[tuple[str, Any], ...]
    terms: Terms = field(compare=False)

    @classmethod
    def of(cls, terms: Terms, node: Mapping[str, Any]) -> _Wanted:
        settings = {key: value for key, value in terms.settings.items() if key != "privacy"}
        what = replace(terms, settings=settings, method="", asked=0)  # the server settles these by and by
        return cls(what.to_json(), tuple(sorted(node.items())), terms)


@dataclass(frozen=True)
class Held:
    """What was read: it may serve every message of a run."""

    own: Terms
    """The terms as this machine saw them when it read."""
    clients: tuple[ClientData, ...]
    frozen: FrozenCache
    sizes: Sizes
    images: dict[int, Images]
    """What the journal knows the clients' images by."""


was_read: list[str] = []
"""What this process has read for its messages, for ``read_again`` in another; nothing that is on a GPU."""


def held(terms: Terms, node: Mapping[str, Any]) -> Held:
    """Return what a node has for a run, read now or earlier."""
    return _read(_Wanted.of(terms, node))


def read_again(text: str) -> None:
    """Read what another process has read, with one thread: processes forked from this one may use more."""
    terms, items = json.loads(text)
    with one_thread():
        held(Terms.from_json(terms), dict(items))


@lru_cache(maxsize=32)
def _read(wanted: _Wanted) -> Held:
    terms, node = wanted.terms, dict(wanted.items)
    config = own_config(terms, node)
    model = load_model(config)
    shape = model.architecture
    own = Terms.of(terms.run, config, terms.classes, shape, terms.clients)
    terms.compare(own)
    dataset, clients = _site_data(config, terms, node) if "data" in node else _partition(config, terms, node)
    parts = [part for client in clients for part in (client.train, client.validation, client.test)]
    pixels = decode_images(dataset, np.concatenate(parts), shape.image_size, config.data)
    clients = drop_images(dataset, clients, pixels.bad)
    sizes = Sizes(len(terms.classes), shape.width, shape.depth, shape.patch, terms.clients, terms.domains)
    groups = [part for client in clients for part in (client.train, client.tested(config.evaluation.on)[0])]
    frozen = frozen_values(config, model, pixels, groups, sizes)
    images = _images(config, node, clients, dataset.owners is not None or "data" not in node)
    if model.device.type == "cpu":
        was_read.append(json.dumps([terms.to_json(), wanted.items]))
    return Held(own, clients, frozen, sizes, images)


def _images(
    config: RunConfig, node: Mapping[str, Any], clients: Sequence[ClientData], several: bool
) -> dict[int, Images]:
    """Return what the journal knows the clients' images by; the name of a site's only client is none."""
    how: list[Any]
    if "data" in node:
        path = expanded(str(node["data"]))
        place, how = str(path.resolve()), [_dividing(_site_options(config, path))]
    else:
        root = config.data.root
        place = config.data.name if root is None else str(expanded(root).resolve())
        how = [config.seed, _dividing(config.data), vars(config.partition)]
    division = hashlib.sha256(repr(how).encode()).hexdigest()[:16]
    return {one.id: Images(place, division, one.name if several else "") for one in clients}


def _dividing(options: DataOptions) -> dict[str, Any]:
    """Return the settings of a dataset by which its images may be divided among clients."""
    return {"kind": options.name} | {
        key: value for key, value in vars(options).items() if key not in _OF_PIXELS
    }


def own_config(terms: Terms, node: Mapping[str, Any]) -> RunConfig:
    """Return the server's settings with what this machine has for itself."""
    keys = {"backbone": "backbone.name", "device": "device", "data-root": "data.root"}
    own = {keys[key]: str(value) for key, value in node.items() if key in keys}
    return resolve(terms.settings, own, terms.settings["recipe"])


def _ids(node: Mapping[str, Any], clients: int) -> list[int]:
    if "partition-id" not in node:
        raise ConfigError("The node config says nothing of partition-id: give the id of the node's client.")
    first, step = int(node["partition-id"]), int(node.get("num-partitions", clients))
    return list(range(first, clients, max(step, 1)))


def _partition(
    config: RunConfig, terms: Terms, node: Mapping[str, Any]
) -> tuple[Dataset, tuple[ClientData, ...]]:
    """Return some clients of the recipe's own partition: a simulated deployment."""
    dataset: Dataset = config.data.load(config.seed)
    if dataset.classes != terms.classes:
        log.warning("the classes here are %s, the server's are %s", dataset.classes, terms.classes)
        raise RefusalError("its classes are not the server's; the node's log names both")
    everyone = split(config, dataset)
    if len(everyone) != terms.clients:
        raise RefusalError(f"the recipe has {len(everyone)} clients, the server expects {terms.clients}")
    ids = _ids(node, terms.clients)
    if not ids:
        raise RefusalError(f"there is no client {node['partition-id']}: ids are 0 to {terms.clients - 1}")
    return dataset, tuple(everyone[client] for client in ids)


def _site_data(
    config: RunConfig, terms: Terms, node: Mapping[str, Any]
) -> tuple[Dataset, tuple[ClientData, ...]]:
    """Return the clients of a site with images of its own, labelled as the server's class list says."""
    path = expanded(str(node["data"]))
    dataset = _relabel(_site_options(config, path).load(config.seed), terms.classes)
    owners = dataset.owner_names or (str(node.get("name", path.name)),)
    ids = _ids(node, terms.clients)[: len(owners)]
    if len(ids) < len(owners):
        raise ConfigError(
            f"The node's data holds {len(owners)} clients, but the node config gives ids to {len(ids)}. Give "
            f"num-partitions=N, N being the number of nodes, and tell the server of enough clients."
        )
    owner = np.zeros(len(dataset), dtype=np.int64) if dataset.owners is None else dataset.owners
    partition = Partition(
        train=by_owner(np.where(dataset.is_test, -1, owner), len(owners)),
        test=by_owner(np.where(dataset.is_test, owner, -1), len(owners)),
        names=owners,
        domains=(str(node.get("domain", "")),) * len(owners),
    )
    on_validation = config.evaluation.on == "validation"
    share = config.evaluation.validation_share if on_validation else 0.0
    clients = make_clients(dataset, partition, validation_share=share, seed=config.seed)
    heldout = str(node.get("heldout", "false")).lower() in ("true", "1", "yes")
    return dataset, tuple(
        replace(client, id=number, heldout=heldout) for number, client in zip(ids, clients, strict=True)
    )


def _site_options(config: RunConfig, path: Path) -> DataOptions:
    """Return how a site's data is read: as the recipe says where it is of the same kind."""
    if path.is_file():
        options: DataOptions = Parquet(root=path.parent, train_split=path.stem)
    else:
        options = guess(path)
    if type(options) is not type(config.data):
        return options
    given: dict[str, Any] = {"root": options.root, "classes": None}
    if path.is_file():
        given["train_split"] = path.stem
    return options.model_copy(update={**dict(config.data), **given})


def _relabel(dataset: Dataset, classes: tuple[str, ...]) -> Dataset:
    """Return a site's dataset under the server's class list, of which it may hold a part only."""
    strange = [name for name in dataset.classes if name not in classes]
    if strange:
        log.warning("the data holds the class %r, the server's classes are %s", strange[0], classes)
        raise RefusalError("its data holds a class that the server does not know; the node's log names it")
    label = np.array([classes.index(name) for name in dataset.classes])
    return replace(dataset, classes=classes, labels=label[dataset.labels])

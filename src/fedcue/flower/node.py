"""A node's clients: built from the server's terms and from the node's own settings.

Node config: ``partition-id=I`` makes the node client I of the recipe's partition; with
``num-partitions=N`` it hosts clients I, I + N, I + 2 N and so on. ``data=PATH`` makes it a site with
images of its own instead, a folder or Parquet file, whose clients get the same ids. ``max-epsilon=E`` is a
budget of the node's own, over all runs. ``identities=FILE`` holds the keys of all clients for secure sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedcue.aggregate.mean import Summing
from fedcue.aggregate.secure import Secure
from fedcue.clients.host import Host
from fedcue.config.settings import RunConfig
from fedcue.errors import ConfigError, unknown
from fedcue.flower.holdings import held, own_config
from fedcue.flower.journal import Images, Journal
from fedcue.flower.memory import MemoryStore
from fedcue.flower.messages import Member
from fedcue.flower.replies import NAME
from fedcue.flower.terms import RefusalError, Terms
from fedcue.flower.vault import Vault, read_others
from fedcue.foreign import expanded
from fedcue.privacy.budget import releases_before, releases_of_a_visit
from fedcue.privacy.guard import Protection
from fedcue.privacy.stream import NoiseStream

_NODE_KEYS = (
    "partition-id", "num-partitions", "data", "data-root", "name", "domain", "heldout", "backbone", "device",
    "threads", "memory", "max-epsilon", "identities",
)  # fmt: skip
"""The keys of a node's config."""


@dataclass(frozen=True)
class Node:
    """The clients of one node, ready to work."""

    host: Host
    memories: MemoryStore
    journal: Journal
    images: Mapping[int, Images]
    """The images of each client: they are what the journal counts for."""
    run: str
    vault: Vault | None
    """The clients' part in secure sums, if the run has any."""

    def members(self) -> list[Member]:
        """Return the node's description of its clients."""
        ids = [client.id for client in self.host.clients]
        keys = {} if self.vault is None else self.vault.public_keys(ids)
        return [
            Member(
                id=client.id,
                name=client.name[:NAME],
                domain=client.domain[:NAME],
                heldout=client.heldout,
                train_size=len(client.train),
                test_size=len(client.test),
                validation_size=len(client.validation),
                spent=self.journal.spent(self.images[client.id]),
                identity=keys.get(client.id, ""),
            )
            for client in self.host.clients
        ]

    def release(self, client: int, first: bool) -> None:
        """Write down what the client is about to release, or raise ``BudgetSpent`` if it may not."""
        privacy, table = self.host.config.privacy, self.host.table
        releases = releases_before(table) if first else releases_of_a_visit(table)
        privacy = privacy.before_rounds() if first else privacy
        self.journal.release(self.images[client], privacy, releases, self.run)


def open_node(terms: Terms, node: Mapping[str, Any]) -> Node:
    """Return the node's clients, or raise ``RefusalError`` if server and node do not agree."""
    _check_keys(node)
    torch.set_num_threads(int(node.get("threads", 1)))
    config, here = own_config(terms, node), held(terms, node)
    terms.compare(here.own.with_settings(config))
    asked = (terms.asked, config.clients_per_round)
    summing = Summing(config.method.table(here.sizes), config.method.weighting, config.method.added)
    protection = Protection(config.aggregate, config.privacy, summing, NoiseStream.secret, asked)
    places = {client.id: place for place, client in enumerate(here.clients)}
    host = Host(config, here.clients, places, here.frozen, here.sizes, protection)
    folder = _memory_folder(node)
    own = float(node["max-epsilon"]) if "max-epsilon" in node else None
    journal = Journal(folder / "releases.jsonl", own)
    journal.check(config.privacy)
    vault = _vault(config, terms, node)
    return Node(host, MemoryStore(folder, terms.run), journal, here.images, terms.run, vault)


def open_vault(terms: Terms, node: Mapping[str, Any]) -> Vault:
    """Return the clients' part in secure sums, for which neither images nor model are read."""
    _check_keys(node)
    vault = _vault(own_config(terms, node), terms, node)
    if vault is None:
        raise RefusalError("the settings ask for no secure sums")
    return vault


def _vault(config: RunConfig, terms: Terms, node: Mapping[str, Any]) -> Vault | None:
    if not isinstance(config.aggregate, Secure):
        return None
    asked, others = (terms.asked, config.clients_per_round), read_others(node.get("identities"))
    return Vault(_memory_folder(node), terms.run, config.aggregate, asked, others)


def _memory_folder(node: Mapping[str, Any]) -> Path:
    """Return where the node's clients keep what they remember: for its owner only."""
    folder = expanded(node.get("memory", "~/.fedcue/memory"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def _check_keys(node: Mapping[str, Any]) -> None:
    for key in node:
        if key not in _NODE_KEYS:
            raise ConfigError(unknown("key of the node config", key, _NODE_KEYS))

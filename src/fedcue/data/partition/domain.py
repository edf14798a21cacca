"""Clients of one domain each: every client sees photographs only, or sketches only."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from fedcue.data.dataset import Dataset, Indices
from fedcue.data.partition.base import LabelSkew, LeftOut, Partition, PartitionOptions, assemble, share_out
from fedcue.data.partition.iid import IID
from fedcue.data.partition.pathological import Pathological
from fedcue.errors import PartitionError


class ByDomain(PartitionOptions):
    """Every client sees one domain, and optionally only ``classes_per_client`` of the classes."""

    name: ClassVar[str] = "domain"

    clients_per_domain: PositiveInt = Field(1, description="number of clients of each domain")
    classes_per_client: PositiveInt | None = Field(None, description="number of classes a client holds")

    def share(self, dataset: Dataset, generator: np.random.Generator) -> Partition:
        """Partition every domain on its own: pathologically with ``classes_per_client``, else iid."""
        if dataset.domains is None:
            raise PartitionError(
                f"Dataset {dataset.name!r} has no domains. Use partition=iid, pathological or dirichlet. Or "
                "say what the domains are: data.layout=domains for folders DOMAIN/CLASS/x.jpg, "
                "data.domain=COLUMN for tables, a column domain in a manifest."
            )
        rule = self._rule()
        train: list[Indices] = []
        test: list[Indices] = []
        names: list[str] = []
        for number, domain in enumerate(dataset.domain_names):
            members = np.flatnonzero(dataset.domains == number)
            parts = share_out(rule, dataset, members, generator, place=f" of domain {domain!r}")
            train.extend(parts[0])
            test.extend(parts[1])
            several = range(self.clients_per_domain)
            names.extend([domain] if len(several) == 1 else [f"{domain}-{client}" for client in several])
        few = tuple(name for name, images in zip(names, train, strict=True) if self._lacks(dataset, images))
        nowhere = LeftOut(nobodys=int((dataset.domains < 0).sum()), few_classes=few)
        return assemble(dataset, train, test, names, nowhere)

    def _lacks(self, dataset: Dataset, images: Indices) -> bool:
        """Tell whether a client's training images show fewer classes than were to be its own."""
        assert dataset.domains is not None
        neighbours = ~dataset.is_test & (dataset.domains == dataset.domains[images[0]])
        meant = self.classes_per_client or len(np.unique(dataset.labels[neighbours]))
        return len(np.unique(dataset.labels[images])) < meant

    def _rule(self) -> LabelSkew:
        if self.classes_per_client is None:
            return IID(clients=self.clients_per_domain)
        return Pathological(clients=self.clients_per_domain, classes_per_client=self.classes_per_client)

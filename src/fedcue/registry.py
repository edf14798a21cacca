"""Names for the exchangeable parts: built-in, installed by an entry point, or an import path."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from fedcue.errors import ConfigError, printable, shown, unknown

if TYPE_CHECKING:
    from fedcue.options import Options


class Registry:
    """A kind of part (method, dataset, partition) by name, imported only when it is asked for.

    A part comes from the built-in table, from an entry point of another package, or is given as
    ``package.module:Class``. What a folder says is not given: it takes a user to trust an import path.
    """

    def __init__(self, kind: str, base: str, builtin: Mapping[str, str]) -> None:
        self.kind, self.base = kind, base
        self.group = f"fedcue.{kind}s"
        self.builtin = dict(builtin)

    def names(self) -> list[str]:
        """Return every known name, built-in ones first."""
        return [*self.builtin, *sorted(point.name for point in entry_points(group=self.group))]

    def get(self, name: str, trusted: Collection[str] | None = None) -> type[Options]:
        """Return the class called ``name`` or say which names are known.

        With ``trusted``, an import path must be one of these; without, it is the user's own.
        """
        path = self.path(name)
        if path is None:
            raise ConfigError(unknown(self.kind, name, self.names()))
        if path == name and trusted is not None and name not in trusted:
            raise ConfigError(
                f"The folder names the {self.kind} {shown(name)} by import path, and no folder decides what "
                f"is imported. If you trust that code, give --trust {printable(name)[:200]}."
            )
        try:
            part, base = _imported(path), _imported(self.base)
        except Exception as error:  # a module of the user's may fail in any way
            why = str(error)[:300]
            raise ConfigError(
                f"{self.kind.capitalize()} {shown(name)} cannot be imported from {shown(path)}: {why}. "
                "Give package.module:Class of an importable module."
            ) from error
        named = isinstance(getattr(part, "name", None), str)
        if not (isinstance(part, type) and issubclass(part, base) and named):
            raise ConfigError(
                f"{shown(path)} is not a {self.kind}: it must be a class with a name, derived from "
                f"{self.base}."
            )
        return part

    def path(self, name: str) -> str | None:
        """Return where the part called ``name`` is, ``package.module:Class``; nothing is imported."""
        return self.builtin.get(name) or self._installed(name) or (name if ":" in name else None)

    def name_of(self, part: type[Options]) -> str:
        """Return the name under which ``part`` was asked for or can be asked for again."""
        path = f"{part.__module__}:{part.__qualname__}"
        known = {value: name for name, value in self.builtin.items()}
        if path not in known:  # looking through all that is installed takes a while
            known |= {point.value: point.name for point in entry_points(group=self.group)}
        return known.get(path, path)

    def _installed(self, name: str) -> str | None:
        points = [point for point in entry_points(group=self.group) if point.name == name]
        return points[0].value if points else None


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


PAPER_METHODS = ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "pfedpg", "ppt", "pep")
"""The methods that the PEP-FedPT paper compares, in short ``--methods paper``."""

METHODS = Registry(
    "method",
    "fedcue.methods.base:Method",
    {
        "head": "fedcue.methods.head:HeadTuning",
        "fedvpt": "fedcue.methods.fedvpt:FedVPT",
        "fedvpt_deep": "fedcue.methods.fedvpt_deep:FedVPTDeep",
        "fedpr": "fedcue.methods.fedpr:FedPR",
        "sgpt": "fedcue.methods.sgpt:SGPT",
        "pfedpg": "fedcue.methods.pfedpg:PFedPG",
        "ppt": "fedcue.methods.ppt:PPT",
        "pep": "fedcue.methods.pep_variants:PEPVariants",
        "ncm": "fedcue.methods.ncm:NCM",
        "fed3r": "fedcue.methods.fed3r:Fed3R",
        "fedcof": "fedcue.methods.fedcof:FedCOF",
        "fedrod": "fedcue.methods.fedrod:FedROD",
        "lora": "fedcue.methods.lora:LoRA",
        "local": "fedcue.methods.local:Local",
        "central": "fedcue.methods.central:Central",
        "cue": "fedcue.methods.cue:Cue",
    },
)
DATASETS = Registry(
    "dataset",
    "fedcue.data.options:DataOptions",
    {
        "digits": "fedcue.data.readers.digits:Digits",
        "cifar10": "fedcue.data.readers.public:CIFAR10",
        "cifar100": "fedcue.data.readers.public:CIFAR100",
        "tiny-imagenet": "fedcue.data.readers.public:TinyImageNet",
        "domainnet": "fedcue.data.readers.public:DomainNet",
        "pacs": "fedcue.data.readers.public:PACS",
        "office-home": "fedcue.data.readers.public:OfficeHome",
        "inaturalist": "fedcue.data.readers.public:INaturalist",
        "parquet": "fedcue.data.readers.parquet:Parquet",
        "folder": "fedcue.data.readers.image_folder:Folder",
        "manifest": "fedcue.data.readers.manifest:Manifest",
        "saved": "fedcue.data.readers.saved:Saved",
        "given": "fedcue.data.readers.given:Given",
        "federated-folder": "fedcue.data.readers.image_folder:FederatedFolder",
    },
)
AGGREGATES = Registry(
    "aggregate",
    "fedcue.aggregate.robust:Aggregation",
    {
        "mean": "fedcue.aggregate.robust:Mean",
        "trimmed_mean": "fedcue.aggregate.robust:TrimmedMean",
        "median": "fedcue.aggregate.robust:Median",
        "krum": "fedcue.aggregate.robust:Krum",
        "secure": "fedcue.aggregate.secure:Secure",
    },
)
PRIVACY = Registry(
    "privacy",
    "fedcue.privacy.mechanisms:Privacy",
    {
        "none": "fedcue.privacy.mechanisms:Privacy",
        "paper": "fedcue.privacy.mechanisms:PaperNoise",
        "dp": "fedcue.privacy.differential:DifferentialPrivacy",
    },
)
PARTITIONS = Registry(
    "partition",
    "fedcue.data.partition.base:PartitionOptions",
    {
        "iid": "fedcue.data.partition.iid:IID",
        "pathological": "fedcue.data.partition.pathological:Pathological",
        "dirichlet": "fedcue.data.partition.dirichlet:Dirichlet",
        "domain": "fedcue.data.partition.domain:ByDomain",
        "natural": "fedcue.data.partition.natural:Natural",
        "drawn": "fedcue.data.partition.drawn:Drawn",
    },
)

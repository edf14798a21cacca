"""What is known about the named datasets without having them: sizes, sources, columns, licences."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import NoImages
from fedcue.errors import DataError, unknown

DOMAINNET_TEN = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
"""The ten classes of DomainNet on which federated learning is usually measured."""


_OwnerSizes = tuple[tuple[int, int], ...]
"""Pairs: a number of training images, and how many owners have so many."""


def _owner_sizes(file: str) -> _OwnerSizes:
    """Read how many owners have how many training images."""
    text = (resources.files("fedcue.data") / "facts" / file).read_text(encoding="utf-8")
    return tuple(
        (int(row["training_images"]), int(row["users"])) for row in csv.DictReader(text.splitlines())
    )


@dataclass(frozen=True)
class Description:
    """One named dataset: how large it is, where it comes from and how its files are laid out."""

    name: str
    summary: str
    classes: int
    train: int
    test: int  # 0: no test split of its own
    pixels: str
    licence: str
    source: str
    layouts: tuple[str, ...]  # keys of layouts.LAYOUTS, tried in this order
    hub: str | None = None
    download: str = ""
    image: str = "image"
    label: str = "label"
    domain: str | None = None
    client: str | None = None
    test_split: str | None = None
    domains: tuple[str, ...] = ()
    owners: int = 0
    owner_sizes: _OwnerSizes = ()
    keep: tuple[str, ...] | None = None
    exact: bool = True
    """Whether the numbers of images are counted, not estimated."""

    def outline(self) -> Dataset:
        """Return a dataset of this size without images, its classes evenly spread, to plan a run with."""
        owner = np.repeat(np.arange(self.owners), self._train_sizes())
        train = len(owner) if self.owners else self.train
        position = np.arange(train + self.test)
        labels = position % self.classes
        labels[: len(owner)] = (10 * owner + position[: len(owner)] % 10) % self.classes
        return Dataset(
            name=self.name,
            classes=self.keep or tuple(str(label) for label in range(self.classes)),
            labels=labels,
            is_test=position >= train,
            images=NoImages(self.name, len(position)),
            domains=position // self.classes % len(self.domains) if self.domains else None,
            domain_names=self.domains,
            owners=np.r_[owner, np.full(self.test, -1)] if self.owners else None,
            owner_names=tuple(f"user-{number}" for number in range(self.owners)),
        )

    def _train_sizes(self) -> list[int]:
        """Return how many training images each owner has."""
        return [size for size, owners in self.owner_sizes for _ in range(owners)]


_ALL = (
    Description(
        name="digits",
        summary="handwritten digits, embedded",
        classes=10,
        train=1_797,
        test=0,
        pixels="8 x 8 grey",
        licence="CC BY 4.0",
        source="https://archive.ics.uci.edu/dataset/80",
        layouts=(),
    ),
    Description(
        name="cifar10",
        summary="small photographs",
        classes=10,
        train=50_000,
        test=10_000,
        pixels="32 x 32",
        licence="not stated",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        layouts=("parquet", "cifar10"),
        hub="uoft-cs/cifar10",
        download="144 MB",
        image="img",
        test_split="test",
    ),
    Description(
        name="cifar100",
        summary="small photographs, fine labels",
        classes=100,
        train=50_000,
        test=10_000,
        pixels="32 x 32",
        licence="not stated",
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        layouts=("parquet", "cifar100"),
        hub="uoft-cs/cifar100",
        download="142 MB",
        image="img",
        label="fine_label",
        test_split="test",
    ),
    Description(
        name="tiny-imagenet",
        summary="200 classes of ImageNet; the labelled validation images serve as test images",
        classes=200,
        train=100_000,
        test=10_000,
        pixels="64 x 64",
        licence="ImageNet terms: non-commercial research",
        source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        layouts=("parquet", "tiny-imagenet"),
        hub="zh-plus/tiny-imagenet",
        download="161 MB",
        test_split="valid",
    ),
    Description(
        name="domainnet",
        summary="ten classes of DomainNet in six styles (data.classes chooses others)",
        classes=10,
        train=11_880,
        test=5_120,
        pixels="various",
        licence="fair use notice: non-commercial research",
        source="https://ai.bu.edu/M3SDA/",
        layouts=("parquet", "domain-lists"),
        hub="wltjr1007/DomainNet",
        download="18.5 GB",
        domain="domain",
        test_split="test",
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        keep=DOMAINNET_TEN,
        exact=False,
    ),
    Description(
        name="pacs",
        summary="seven classes in four styles",
        classes=7,
        train=9_991,
        test=0,
        pixels="227 x 227",
        licence="not stated",
        source="https://arxiv.org/abs/1710.03077",
        layouts=("parquet", "domain-folders"),
        hub="flwrlabs/pacs",
        download="191 MB",
        domain="domain",
        domains=("art_painting", "cartoon", "photo", "sketch"),
    ),
    Description(
        name="office-home",
        summary="65 classes of office and home objects in four styles",
        classes=65,
        train=15_588,
        test=0,
        pixels="various",
        licence="fair use notice: non-commercial research",
        source="https://www.hemanthdv.org/officeHomeDataset.html",
        layouts=("parquet", "domain-folders"),
        hub="flwrlabs/office-home",
        download="1.2 GB",
        domain="domain",
        domains=("Art", "Clipart", "Product", "Real World"),
    ),
    Description(
        name="inaturalist",
        summary="iNaturalist-User-120k: species photographed by users, one client per user",
        classes=1_203,
        train=120_300,
        test=35_641,
        pixels="various, up to 800",
        licence="chosen by each photographer; non-commercial research",
        source="https://github.com/visipedia/inat_comp/tree/master/2017 and "
        "https://github.com/google-research/google-research/tree/master/federated_vision_datasets",
        layouts=("parquet", "inaturalist"),
        client="user_id",
        test_split="test",
        owners=9_275,
        owner_sizes=_owner_sizes("inaturalist_user_sizes.csv"),
        exact=False,
    ),
)
CATALOGUE = {description.name: description for description in _ALL}


def describe(name: str) -> Description:
    """Return what is known about the dataset ``name``."""
    if name not in CATALOGUE:
        raise DataError(unknown("dataset", name, CATALOGUE))
    return CATALOGUE[name]

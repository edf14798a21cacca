"""Read a dataset once from end to end and list everything that is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcue.data.dataset import Dataset, ImageSource
from fedcue.data.image_sources import UnreadableError, decode
from fedcue.data.options import DataOptions

Kind = Literal[
    "unreadable image",
    "one class",
    "classes alike",
    "class without training images",
    "class without test images",
    "client without test images",
    "training image without client",
    "duplicate",
    "dark image",
]

_NOTHING_TO_TELL = "there is nothing to tell apart; give the folder that holds the folders of all classes"
_UNTESTED = "a run leaves it out; data.test_share=0.2 sets a share of its images aside to test on"
_NOBODYS = "no client trains on it; say whose it is"
_ALIKE = "they differ in capitals or spaces alone; if they are one class, give them one name"
_DARK = "it uses 12 of its 16 bits at most and is nearly black in 8; save it in 8 bits"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what kind, where, and why."""

    kind: Kind
    where: str
    why: str


@dataclass(frozen=True)
class Report:
    """What a dataset holds and what is wrong with it."""

    name: str
    train: int
    test: int
    classes: int
    clients: int
    domains: int
    findings: tuple[Finding, ...]

    def first_of_each_kind(self, number: int) -> Iterator[tuple[str, list[Finding], int]]:
        """Yield each kind with its first findings and how many more there are."""
        for kind in dict.fromkeys(finding.kind for finding in self.findings):
            found = [finding for finding in self.findings if finding.kind == kind]
            yield kind, found[:number], max(0, len(found) - number)

    @property
    def clean(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.findings


def check(options: DataOptions, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> Report:
    """Decode every image of a dataset once; report unreadable ones, gaps and train images in the test set."""
    dataset = options.load(seed)
    findings = [*_gaps(dataset), *_images(dataset, options.max_pixels, progress)]
    return Report(
        name=dataset.name,
        train=len(dataset.train),
        test=len(dataset.test),
        classes=len(dataset.classes),
        clients=len(dataset.owner_names),
        domains=len(dataset.domain_names),
        findings=tuple(findings),
    )


def _gaps(dataset: Dataset) -> list[Finding]:
    """Find the classes and clients that lack training or test images."""
    findings = []
    if len(dataset.classes) == 1:
        findings.append(Finding("one class", dataset.classes[0], _NOTHING_TO_TELL))
    alike: dict[str, list[str]] = {}
    for name in dataset.classes:
        alike.setdefault("".join(name.casefold().split()), []).append(name)
    findings += [
        Finding("classes alike", ", ".join(names), _ALIKE) for names in alike.values() if len(names) > 1
    ]
    lacking: tuple[tuple[Kind, np.ndarray, str], ...] = (
        ("class without training images", dataset.train, "it cannot be learned"),
        ("class without test images", dataset.test, "its accuracy is not measured"),
    )
    for kind, indices, why in lacking:
        counts = np.bincount(dataset.labels[indices], minlength=len(dataset.classes))
        findings += [
            Finding(kind, dataset.classes[label], why) for label in np.flatnonzero(counts == 0).tolist()
        ]
    if dataset.owners is not None:
        tested = np.isin(np.arange(len(dataset.owner_names)), dataset.owners[dataset.test])
        findings += [
            Finding("client without test images", dataset.owner_names[owner], _UNTESTED)
            for owner in np.flatnonzero(~tested).tolist()
        ]
        nobodys = np.flatnonzero(~dataset.is_test & (dataset.owners < 0))
        findings += [
            Finding("training image without client", dataset.images.describe(image), _NOBODYS)
            for image in nobodys.tolist()
        ]
    return findings


def _is_dark(images: ImageSource, index: int) -> bool:
    """Tell whether an image of 16 bits uses 12 of them at most, as cameras and scanners save them."""
    with images.open(index) as image:
        return image.mode.startswith("I") and int(np.asarray(image).max()) < 2**12


def _images(dataset: Dataset, max_pixels: int, progress: Callable[[int, int], None] | None) -> list[Finding]:
    """Find the images that cannot be decoded and those that are both in the training and the test set."""
    findings = []
    seen: dict[bytes, tuple[int, bool]] = {}
    for index in range(len(dataset)):
        try:
            decode(dataset.images, index, 1, max_pixels)
            if _is_dark(dataset.images, index):
                findings.append(Finding("dark image", dataset.images.describe(index), _DARK))
            digest = hashlib.blake2b(dataset.images.content(index), digest_size=16).digest()
            is_test = bool(dataset.is_test[index])
            other, other_is_test = seen.setdefault(digest, (index, is_test))
            if other_is_test != is_test:
                why = f"same content as {dataset.images.describe(other)}, one trains and the other tests"
                findings.append(Finding("duplicate", dataset.images.describe(index), why))
        except UnreadableError as error:
            findings.append(Finding("unreadable image", error.where, error.reason))
        if progress is not None:
            progress(index + 1, len(dataset))
    return findings

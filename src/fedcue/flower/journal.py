"""What the images of a node have released under differential privacy: in all runs, whatever their settings.

The journal belongs to the images. It lies in the node's memory folder, one line for each release, written
before it happens. ``n`` releases with the noise ``s`` weigh ``n / s**2``: Gaussian releases of different
noise add up by that (their Renyi divergences do), as one release of the noise ``1 / sqrt(weight)``.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from fedcue.errors import BudgetSpent, ClientError
from fedcue.foreign import STRANGE, ordinary
from fedcue.privacy.accounting import Ledger
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.mechanisms import Privacy

_OWN_DELTA = 1e-5
"""The delta at which a node counts its own budget."""


@dataclass(frozen=True)
class Images:
    """The images of one client, as a journal knows them."""

    place: str
    """The path they lie at, links resolved; or the name of a dataset that has none."""
    division: str
    """By which settings the images of that place were divided among clients."""
    client: str
    """The client's name in this division; none if all are its own."""

    def may_share(self, other: Images) -> bool:
        """Tell whether an image may be in both: in another division, or in a folder and a part of it."""
        if self == other:
            return True
        if self.place == other.place:
            return self.division != other.division
        here, there = Path(self.place), Path(other.place)
        return here in there.parents or there in here.parents


Weights = Mapping[Images, float]


@dataclass(frozen=True)
class Journal:
    """The releases of one node's images, and how many more it allows."""

    file: Path
    max_epsilon: float | None = None
    """The node's own budget; none: the one of the run."""

    def spent(self, images: Images) -> float:
        """Return the weight of all releases of some images."""
        if not os.path.lexists(self.file):
            return 0.0
        with self._locked() as file:
            return _weight(_weights(file), images)

    def check(self, privacy: Privacy) -> None:
        """Refuse a run without differential privacy where the node has a budget."""
        if self.max_epsilon is not None and not privacy.differential:
            raise BudgetSpent(
                f"its images have a budget of max-epsilon={self.max_epsilon:g}, and privacy={privacy.name} "
                "has no bound"
            )

    def release(self, images: Images, privacy: Privacy, releases: int, run: str) -> None:
        """Write down releases that are about to happen, or raise ``BudgetSpent`` if they are too many."""
        self.check(privacy)
        if not isinstance(privacy, DifferentialPrivacy) or not releases:
            return
        if privacy.noise is None:
            raise ClientError("the server has not settled the noise of privacy=dp")
        with self._locked() as file:
            after = _weight(_weights(file), images) + releases / privacy.noise**2
            self._check_budget(after, privacy)
            line = {**asdict(images), "releases": releases, "noise": privacy.noise, "run": run}
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def _check_budget(self, weight: float, privacy: DifferentialPrivacy) -> None:
        own = self.max_epsilon
        budget = privacy.max_epsilon if own is None else min(own, privacy.max_epsilon)
        delta = privacy.delta if own is None else min(_OWN_DELTA, privacy.delta)
        epsilon = weighed(weight, delta)
        if epsilon > budget:
            raise BudgetSpent(
                f"with its earlier releases, in other runs too, it would spend epsilon={epsilon:.3f}, more "
                f"than {budget:g}"
            )

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the journal for this process alone; without it nothing is released."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with os.fdopen(os.open(ordinary(self.file), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                _end_whole(file)
                yield file
        except OSError as error:
            raise ClientError(
                "its journal of releases cannot be written, so that nothing is released"
            ) from error


def _end_whole(file: IO[bytes]) -> None:
    """Cut off a line that no release followed; one that says all it should was followed by one perhaps."""
    file.seek(0)
    end = file.read()
    last = end[end.rfind(b"\n") + 1 :]
    try:
        json.loads(last)
        file.write(b"\n")
    except (ValueError, RecursionError):
        file.truncate(len(end) - len(last))
    file.seek(0, os.SEEK_END)


def weighed(weight: float, delta: float) -> float:
    """Return the epsilon of releases of this weight."""
    return Ledger(releases={0: 1}).epsilon(weight**-0.5, delta) if weight else 0.0


def _weight(weights: Weights, images: Images) -> float:
    """Return the most that one of these images was released, in any division of its place.

    Within a division an image is one client's. Whose it was in another one is not known: the client counts
    that released most.
    """
    most: dict[tuple[str, str], float] = {}
    for other, weight in weights.items():
        if other.may_share(images):
            key = (other.place, other.division)
            most[key] = max(most.get(key, 0.0), weight)
    return sum(most.values())


def _images(entry: Mapping[str, Any]) -> Images:
    """Return what a line is about; the first journals named place and client in one text, and no division."""
    if "images" in entry:
        place, _, client = str(entry["images"]).rpartition(": ")
        return Images(place, "", client)
    return Images(*(str(entry[name]) for name in ("place", "division", "client")))


def _weights(file: IO[bytes]) -> Weights:
    """Return the weight of everything in a journal, by images; a damaged one is not believed."""
    weights: defaultdict[Images, float] = defaultdict(float)
    file.seek(0)
    try:
        for line in file:
            entry: Mapping[str, Any] = json.loads(line)
            releases, noise = entry["releases"], entry["noise"]
            if (
                type(releases) is not int
                or releases < 1
                or type(noise) not in (int, float)
                or not 0 < noise < 1e9
            ):
                raise ValueError("not a release")
            weights[_images(entry)] += releases / noise**2
    except STRANGE as error:
        raise ClientError(
            "its journal of releases is damaged, so that what was spent is not known"
        ) from error
    return weights

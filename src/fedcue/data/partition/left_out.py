"""What a partition leaves out, counted and named: nothing disappears without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NAMED = 5
"""Clients that are called by name in a note."""


@dataclass(frozen=True)
class LeftOut:
    """Clients and images of a dataset that a partition does not use."""

    few_training: tuple[str, ...] = ()
    """Clients with too few training images."""
    few_test: tuple[str, ...] = ()
    """Clients with enough training images and too few test images."""
    test_images: int = 0
    """Test images that belong to nobody and show a class that no client trains on."""
    min_train: int = 0
    min_test: int = 0

    def notes(self) -> list[str]:
        """Say what is left out and which setting decides about it."""
        notes = []
        if self.few_training:
            notes.append(
                f"{counted(self.few_training)} left out: {_fewer(self.min_train, 'training')} "
                "(partition.min_train)."
            )
        if self.few_test:
            notes.append(
                f"{counted(self.few_test)} left out: {_fewer(self.min_test, 'test')}. "
                "Give partition=natural partition.untested=train to let them train, or data.test_share=0.2 "
                "to test them on a part of their training images."
            )
        if self.test_images:
            notes.append(f"{self.test_images:,} test images show classes that no client trains on: not used.")
        return notes


NOTHING = LeftOut()


def _fewer(least: int, kind: str) -> str:
    """Say how many images are missing: ``no test image``, ``fewer than 16 training images``."""
    return f"no {kind} image" if least == 1 else f"fewer than {least} {kind} images"


def counted(names: Sequence[str], verb: tuple[str, str] = ("is", "are")) -> str:
    """Count clients and name the first of them, as the beginning of a sentence."""
    few = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    if len(names) == 1:
        return f"1 client ({few}) {verb[0]}"
    return f"{len(names):,} clients ({few}{more}) {verb[1]}"

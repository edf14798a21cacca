"""One protocol from the first round to the last: training for the last test alone is kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNADAPTED = "unadapted_"
"""Prefix of the accuracies of the last test without the training that clients do for that test alone."""


def on_curve(record: Mapping[str, Any], name: str = "mean_accuracy") -> Any:
    """Return an accuracy of a round as it was measured in all rounds before."""
    return record.get(f"{UNADAPTED}{name}", record.get(name))

"""Where the real data is, and settings that make a run small enough for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
FACTS = ROOT / "tests" / "facts"
REAL_BACKBONE = SHARED_DATA / "backbones" / "vit_tiny_patch16_224"

needs_real_backbone = pytest.mark.skipif(
    not REAL_BACKBONE.is_dir(), reason=f"no real backbone at {REAL_BACKBONE}"
)

SMALL = [
    "rounds=2",
    "clients_per_round=2",
    "partition.clients=5",
    "data.train_per_class=15",
    "data.test_per_class=5",
    "training.epochs=1",
    "snapshots=[0,2]",
    "workers=1",
]
"""Settings that make the default recipe small enough for a test."""


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of a run without what no two runs share."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]

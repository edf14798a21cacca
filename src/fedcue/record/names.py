"""How settings and run folders are written: as typed on the command line, and as a folder's name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


def as_typed(value: Any) -> str:
    """Return a setting's value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def describe(changes: Mapping[str, Any]) -> str:
    """Return settings as text: ``key=value key=value``."""
    return " ".join(f"{key}={as_typed(value)}" for key, value in changes.items())


def folder_name(method: str, changes: Mapping[str, Any], seed: int) -> str:
    """Return a run's folder: letters, digits and ``._=+-`` only; a digest where that loses something."""
    whole = "-".join([method, *(f"{key}={as_typed(value)}" for key, value in changes.items())])
    plain = re.sub(r"[^A-Za-z0-9._=+-]+", "_", whole).lstrip(".")[:100]
    if plain != whole:
        plain += "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{plain}-seed{seed}"

"""Settings as text: flat keys, values as they are typed, names of folders."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as ``section.key: value``."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def typed(value: Any) -> str:
    """Return a setting's value as it would be typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def folder_name(method: str, changes: Mapping[str, Any], seed: int) -> str:
    """Return a run's folder: letters, digits and ``._=+-`` only; a digest where that loses something."""
    whole = "-".join([method, *(f"{key}={typed(value)}" for key, value in changes.items())])
    plain = re.sub(r"[^A-Za-z0-9._=+-]+", "_", whole).lstrip(".")[:100]
    if plain != whole:
        plain += "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{plain}-seed{seed}"

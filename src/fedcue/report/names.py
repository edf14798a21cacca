"""Names from data, as they are shown."""

from __future__ import annotations

MAX_NAME = 60


def shorten(name: str) -> str:
    """Return a name that fits into a label, control and direction marks replaced."""
    name = "".join(mark if mark.isprintable() else " " for mark in name[: MAX_NAME + 1])
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"

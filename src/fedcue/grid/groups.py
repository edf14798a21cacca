"""Which kind of method a method is: tables list the kinds one after the other."""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    "no training": ("ncm", "fed3r", "fedcof"),
    "global": ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "lora", "pep"),
    "personalised": ("pfedpg", "ppt", "fedrod"),
    "bounds": ("local", "central"),
    "ours": ("cue",),
}
"""Methods by what their clients share at the end, in the order of the tables."""

OTHERS = "others"
"""Methods from outside the package."""

ORDER = tuple(name for names in GROUPS.values() for name in names)
"""Methods in the order of the tables."""


def group_of(method: str) -> str:
    """Return the kind of a method."""
    return next((group for group, names in GROUPS.items() if method in names), OTHERS)


def place_of(method: str) -> tuple[int, str]:
    """Return where a method stands in a table: those from outside come last, by name."""
    return (ORDER.index(method), "") if method in ORDER else (len(ORDER), method)

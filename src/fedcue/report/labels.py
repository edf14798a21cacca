"""Names and values as people read them in labels, tables and captions."""

from __future__ import annotations

from typing import Any

_MAX_LENGTH = 60

METHOD_LABELS = {
    "head": "Head-Tuning",
    "fedvpt": "FedVPT",
    "fedvpt_deep": "FedVPT-D",
    "fedpr": "FedPR",
    "sgpt": "SGPT",
    "pfedpg": "pFedPG",
    "ppt": "P-PT",
    "pep": "PEP-FedPT",
}
"""The names the papers use, in the order of the paper's tables."""


def shorten(name: str) -> str:
    """Return a name that fits into a label; control and direction marks become spaces."""
    name = "".join(mark if mark.isprintable() else " " for mark in name[: _MAX_LENGTH + 1])
    return name if len(name) <= _MAX_LENGTH else name[: _MAX_LENGTH - 1] + "…"


def method_label(name: str) -> str:
    """Return the name a method has in the papers, or its own."""
    return METHOD_LABELS.get(name, shorten(name))


def setting_label(key: str) -> str:
    """Return a setting's key as a label, without its section where the rest is clear by itself."""
    section, _, rest = key.rpartition(".")
    return key if rest in ("name", "clients", "lr") or not section else rest.replace("_", " ")


def value_label(value: Any) -> str:
    """Return a setting's value as a label."""
    if isinstance(value, list):
        return "-".join(map(str, value)) if value else "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "default" if value is None else str(value)


def compact(number: float) -> str:
    """Return a number with three digits and k, M or G."""
    for unit in ("", " k", " M"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} G"

"""Colours that people with any colour vision can tell apart, with enough contrast on both grounds."""

from __future__ import annotations

LIGHT = (
    "#0b62a4", "#b8500a", "#0c7a5b", "#a8327d", "#5b4bb5", "#7a6000", "#b3261e", "#3d4a57",
    "#00727f", "#8a4f33",
)  # fmt: skip
DARK = (
    "#6cb6ff", "#ff9f4a", "#4fd1a5", "#ff8ac9", "#b9a8ff", "#e3c64a", "#ff8a80", "#c3ced9",
    "#5fd3e6", "#dba88c",
)  # fmt: skip
"""For lines and marks. With a symbol of its own or a dash, a line is never told by colour alone."""

COLOURS = len(LIGHT)

LIGHT_GROUND, DARK_GROUND = "#ffffff", "#14181d"
SYMBOLS = (
    "circle", "rect", "triangle", "diamond", "emptyCircle", "emptyRect", "emptyTriangle", "emptyDiamond",
    "roundRect", "pin",
)  # fmt: skip


def contrast(one: str, other: str) -> float:
    """Return the WCAG contrast ratio of two colours ``#rrggbb``."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

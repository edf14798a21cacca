"""Draw the way of the data through fedcue, from the modules' own first lines.

python scripts/way_diagram.py docs/way.svg
"""

from __future__ import annotations

import sys
from html import escape
from importlib import import_module
from pathlib import Path

STEPS = {  # what is drawn, and the module that does it
    "dataset": "fedcue.data.dataset",
    "partition": "fedcue.data.partition.base",
    "client": "fedcue.clients.host",
    "prompted ViT": "fedcue.model.prompted",
    "local training": "fedcue.train.sgd",
    "aggregation": "fedcue.aggregate.mean",
    "evaluation": "fedcue.evaluate.accuracy",
    "report": "fedcue.report.runs",
}
"""In the order of the data, which is the order of the folders and of the imports."""

INSIDE = ("client", "prompted ViT", "local training")
"""What happens where the images are."""

ACROSS, HIGH, BOX, GAP = 4, 92, 214, 26
INK, SOFT, LINE, AT_CLIENT, ELSEWHERE = "#1d2733", "#4d5965", "#5a6673", "#f6f1fa", "#eef5fb"


def said(module: str) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    text = import_module(module).__doc__ or ""
    return text.strip().splitlines()[0].rstrip(".")


def diagram() -> str:
    """Return the picture as SVG."""
    rows = -(-len(STEPS) // ACROSS)
    width, height = ACROSS * (BOX + GAP) + GAP, rows * (HIGH + 52) + 46
    parts = [_box(place, name, module) for place, (name, module) in enumerate(STEPS.items())]
    arrows = [_arrow(place) for place in range(len(STEPS) - 1)]
    title = "The way of the data: purple steps happen at a client, which never sends an image"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n'
        f'<text x="{GAP}" y="26" font-size="15" font-weight="bold" fill="{INK}">{escape(title)}</text>\n'
        + "\n".join([*parts, *arrows, "</svg>", ""])
    )


def corner(place: int) -> tuple[int, int]:
    """Return where a step is drawn: left to right, row by row."""
    row, column = divmod(place, ACROSS)
    return GAP + column * (BOX + GAP), 46 + row * (HIGH + 52)


def _box(place: int, name: str, module: str) -> str:
    x, y = corner(place)
    fill = AT_CLIENT if name in INSIDE else ELSEWHERE
    lines = [f'<rect x="{x}" y="{y}" width="{BOX}" height="{HIGH}" rx="8" fill="{fill}" stroke="#c9d1d9"/>']
    lines.append(_text(x + 12, y + 25, name, f'font-size="15" font-weight="bold" fill="{INK}"'))
    small = f'font-size="11" fill="{SOFT}"'
    for number, line in enumerate(_folded(said(module))):
        lines.append(_text(x + 12, y + 45 + 15 * number, line, small))
    lines.append(_text(x + 12, y + HIGH + 15, module, f'{small} font-family="monospace"'))
    return "\n".join(lines)


def _text(x: int, y: int, text: str, look: str) -> str:
    return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'


def _folded(text: str, most: int = 32, lines: int = 3) -> list[str]:
    """Break a sentence into lines; what does not fit ends in an ellipsis."""
    found = [""]
    for word in text.split():
        if len(found[-1]) + len(word) >= most:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found if len(found) <= lines else [*found[: lines - 1], f"{found[lines - 1]} …"]


def _arrow(place: int) -> str:
    x, y = corner(place)
    if place % ACROSS < ACROSS - 1:
        middle = y + HIGH // 2
        path = f"M{x + BOX} {middle}H{x + BOX + GAP - 2}"
    else:
        below, left = corner(place + 1)[1], GAP + BOX // 2
        path = f"M{x + BOX // 2} {y + HIGH + 20}V{below - 14}H{left}V{below - 2}"
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(diagram())

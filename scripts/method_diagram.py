"""Draw how PEP-FedPT works, from the code's own names: its table of tensors, its blocks and its functions.

python scripts/method_diagram.py docs/method.svg
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

from fedcue.methods import Sizes, TensorSpec
from fedcue.methods.pep import PEP, class_scores, move_prototypes

WIDTH, HEIGHT = 980, 640
INK, SOFT, LINE = "#1d2733", "#5a6673", "#c9d1d9"
SHARED, MIXED, SERVER, CLIENT = "#0b62a4", "#a8327d", "#eef5fb", "#f6f1fa"
SIZES = Sizes(classes=100, width=768, depth=12, patch=16, clients=100)
LETTERS = {SIZES.classes: "C", SIZES.width: "d"}
SYMBOLS = {
    "head": "H", "head_bias": "b", "shared_prompts": "P_S", "class_prompts": "P_C", "prototypes": "μ",
    "centroids": "μ_k",
}  # fmt: skip


def diagram(method: PEP) -> str:
    """Return the picture as SVG."""
    table = method.table(SIZES)
    parts = [
        _box(20, 50, 300, 330, SERVER),
        _box(660, 50, 300, 330, CLIENT),
        _text(36, 78, "Server", 18, weight="bold"),
        _text(676, 78, "Client k", 18, weight="bold"),
        *_listed(36, 108, "keeps", (spec for spec in table if spec.stored and spec.sent)),
        *_steps(36, 268, _server_steps(method)),
        *_steps(676, 108, _client_steps(method)),
        *_arrow(320, 655, 104, f"before round 0: {method.warm_up.__name__}", table.replied, back=True),
        *_arrow(320, 655, 196, "each round", table.sent),
        *_arrow(320, 655, 304, "each round", table.returned, back=True),
        *_vit(method),
    ]
    title = "PEP-FedPT: what the server keeps, what travels, and which prompts an image gets"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="system-ui, sans-serif">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{SOFT}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + _text(20, 30, title, 15, weight="bold")
        + "\n".join(["", *parts, "</svg>", ""])
    )


def _server_steps(method: PEP) -> list[tuple[str, str]]:
    return [
        (method.start.__name__, "first prototypes: mean centroids of the bare ViT"),
        (method.aggregate.__name__, "mean of what clients trained"),
        (move_prototypes.__name__, f"every {method.period} rounds, momentum {method.momentum:g}"),
    ]


def _client_steps(method: PEP) -> list[tuple[str, str]]:
    blocks = ", ".join(map(str, method.layers))
    trained = ", ".join(SYMBOLS.get(name, name) for name in method.table(SIZES).trained)
    return [
        (method.warm_up.__name__, "once: class centroids of the bare ViT"),
        (method.personal.__name__, "keep the rows of its own classes"),
        (method.update.__name__, f"centroids μ_k, then train {trained}"),
        (method.prompter.__name__, f"P_S at block 0, m at blocks {blocks}: see below"),
        (method.predict.__name__, "any client, a new one too: its priors suffice"),
    ]


def _vit(method: PEP) -> list[str]:
    """Draw the blocks of the ViT with what is inserted before them, and the rule of mixing."""
    left, top, step = 36, 520, 70
    parts = [_text(20, 424, f"The frozen ViT at the client ({method.prompter.__name__})", 15, weight="bold")]
    for block in range(SIZES.depth):
        x = left + step * block
        colour = MIXED if block in method.layers else LINE
        parts.append(_box(x, top, 56, 40, "white", colour))
        parts.append(_text(x + 28, top + 25, f"block {block}", 11, SOFT, anchor="middle"))
        parts.append(_line(x + 56, top + 20, x + step - 2, top + 20))
        if block == 0:
            parts += _insertion(x, top, SYMBOLS["shared_prompts"], SHARED)
        if block in method.layers:
            parts += _insertion(x, top, "m", MIXED)
    end = left + step * SIZES.depth
    parts.append(_box(end, top, 64, 40, "white", SHARED))
    parts.append(_text(end + 32, top + 25, "head H", 11, SHARED, anchor="middle"))
    arguments = ", ".join(inspect.signature(class_scores).parameters)
    mixing = "m = s P_C, one mixed prompt per image and block, written over the one before it"
    scores = f"s = {class_scores.__name__}({arguments}) = softmax(cos(cls, μ) / temperature + log priors)"
    values = f"temperature {method.temperature:g}; shared prompts {method.prompts}; blocks are counted from 0"
    parts += [_text(20, 588, mixing, 13, MIXED), _text(20, 610, scores, 13), _text(20, 630, values, 12, SOFT)]
    return parts


def _insertion(x: float, top: float, text: str, colour: str) -> list[str]:
    return [
        _box(x + 8, top - 62, 40, 26, "white", colour),
        _text(x + 28, top - 44, text, 13, colour, anchor="middle", weight="bold"),
        _line(x + 28, top - 36, x + 28, top - 3),
    ]


def _listed(x: float, y: float, heading: str, specs: Iterable[TensorSpec]) -> list[str]:
    parts = [_text(x, y, heading, 13, SOFT)]
    for number, spec in enumerate(specs, start=1):
        shape = " × ".join(LETTERS.get(size or 0, str(size)) for size in spec.shape)
        label = f"{SYMBOLS[spec.name]}  " if spec.name in SYMBOLS else ""
        parts.append(_text(x, y + 22 * number, f"{label}{spec.name}", 13, weight="bold"))
        parts.append(_text(x + 268, y + 22 * number, shape, 12, SOFT, anchor="end"))
    return parts


def _steps(x: float, y: float, steps: Iterable[tuple[str, str]]) -> list[str]:
    parts = []
    for number, (name, meaning) in enumerate(steps):
        parts.append(_text(x, y + 42 * number, name, 13, weight="bold"))
        parts.append(_text(x, y + 42 * number + 17, meaning, 12, SOFT))
    return parts


def _arrow(
    left: float, right: float, y: float, heading: str, names: Iterable[str], back: bool = False
) -> list[str]:
    middle, ends = (left + right) / 2, (left + 5, right - 2)
    start, end = ends[::-1] if back else ends
    shown = [f"{SYMBOLS[name]} {name}" if name in SYMBOLS else name for name in names]
    lines = [", ".join(shown[i : i + 3]) for i in range(0, len(shown), 3)]
    parts = [_text(middle, y, heading, 12, SOFT, anchor="middle"), _line(start, y + 10, end, y + 10)]
    parts += [_text(middle, y + 28 + 16 * i, line, 11, INK, anchor="middle") for i, line in enumerate(lines)]
    return parts


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str = LINE) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="1.5"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{SOFT}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def _text(
    x: float, y: float, text: str, size: int, fill: str = INK, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def main() -> None:
    """Write the picture to the given file."""
    Path(sys.argv[1]).write_text(diagram(PEP()), encoding="utf-8")


if __name__ == "__main__":
    main()

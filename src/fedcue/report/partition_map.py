"""The map of a partition before training: how many images of each class each client holds."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcue.record.files import explained, without_formula, write_bytes, write_text

INK, PALE = "#0b62a4", "#e4eef6"
_BUBBLES = 60
"""Up to so many clients and classes each cell is a bubble; beyond that it is a pixel."""


@dataclass(frozen=True)
class PartitionMap:
    """Counts ``[clients, classes]``, the names of both, and the clients' domains ("" if none)."""

    title: str
    clients: Sequence[str]
    domains: Sequence[str]
    classes: Sequence[str]
    train: NDArray[np.int64]
    test: NDArray[np.int64]

    def write(self, folder: Path) -> list[Path]:
        """Write ``partition.csv`` and ``partition.png`` into a folder and return their paths."""
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        table, picture = folder / "partition.csv", folder / "partition.png"
        write_text(table, self._as_csv(), escape=True)
        write_bytes(picture, self._drawn())
        return [table, picture]

    def _as_csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["client", "domain", "class", "train_images", "test_images"])
        for client, label in np.argwhere(self.train + self.test > 0).tolist():
            names = self.clients[client], self.domains[client], self.classes[label]
            counts = int(self.train[client, label]), int(self.test[client, label])
            writer.writerow([*map(without_formula, names), *counts])
        return text.getvalue()

    def _drawn(self) -> bytes:
        """Return the map as a PNG file."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        clients, classes = self.train.shape
        bubbles = max(clients, classes) <= _BUBBLES
        cell = 0.16 if bubbles else 0.07  # inches
        width = float(np.clip(2.4 + cell * clients, 6, 14))
        height = float(np.clip(1.6 + cell * classes, 3.2, 14))
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        shown = self._bubbles(axes) if bubbles else self._pixels(axes)
        figure.colorbar(shown, ax=axes, label="training images", shrink=0.7, pad=0.02)
        edge = 0.8 if bubbles else 0.5
        axes.set(xlim=(-edge, clients - 1 + edge), ylim=(classes - 1 + edge, -edge))
        axes.set(xlabel="client", ylabel="class")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        self._label(axes)
        axes.set_title(self.title, fontsize=10, loc="left", pad=16 if any(self.domains) else 6)
        axes.spines[["top", "right"]].set_visible(False)
        out = io.BytesIO()
        figure.savefig(out, dpi=150, metadata={"Software": "fedcue"})
        return out.getvalue()

    def _bubbles(self, axes: Any) -> Any:
        client, label = np.nonzero(self.train)
        number = self.train[client, label]
        area = 80 * number / number.max()
        axes.set_axisbelow(True)
        axes.grid(color="#e8e8e8", linewidth=0.5)
        return axes.scatter(client, label, s=area, c=number, cmap=_colours(), vmin=0, linewidths=0)

    def _pixels(self, axes: Any) -> Any:
        counts = np.ma.masked_equal(self.train.T, 0)
        return axes.imshow(counts, aspect="auto", cmap=_colours(), vmin=0, interpolation="none")

    def _label(self, axes: Any) -> None:
        """Name the classes and domains where there is room for names."""
        if len(self.classes) <= 40:
            axes.set_yticks(range(len(self.classes)), self.classes, fontsize=7)
        first = 0
        for domain, members in itertools.groupby(self.domains):
            last = first + len(list(members)) - 1
            axes.text((first + last) / 2, -1, domain, ha="center", va="bottom", fontsize=7, color="#444444")
            if first:
                axes.axvline(first - 0.5, color="#888888", linewidth=0.6)
            first = last + 1


def _colours() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("images", [PALE, "#6aa5d3", INK, "#062f50"])

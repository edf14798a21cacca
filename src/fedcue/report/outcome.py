"""What a finished run means for its clients and its classes, as tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedcue.report.labels import shorten
from fedcue.report.run_files import Array
from fedcue.report.runs import RunRecord
from fedcue.report.tables import Cell, Table

MANY_LINES, MANY_CLASSES = 20, 12
"""Lines of a table of clients or classes at most, and classes that a whole table of confusions can show."""


def client_table(run: RunRecord) -> Table:
    """Return every client with its images and its accuracy, the worst first."""
    known = [client for client in run.clients if client.accuracy is not None]
    ordered = sorted(known, key=lambda client: client.accuracy or 0.0)
    lines = [
        (
            client.name,
            "held out" if client.heldout else "trains",
            f"{client.train_size:,}",
            f"{client.test_size:,}",
            _percent(client.accuracy),
        )
        for client in ordered[:MANY_LINES]
    ]
    return _table(("client", "", "training images", "test images", "accuracy"), lines)


def class_table(run: RunRecord) -> Table:
    """Return every class with its precision, recall and F1, and what it is mostly mistaken for.

    Of many classes these are the worst, by F1.
    """
    confusion = _confusion(run)
    right, taken, true = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    precision, recall = _shares(right, taken), _shares(right, true)
    f1 = _shares(2 * right, np.where(true > 0, taken + true, 0))
    order = np.arange(len(run.classes))
    if len(order) > MANY_LINES:
        order = np.argsort(np.where(true > 0, 2 * right / np.maximum(taken + true, 1), 2), kind="stable")
    lines = [
        (
            run.classes[label],
            f"{int(true[label]):,}",
            *(values[label] for values in (precision, recall, f1)),
            _mistaken(confusion, label, run.classes),
        )
        for label in order[:MANY_LINES]
    ]
    return _table(("class", "test images", "precision", "recall", "F1", "mostly mistaken for"), lines)


def confusion_table(run: RunRecord) -> Table | None:
    """Return what the images of each class (a line) are taken for (a column); none for many classes."""
    if len(run.classes) > MANY_CLASSES:
        return None
    confusion = _confusion(run)
    lines = [(name, *(f"{int(n):,}" for n in confusion[label])) for label, name in enumerate(run.classes)]
    return _table(("class / taken for", *run.classes), lines)


def _confusion(run: RunRecord) -> Array:
    found = run.analysis.get("confusion")
    classes = len(run.classes)
    fits = found is not None and found.shape == (classes, classes)
    return found if found is not None and fits else np.zeros((classes, classes), int)


def _shares(parts: Array, wholes: Array) -> list[str]:
    """Return shares in %, n/a where there is nothing of which to have a share."""
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [f"{part / whole:.1%}" if whole else "n/a" for part, whole in pairs]


def _mistaken(confusion: Array, label: int, names: Sequence[str]) -> str:
    wrong = confusion[label].copy()
    wrong[label] = 0
    most = int(wrong.argmax())
    return f"{names[most]} ({int(wrong[most]):,})" if wrong[most] else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    cells = tuple(tuple(Cell(shorten(text)) for text in line) for line in lines)
    return Table(tuple(map(shorten, headings)), cells)

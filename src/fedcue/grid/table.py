"""The table that remembers a comparison: a CSV file of runs, and one of their curves beside it.

A run is found again by its recipe, method, seed and the settings that differ from the recipe's, each in a
column of its own (empty: as in the recipe).
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedcue.errors import RunFolderError
from fedcue.evaluate.curve import UNADAPTED
from fedcue.foreign import csv_of
from fedcue.record.files import explained, write_files

Row = Mapping[str, str]
"""One line of a table by column."""

KEYS = ("run", "recipe", "method", "variant", "seed")
"""Columns that name a run."""

ACCURACIES = tuple(
    f"{clients}{measure}"
    for clients in ("", "heldout_", UNADAPTED)
    for measure in ("mean", "worst", "percentile_5", "percentile_10", "percentile_15")
)
"""Columns of accuracies: of the clients that train, of those held out, and without a last adaptation."""

CONTROL = "log_prior_"
"""Begins the columns of the same model tested with the client's log prior added to its logits."""

DOMAIN = "domain:"
"""Begins the columns of a domain's accuracies: mean over clients, and pooled over images."""

COSTS = (
    "upload_floats", "download_floats", "warm_up_floats", "upload_bytes", "download_bytes", "warm_up_bytes",
    "visits", "adaptation_images", "seconds", "workers", "peak_memory_mb", "untested", "bad_images",
    "ended_early",
)  # fmt: skip
"""Columns of what the whole run cost, and of what went wrong in it."""

_ORIGIN = ("date", "commit", "versions")
"""Columns that say where a row comes from."""

CLIENTS = ("clients", f"{CONTROL}clients")
"""Columns of each client's right answers: ``id:right/images``, with ``h`` where it is held out."""

_CURVE = ("run", "round", "mean", "worst", "heldout", "train_loss", "floats", "bytes")
"""Columns of the curves; what travelled is counted from the warm start on, both ways."""

Identity = tuple[str, str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Entry:
    """A row and the points of its curve."""

    row: Row
    curve: tuple[Row, ...] = ()


def _is_setting(column: str) -> bool:
    """Say whether a column holds a setting."""
    known = {*KEYS, *ACCURACIES, *COSTS, *_ORIGIN, *CLIENTS}
    return column not in known and not column.startswith((CONTROL, DOMAIN))


def settings_of(row: Row) -> dict[str, str]:
    """Return the settings in which a row differs from its recipe."""
    return {column: value for column, value in row.items() if value and _is_setting(column)}


def identity_of(row: Row) -> Identity:
    """Return what makes a row the row it is."""
    return row["recipe"], row["method"], row["seed"], tuple(sorted(settings_of(row).items()))


class RunTable:
    """A file of runs; rows are added whole or not at all, also by several processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def curves_path(self) -> Path:
        """The file of curves beside the table."""
        return self.path.with_suffix(".curves.csv")

    def rows(self) -> list[Row]:
        """Return the rows; none if there is no file yet."""
        return _read(self.path, KEYS)

    def curves(self) -> dict[str, list[Row]]:
        """Return the points of each run's curve, by the run's name."""
        found: dict[str, list[Row]] = {}
        for point in _read(self.curves_path, _CURVE):
            found.setdefault(point["run"], []).append(point)
        return found

    def add(self, entries: Sequence[Entry]) -> None:
        """Add rows and their curves; a row that is there already is replaced.

        Curves come first: a kill in between leaves points without a row, which the next try replaces.
        """
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path.parent):
            rows, curves = self.rows(), self.curves()
            for entry in entries:
                rows, name = _with_row(rows, entry.row)
                curves[name] = [{**point, "run": name} for point in entry.curve]
            points = [point for name in curves for point in curves[name]]
            curved, table = _text(points, _CURVE), _text(rows, _columns_of(rows))
            write_files({self.curves_path: curved, self.path: table})


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of rows in the order of the file; those in which all are empty are left out."""
    used = {column for row in rows for column, value in row.items() if value}
    settings = sorted(column for column in used if _is_setting(column))
    control = [CONTROL + name for name in ACCURACIES]
    domains = sorted(column for column in used if column.removeprefix(CONTROL).startswith(DOMAIN))
    ordered = [*KEYS, *settings, *ACCURACIES, *control, *domains, *COSTS, *_ORIGIN, *CLIENTS]
    return [column for column in ordered if column in KEYS or column in used]


def _with_row(rows: Sequence[Row], row: Row) -> tuple[list[Row], str]:
    """Return the rows with one more, or with one replaced, and the name under which it stands."""
    identity = identity_of(row)
    for place, other in enumerate(rows):
        if identity_of(other) == identity:
            named = {**row, "run": other["run"]}
            return [*rows[:place], named, *rows[place + 1 :]], other["run"]
    taken = {other["run"] for other in rows}
    name, number = row["run"], 1
    while name in taken:
        number += 1
        name = f"{row['run']}~{number}"
    return [*rows, {**row, "run": name}], name


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from changing the tables of a folder."""
    with explained(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(path: Path, needed: Sequence[str]) -> list[Row]:
    if not path.is_file():
        return []
    try:
        headings, found = csv_of(path, strict=True)
        rows: list[Row] = list(found)
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Put it back, or give another file."
        ) from error
    missing = [column for column in needed if column not in headings]
    if missing or len(set(headings)) != len(headings):
        raise RunFolderError(
            f"{path} is not a table of runs (it needs one column {(missing or ['of each name'])[0]!r}). "
            "Give the file of an earlier compare --table, or a new one."
        )
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise RunFolderError(f"{path}: row {number} is not as long as the first. Mend or remove it.")
    return rows


def _text(rows: Sequence[Row], columns: Sequence[str]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()

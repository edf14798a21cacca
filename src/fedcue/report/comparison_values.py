"""The numbers of a comparison for other programs: as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from fedcue.record.files import without_formula
from fedcue.report.measures import Row, differences


def plain_row(row: Row, measures: Sequence[str]) -> dict[str, Any]:
    """Return a row's measures over seeds and run by run, as JSON can hold them."""
    group = row.group
    plain: dict[str, Any] = {
        "method": group.method,
        "variant": group.variant,
        "seeds": group.seeds,
        "runs": [run.path.name for run in group.runs],
        "untested": [run.untested for run in group.runs],
        "ended_early": ["ended_early" in run.summary for run in group.runs],
    }
    if row.paper:
        plain["paper"] = dict(row.paper)
    for name in measures:
        found = row.over_seeds(name)
        plain[name] = {"mean": found.mean, "std": found.std, "values": list(found.values)}
    return plain


def plain_pair(row: Row, reference: Row) -> dict[str, Any]:
    """Return a row's differences to its reference, as JSON can hold them."""
    plain: dict[str, Any] = {
        "method": row.group.method,
        "variant": row.group.variant,
        "reference": reference.group.label,
    }
    for name, found in differences(row, reference).items():
        interval = None if found.interval is None else list(found.interval)
        plain[name] = {"mean": found.mean, "interval_95": interval, "values": list(found.values)}
    return plain


def rows_as_csv(rows: Sequence[Row], measures: Sequence[str]) -> str:
    """Return means and standard deviations as CSV, a line per row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "variant", "seeds", *(f"{m}_{s}" for m in measures for s in ("mean", "std"))])
    for row in rows:
        found = [row.over_seeds(name) for name in measures]
        numbers = [value for one in found for value in (one.mean, one.std)]
        texts = ["" if value is None else repr(value) for value in numbers]
        names = map(without_formula, (row.group.method, row.group.variant))
        writer.writerow([*names, len(row.group.runs), *texts])
    return text.getvalue()

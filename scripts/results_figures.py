"""Draw the figures of docs/results from its tables: accuracy by rounds and by what travelled.

python scripts/results_figures.py docs/results/cpu
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tomli_w
from results import Results, Run, overview
from results_shown import ALL_IMAGES, CUE_EVEN, SPLITS, WITH_PRIOR

from fedcue.config.recipes import read_recipe
from fedcue.grid.table import CONTROL, Row
from fedcue.report.catalogue import build
from fedcue.report.draw import save
from fedcue.report.runs import find_runs
from fedcue.report.series import method_label, series_of

FIGURES = ("accuracy-rounds", "accuracy-bytes")


def figures(results: Results, table: str) -> None:
    """Draw the curves of a table's methods as they are, and hollow with the prior."""
    names = [
        n for n in overview(results, [table]).values() if n.removesuffix(WITH_PRIOR) == Run.named(n).method
    ]
    plain = [CUE_EVEN if name == "cue" else name for name in names if not name.endswith(WITH_PRIOR)]
    prior = [name for name in names if name.endswith(WITH_PRIOR) or name == "cue"]
    curves = results.table(table).curves()
    with tempfile.TemporaryDirectory() as place:
        folders = []
        for number, name in enumerate([*plain, *prior]):
            for row in results.rows(table, name):
                folder = Path(place, f"{number:03d}-{row['seed']}")
                as_run_folder(folder, row, curves.get(row["run"], []), name in prior)
                folders.append(folder)
        runs = sorted(find_runs(folders), key=lambda run: run.path.name)
        lines = [replace(one, label=method_label(one.method)) for one in series_of(runs)]
        for figure in FIGURES:
            save(build(figure, lines), results.folder / f"{table}-{figure}.png")


def as_run_folder(folder: Path, row: Row, curve: Sequence[Row], prior: bool) -> None:
    """Write a row as the run folder that figures are drawn from; with the prior only the end is known."""
    end = f"{CONTROL if prior and row['method'] != 'cue' else ''}mean"
    at_end = {"mean_accuracy": float(row[end])}
    traffic = {way: int(row[f"{way}_bytes"]) for way in ("upload", "download")}
    first, rounds, before = int(row["warm_up_bytes"]), [], int(row["warm_up_bytes"])
    for point in curve if end == "mean" else []:
        sent = int(point["bytes"]) - before
        number, accuracy = int(point["round"]), float(point["mean"])
        rounds.append({"round": number, "mean_accuracy": accuracy, "upload_bytes": sent, "download_bytes": 0})
        before = int(point["bytes"])
    length = int(row.get("rounds") or read_recipe(row["recipe"])[1].get("rounds", 0))
    if not rounds and sum(traffic.values()):
        rounds = [{"round": length, **at_end, **{f"{way}_bytes": sent for way, sent in traffic.items()}}]
    folder.mkdir()
    config = {"seed": int(row["seed"]), "rounds": length, "method": {"name": row["method"], "prior": prior}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    (folder / "summary.json").write_text(json.dumps({**at_end, "warm_up_upload_bytes": first}))


def main() -> None:
    """Draw the figures of every split anew."""
    results = Results(Path(sys.argv[1]))
    for table in SPLITS | ALL_IMAGES:
        if table in results.tables:
            figures(results, table)


if __name__ == "__main__":
    main()

"""Run folders as the engine leaves them, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from fedcue.config.layers import dump
from fedcue.config.settings import RunConfig


def write_run(
    folder: Path, config: RunConfig, mean: float = 0.5, heldout: float | None = 0.4, **more: Any
) -> None:
    """Write a finished run of two rounds, of which the second was tested."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        tomli_w.dumps({**dump(config), "environment": {"fedcue": "0.1.0", "commit": "abc"}})
    )
    traffic = {"upload_floats": 10, "download_floats": 20, "upload_bytes": 40, "download_bytes": 80}
    rounds: list[dict[str, Any]] = [
        {"round": n, "clients": [0, 1], "train_loss": 3.0 - n, **traffic} for n in (1, 2)
    ]
    rounds[1] |= {"mean_accuracy": mean, "worst_accuracy": mean / 2, "heldout_mean_accuracy": heldout}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    (folder / "clients.csv").write_text(
        "id,name,domain,heldout,train_size,test_size,test_accuracy\n"
        f"0,a,,false,9,8,{mean:.6f}\n1,b,,false,9,4,\n7,c,,true,9,3,0.333333\n"
    )
    summary = {
        "rounds": 2,
        "mean_accuracy": mean,
        "worst_accuracy": mean / 2,
        "percentile_5_accuracy": mean / 4,
        "heldout_mean_accuracy": heldout,
        "domains": {"sketch": {"client_mean_accuracy": 0.25, "pooled_accuracy": 0.125}},
        "total_upload_floats": 20,
        "total_download_floats": 40,
        "total_upload_bytes": 80,
        "total_download_bytes": 160,
        "warm_up_upload_floats": 100,
        "warm_up_upload_bytes": 400,
        "seconds": 2.5,
        **more,
    }
    (folder / "summary.json").write_text(json.dumps(summary))

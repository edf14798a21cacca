"""Run folders made by hand: every number in a figure or table is known."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from safetensors.numpy import save_file

from fedcue.report.groups import RunGroup, group_runs
from fedcue.report.runs import find_runs

METHODS = ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "pfedpg", "ppt", "pep")
LEVEL = dict(zip(METHODS, (0.78, 0.84, 0.85, 0.82, 0.842, 0.93, 0.75, 0.955), strict=True))
FLOATS = dict(zip(METHODS, (1920, 2112, 4224, 2112, 6000, 9000, 1920, 9792), strict=True))


def config(method: str, seed: int, rounds: int, **changes: Any) -> dict[str, Any]:
    """Return the settings of a run; ``section__key`` changes one of them."""
    settings: dict[str, Any] = {
        "recipe": "default", "seed": seed, "rounds": rounds, "clients_per_round": 4, "heldout": 0.1,
        "backbone": {"name": "embedded", "image_size": 32},
        "training": {"epochs": 5, "lr": 0.1},
        "method": {"name": method},
        "data": {"name": "digits"},
        "partition": {"name": "pathological", "clients": 20, "classes_per_client": 3},
        "environment": {"fedcue": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "commit": "0123456789ab"},
    }  # fmt: skip
    if method == "pep":
        settings["method"] |= {"layers": [4, 5, 6], "temperature": 0.05}
    for key, value in changes.items():
        section, _, rest = key.partition("__")
        if rest:
            settings.setdefault(section, {})[rest] = value
        else:
            settings[section] = value
    return settings


def round_record(number: int, method: str, seed: int, level: float, scored: bool = True) -> dict[str, Any]:
    """Return one line of ``metrics.jsonl``: accuracy rises towards the level, loss falls."""
    floats = FLOATS.get(method, 2000)
    rng = np.random.default_rng([seed, number])
    accuracy = level * (1 - 0.7 * np.exp(-number / 4)) + rng.normal(0, 0.006)
    record = {
        "round": number, "clients": [0, 1, 2, 3], "train_loss": float(2.2 * np.exp(-number / 5) + 0.05),
        "upload_floats": 4 * floats, "download_floats": 4 * floats,
        "upload_bytes": 16 * floats, "download_bytes": 16 * floats, "seconds": 1.5,
    }  # fmt: skip
    return record | (
        {"mean_accuracy": float(accuracy), "worst_accuracy": float(accuracy * 0.8)} if scored else {}
    )


def write_run(
    folder: Path,
    method: str = "pep",
    seed: int = 0,
    rounds: int = 20,
    done: int | None = None,
    classes: Sequence[str] = tuple("0123456789"),
    names: Sequence[str] | None = None,
    domains: Sequence[str] = ("",),
    level: float | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder; with ``done`` below ``rounds`` it has not finished."""
    folder.mkdir(parents=True)
    settings = config(method, seed, rounds, **changes)
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    level = LEVEL.get(method, 0.8) if level is None else level
    records = [round_record(n, method, seed, level) for n in range(1, (done or rounds) + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if done is None:
        finish(folder, settings, records, level, classes, names, domains)
    return folder


def finish(
    folder: Path,
    settings: dict[str, Any],
    records: list[dict[str, Any]],
    level: float,
    classes: Sequence[str],
    names: Sequence[str] | None,
    domains: Sequence[str],
) -> None:
    """Write what a run leaves at its end."""
    method, seed = settings["method"]["name"], settings["seed"]
    clients = settings["partition"].get("clients", 20)
    rng = np.random.default_rng(seed)
    names = [f"client-{i}" for i in range(clients)] if names is None else list(names)
    train = np.zeros((clients, len(classes)), np.int32)
    for client in range(clients):
        held = rng.choice(len(classes), size=min(3, len(classes)), replace=False)
        train[client, held] = rng.integers(8, 40, size=len(held))
    own, labels = np.repeat(np.arange(clients), 18), []
    for client in range(clients):
        labels += rng.choice(np.flatnonzero(train[client]), size=18).tolist()
    truth = np.array(labels, np.int32)
    chance = np.clip(rng.normal(level, 0.08, clients), 0.05, 1)
    right = rng.random(len(truth)) < chance[own]
    predicted = np.where(right, truth, (truth + 1) % len(classes)).astype(np.int32)
    accuracy = np.bincount(own, weights=predicted == truth, minlength=clients) / 18
    heldout = [client < clients // 10 for client in range(clients)]
    write_clients(folder, names, domains, heldout, train, accuracy)
    write_tensors(folder, settings, own, truth, predicted, train, len(classes), rng)
    (folder / "model.json").write_text(json.dumps({"classes": list(classes), "setting": {"depth": 12}}))
    served = method != "pfedpg"
    totals = {
        f"total_{k}": sum(r[k] for r in records) for k in ("upload_bytes", "download_bytes", "upload_floats")
    }
    several = len(set(domains)) > 1
    by_domain = {
        d: {"client_mean_accuracy": level - 0.02 * i, "pooled_accuracy": level} for i, d in enumerate(domains)
    }
    summary = {
        "rounds": len(records), "mean_accuracy": records[-1]["mean_accuracy"],
        "worst_accuracy": records[-1]["worst_accuracy"], "percentile_5_accuracy": level - 0.15,
        "percentile_10_accuracy": level - 0.12, "percentile_15_accuracy": level - 0.1,
        "heldout_mean_accuracy": level - 0.02 if served else None, "domains": by_domain if several else {},
        "seconds": 1.5 * len(records), "warm_up_upload_floats": 0, "warm_up_upload_bytes": 0, **totals,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))


def write_clients(folder: Path, names: Any, domains: Any, heldout: Any, train: Any, accuracy: Any) -> None:
    """Write ``clients.csv``."""
    with open(folder / "clients.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name", "domain", "heldout", "train_size", "test_size", "test_accuracy"])
        for i, name in enumerate(names):
            domain = domains[i % len(domains)]
            row = [i, name, domain, str(heldout[i]).lower(), train[i].sum(), 18, f"{accuracy[i]:.6f}"]
            writer.writerow(row)


def write_tensors(
    folder: Path, settings: Any, own: Any, truth: Any, predicted: Any, train: Any, classes: int, rng: Any
) -> None:
    """Write ``analysis.safetensors`` and, for pep, prompts and snapshots."""
    centres = rng.normal(size=(classes, 24))
    labels = np.arange(120, dtype=np.int32) % classes
    noise = rng.normal(size=(120, 13, 24))
    grow = np.linspace(0, 3, 13)[None, :, None]
    analysis = {
        "clients": own.astype(np.int32), "labels": truth, "predicted": predicted, "train_class_counts": train,
        "cls_tokens": (centres[labels][:, None] * grow + noise).astype(np.float32), "cls_labels": labels,
        "prototype_top1": np.linspace(0.1, 0.8, 12, dtype=np.float32),
        "prototype_top5": np.linspace(0.4, 0.97, 12, dtype=np.float32),
    }  # fmt: skip
    if settings["method"]["name"] == "pep":
        weights = np.full((classes, 3, classes), 0.2 / classes, np.float32)
        for layer, own_weight in enumerate((0.5, 0.7, 0.8)):
            weights[np.arange(classes), layer, np.arange(classes)] = own_weight
        analysis["mean_mixing_weights"] = weights
        (folder / "snapshots").mkdir()
        base = rng.normal(size=(3, classes, 24)).astype(np.float32)
        for i, number in enumerate((0, 10, 20)):
            tensors = {
                "class_prompts": (centres * i + rng.normal(size=centres.shape)).astype(np.float32),
                "prototypes": base + np.float32(0.1 * i) * rng.normal(size=base.shape).astype(np.float32),
            }
            save_file(tensors, folder / "snapshots" / f"round-{number:06d}.safetensors")
        save_file(tensors, folder / "model.safetensors")
    save_file(analysis, folder / "analysis.safetensors")


def eight_methods(folder: Path, seeds: Sequence[int] = (0, 1, 2), **options: Any) -> Path:
    """Write the comparison of all eight methods."""
    for method in METHODS:
        for seed in seeds:
            write_run(folder / f"{method}-{seed}", method, seed, **options)
    return folder


def write_small_run(
    folder: Path, seed: int, accuracies: list[float | None], heldout: float | None = None
) -> Path:
    """Write a finished run of two clients per round: 10 floats up, 20 down and 100 for the warm start."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps({"seed": seed, "method": {"name": "made"}}))
    records = []
    for number, accuracy in enumerate(accuracies, start=1):
        traffic = {"upload_floats": 10, "download_floats": 20, "upload_bytes": 40, "download_bytes": 80}
        tested = {} if accuracy is None else {"mean_accuracy": accuracy, "worst_accuracy": accuracy / 2}
        records.append({"round": number, "clients": [0, 1], **traffic, **tested})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    final = accuracies[-1] if accuracies else 0.0
    assert final is not None
    summary = {
        "mean_accuracy": final,
        "worst_accuracy": final / 2,
        "heldout_mean_accuracy": heldout,
        "warm_up_upload_floats": 100,
        "seconds": 2.0 + seed,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def groups_in(folder: Path) -> list[RunGroup]:
    """Return the groups of the runs below a folder."""
    return group_runs(find_runs([folder]))

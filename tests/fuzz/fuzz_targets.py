"""The readers of foreign input, by kind: each makes good files once, then reads bad ones.

To add a reader, write a function that prepares it in a folder and returns what makes and tries one
input, and name it in ``TARGETS``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
import torch
from fuzz_inputs import (
    any_value,
    json_text,
    mutated_bytes,
    mutated_json,
    mutated_safetensors,
    mutated_text,
    mutated_tree,
)
from PIL import Image
from support import SMALL

import fedcue
from fedcue.after.predict import load as load_model
from fedcue.clients.federation import load_federation
from fedcue.config.layers import dump, load, resolve
from fedcue.config.recipes import read_recipe, recipes
from fedcue.data.image_sources import FileImages, decode
from fedcue.data.pixels import decode_images
from fedcue.data.readers.parquet import Parquet
from fedcue.errors import ClientError
from fedcue.export.push import staged
from fedcue.model.backbone import load_backbone
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.plan.stand_ins import stand_in
from fedcue.privacy.accounting import Ledger
from fedcue.record.checkpoint import Checkpoints
from fedcue.record.files import write_tensors
from fedcue.record.folder import RunFolder, read_metrics
from fedcue.registry import AGGREGATES, DATASETS, METHODS, PARTITIONS, PRIVACY
from fedcue.report.page import render
from fedcue.report.runs import read_run
from fedcue.rounds.resume import check_state, default_folder
from fedcue.rounds.transport import Wire

Attempt = Callable[[Random], bool | None]
"""Makes and tries one input; false if it was left out by name instead of refused by an error."""
Prepare = Callable[[Path], Attempt]


def recipe_files(folder: Path) -> Attempt:
    """Load changed recipe files; a run of one may only go below ``runs/``."""
    texts = [path.read_text(encoding="utf-8") for path in recipes().values()]
    trees = [settings for _, settings in map(read_recipe, recipes())]
    path = folder / "recipe.toml"

    def attempt(random: Random) -> None:
        data = mutated_text(random, random.choice(texts)).encode("utf-8", "surrogatepass")
        if random.random() < 0.4:
            with suppress(Exception):  # not everything can be written as TOML
                data = tomli_w.dumps(mutated_tree(random, random.choice(trees))).encode()
        elif random.random() < 0.3:
            data = mutated_bytes(random, data)
        path.write_bytes(data)
        config = load(path, ["scale=cpu"] if random.random() < 0.3 else [])
        assert default_folder(config).resolve().parent == folder / "runs"

    return attempt


def _keys() -> list[str]:
    """Return every setting there is."""
    keys = [
        "scale",
        "profile",
        "method",
        "data",
        "partition",
        "aggregate",
        "privacy",
        "backbone",
        "transport",
    ]
    keys += ["per_method", "base", "compare", "method.name", "data.name", ".", "a.b.c"]
    plain = dump(load())
    keys += [
        f"{section}.{key}" for section, table in plain.items() if isinstance(table, dict) for key in table
    ]
    keys += [key for key in plain if not isinstance(plain[key], dict)]
    registries = {
        "method": METHODS, "data": DATASETS, "partition": PARTITIONS, "aggregate": AGGREGATES, "privacy": PRIVACY,
    }  # fmt: skip
    for section, registry in registries.items():
        parts = [registry.get(name) for name in registry.builtin]
        keys += sorted({f"{section}.{key}" for part in parts for key in part.model_fields})
    return keys


def key_values(folder: Path) -> Attempt:
    """Load the default recipe with changed ``key=value`` texts."""
    keys = _keys()
    values = [
        "1",
        "0.5",
        "true",
        "[1, 2]",
        '"text"',
        "{a = 1}",
        "pep",
        "1979-05-27",
        "fedcue.data.readers.digits:Digits",
    ]

    def attempt(random: Random) -> None:
        texts = []
        for _ in range(random.randint(1, 3)):
            value = random.choice(values) if random.random() < 0.5 else json_text(any_value(random))
            text = f"{random.choice(keys)}={value}"
            texts.append(mutated_text(random, text) if random.random() < 0.5 else text)
        load("default", texts)

    return attempt


SAFE = ["clients_per_round=2", "data.train_per_class=15", "data.test_per_class=5"]
"""Settings that keep a planned run small, unless an input changes them."""


def config_values(folder: Path) -> Attempt:
    """Plan runs with any value for one or two settings: partition, clients, checks, no images."""
    keys = [key for key in _keys() if key not in ("data.hub", "backbone", "backbone.name")]
    _, settings = read_recipe("default")
    parts = [METHODS, PARTITIONS, AGGREGATES, PRIVACY]
    names = [(registry.kind, name) for registry in parts for name in registry.builtin]

    def attempt(random: Random) -> None:
        overrides: dict[str, Any] = dict(text.split("=") for text in SAFE)
        overrides = {key: int(value) for key, value in overrides.items()}
        overrides |= dict([random.choice(names)]) if random.random() < 0.5 else {}
        for _ in range(random.randint(1, 2)):
            overrides[random.choice(keys)] = any_value(random)
        config = resolve(settings, overrides)
        if random.random() < 0.2 and config.rounds <= 1000:
            stand_in(config)

    return attempt


TINY = Architecture(width=16, depth=3, heads=2, patch=4, image_size=8, hidden=32)


def _backbone(folder: Path) -> Path:
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write_tensors(folder / "model.safetensors", VisionTransformer(TINY).state_dict())
    config = {
        "architecture": "vit_tiny_patch4_8",
        "num_classes": 0,
        "model_args": {"num_heads": 2},
        "pretrained_cfg": {"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _look(backbone: VisionTransformer) -> None:
    size = backbone.architecture.image_size
    if size <= 64:
        with torch.no_grad():
            backbone(backbone.normalise(torch.zeros(1, 3, size, size, dtype=torch.uint8)))


def backbone_configs(folder: Path) -> Attempt:
    """Load backbones with a changed ``config.json``."""
    path = _backbone(folder / "backbone") / "config.json"
    good = path.read_text()

    def attempt(random: Random) -> None:
        path.write_bytes(mutated_json(random, good).encode("utf-8", "surrogatepass"))
        _look(load_backbone(str(path.parent)))

    return attempt


def backbone_weights(folder: Path) -> Attempt:
    """Load backbones with changed ``model.safetensors``."""
    path = _backbone(folder / "backbone") / "model.safetensors"
    good = path.read_bytes()

    def attempt(random: Random) -> None:
        path.write_bytes(mutated_safetensors(random, good))
        _look(load_backbone(str(path.parent)))

    return attempt


def _config(folder: Path, method: str) -> fedcue.RunConfig:
    more = ["method.layers=[1,2]"] if method == "pep" else []
    tiny = ["data.train_per_class=6", "data.test_per_class=2", "evaluation.cls_sample=4", "rounds=3"]
    backbone = f"backbone={folder / 'backbone'}"
    return load("default", [*SMALL, *tiny, f"method={method}", backbone, *more])


def _runs(folder: Path) -> dict[str, Path]:
    """Make finished runs of two methods, one of which keeps memories, on a tiny backbone."""
    _backbone(folder / "backbone")
    return {name: fedcue.run(_config(folder, name), folder / name).folder for name in ("pep", "ppt")}


def trained_models(folder: Path) -> Attempt:
    """Predict with runs whose model, its description or the clients' memories were changed."""
    runs = list(_runs(folder).values())
    names = ("model.json", "model.safetensors", "clients.safetensors")
    good = {run / name: (run / name).read_bytes() for run in runs for name in names if (run / name).is_file()}
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)

    def attempt(random: Random) -> None:
        path = random.choice(list(good))
        data = good[path]
        if path.suffix == ".json":
            path.write_bytes(mutated_json(random, data.decode()).encode("utf-8", "surrogatepass"))
        else:
            path.write_bytes(mutated_safetensors(random, data))
        try:
            model = load_model(path.parent)
            if model.model.architecture.image_size == 8:
                model.predict(images, client=random.choice((None, 0, 1)))
        finally:
            path.write_bytes(data)

    return attempt


def published_models(folder: Path) -> Attempt:
    """Make what a repository of the hub holds, card and all, of runs one of whose files was changed."""
    runs = list(_runs(folder).values())
    names = ("model.json", "summary.json", "config.toml", "clients.csv")
    good = {run / name: (run / name).read_bytes() for run in runs for name in names}
    number = count()

    def attempt(random: Random) -> None:
        path = random.choice(list(good))
        change = mutated_json if path.suffix == ".json" else mutated_text
        path.write_bytes(change(random, good[path].decode()).encode("utf-8", "surrogatepass"))
        place = folder / f"repository-{next(number)}"
        place.mkdir()
        try:
            staged(path.parent, place, clients=random.random() < 0.5)
        finally:
            path.write_bytes(good[path])
            shutil.rmtree(place)

    return attempt


def checkpoints(folder: Path) -> Attempt:
    """Resume from changed checkpoints: damaged ones, and ones with a checksum that fits the damage."""
    runs = _runs(folder)
    federations = {name: load_federation(_config(folder, name)) for name in runs}
    paths = {name: sorted((run / "checkpoints").iterdir()) for name, run in runs.items()}
    good = {name: own[-1].read_bytes() for name, own in paths.items()}

    def attempt(random: Random) -> None:
        name = random.choice(list(runs))
        body = good[name][32:]
        if random.random() < 0.2:
            data = mutated_bytes(random, good[name])
        else:
            body = _mutated_body(random, body)
            data = hashlib.sha256(body).digest() + body
        for path in paths[name]:
            path.write_bytes(data)
        found = Checkpoints(paths[name][0].parent, 2).newest()
        federation = federations[name]
        Wire(federation.config, federation.roster.table).remember(found.transport)
        check_state(federation.roster, found.state)

    return attempt


def _mutated_body(random: Random, body: bytes) -> bytes:
    size = int.from_bytes(body[:8], "little")
    header, tensors = body[8 : 8 + size], body[8 + size :]
    match random.randrange(3):
        case 0:
            return mutated_bytes(random, body)
        case 1:
            header = mutated_json(random, header.decode()).encode("utf-8", "surrogatepass")
        case _:
            tensors = mutated_safetensors(random, tensors)
    return len(header).to_bytes(8, "little") + header + tensors


def metrics(folder: Path) -> Attempt:
    """Read changed ``metrics.jsonl``, and now and then make a report of them."""
    run = _runs(folder)["pep"]
    path = run / "metrics.jsonl"
    good = path.read_text()
    render([read_run(run)])  # scikit-learn counts the cores with lscpu, once in a process

    def attempt(random: Random) -> None:
        path.write_bytes(_mutated_lines(random, good))
        if random.random() < 0.02:
            render([read_run(run)])
        read_metrics(run)

    return attempt


def releases(folder: Path) -> Attempt:
    """Read a changed journal of releases, and go on with it."""
    journal, path = RunFolder(folder), folder / "releases.jsonl"
    for clients in ([0, 1, 2], [2, 17], [1]):
        journal.append_release(clients, len(clients))
    good = path.read_text()

    def attempt(random: Random) -> None:
        path.write_bytes(_mutated_lines(random, good))
        before, after = Ledger(), Ledger()
        for entry in journal.read_releases():
            before.add(*entry)
        journal.append_release([0], 1)
        for entry in journal.read_releases():
            after.add(*entry)
        assert after.total == before.total + 1
        assert after.epsilon(1.0, 1e-5) > 0

    return attempt


def _mutated_lines(random: Random, good: str) -> bytes:
    """Change a file of JSON lines, as values or as text."""
    text = mutated_text(random, good)
    if random.random() < 0.6:
        changed = mutated_tree(random, [json.loads(line) for line in good.splitlines()])
        rows = changed if isinstance(changed, list) else [changed]
        text = "".join(json_text(row) + "\n" for row in rows)
    return text.encode("utf-8", "surrogatepass")


def run_folders(folder: Path) -> Attempt:
    """Read runs one of whose files was changed, and now and then make a report of them."""
    runs = list(_runs(folder).values())
    names = (
        "config.toml", "clients.csv", "summary.json", "model.json", "analysis.safetensors", "model.safetensors",
        "metrics.jsonl",
    )  # fmt: skip
    good = {run / name: (run / name).read_bytes() for run in runs for name in names}
    render([read_run(runs[0])])  # as above

    def attempt(random: Random) -> bool:
        path = random.choice(list(good))
        data = good[path]
        match path.suffix:
            case ".json":
                changed = mutated_json(random, data.decode()).encode("utf-8", "surrogatepass")
            case ".safetensors":
                changed = mutated_safetensors(random, data)
            case _:
                changed = mutated_text(random, data.decode()).encode("utf-8", "surrogatepass")
        path.write_bytes(changed)
        try:
            record = read_run(path.parent)
            if random.random() < 0.02:
                render([record])
            return record.state != "damaged"
        finally:
            path.write_bytes(data)

    return attempt


def _picture(random: np.random.Generator, size: tuple[int, int], mode: str) -> Image.Image:
    pixels = random.integers(0, 256, (*size, 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def images(folder: Path) -> Attempt:
    """Decode changed images of every format that is read."""
    generator = np.random.default_rng(0)
    formats = {
        "PNG": "RGBA",
        "JPEG": "RGB",
        "GIF": "P",
        "BMP": "RGB",
        "TIFF": "RGB",
        "WEBP": "RGBA",
        "PPM": "L",
    }
    good = []
    for name, mode in formats.items():
        for kind in {mode, "L"}:
            buffer = io.BytesIO()
            _picture(generator, (17, 23), kind).save(buffer, name)
            good.append(buffer.getvalue())
    path = folder / "image.png"

    def attempt(random: Random) -> None:
        path.write_bytes(mutated_bytes(random, random.choice(good)))
        square = decode(FileImages([path]), 0, 16)
        assert square.shape == (3, 16, 16)

    return attempt


def parquet_files(folder: Path) -> Attempt:
    """Read datasets from changed Parquet files: other bytes, other columns, other labels."""
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(6):
        buffer = io.BytesIO()
        _picture(generator, (5, 5), "RGB").save(buffer, "PNG")
        pictures.append({"bytes": buffer.getvalue(), "path": "x.png"})
    features = {"info": {"features": {"label": {"names": ["a", "b", "c"]}}}}
    root = folder / "data"
    root.mkdir()
    path = root / "train-00000-of-00001.parquet"

    def written(columns: dict[str, Any], about: str) -> bytes:
        table = pa.table(columns).replace_schema_metadata({"huggingface": about})
        pq.write_table(table, path, row_group_size=4)
        return path.read_bytes()

    good = written({"image": pictures, "label": [0, 1, 2, 0, 1, 2]}, json.dumps(features))

    def attempt(random: Random) -> None:
        if random.random() < 0.6:
            path.write_bytes(mutated_bytes(random, good))
        else:
            about = mutated_json(random, json.dumps(features))
            with suppress(pa.ArrowException, OverflowError, TypeError, ValueError, RecursionError):
                written(_columns(random, pictures), about)
        read = Parquet(root=root, on_bad_image=random.choice(("error", "skip")))
        dataset = read.load(0)
        decode_images(dataset, np.arange(len(dataset)), 8, read)

    return attempt


def _columns(random: Random, pictures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of a table, one of them with unusual values."""
    number = random.choice((0, 1, 6))
    labels = [random.choice((0, 1, 2)) for _ in range(number)]
    columns: dict[str, Any] = {"image": pictures[:number], "label": labels}
    same = random.random() < 0.5
    strange = [any_value(random, deep=0)] * number if same else [any_value(random, deep=0) for _ in labels]
    if random.random() < 0.3:
        strange = [None, *strange[1:]] if number else strange
    columns[random.choice(("image", "label"))] = strange
    return columns


def flower_replies(folder: Path) -> Attempt:
    """Read changed replies of a network's nodes; a client whose reply is bad is left out by name."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from fedcue.flower.expected import expected_replies
    from fedcue.flower.messages import Member, Outcome, write_members, write_outcomes
    from fedcue.flower.replies import read_members, read_outcomes

    _backbone(folder / "backbone")
    federation = load_federation(_config(folder, "pep"))
    expected = expected_replies(federation.roster)[1]
    size = int(federation.roster.train_sizes[0])
    joined = {0: Member(0, "a", "b", False, size, 2)}
    good = write_outcomes(
        [
            Outcome(
                0,
                {spec.name: torch.zeros(*spec.shape, dtype=spec.dtype) for spec in expected.specs},
                size,
                0.5,
                None,
            )
        ]
    )
    text, data = str(good["outcomes"]["json"]), good["tensors-0"]["data"].data
    members = str(write_members(list(joined.values()))["members"]["json"])

    def attempt(random: Random) -> bool | None:
        if random.random() < 0.2:
            content = RecordDict({"members": ConfigRecord({"json": mutated_json(random, members)})})
            with suppress(ClientError):
                return isinstance(read_members(content, 5), list)
            return False
        own, tensors = text, data
        if random.random() < 0.5:
            own = mutated_json(random, text)
        else:
            tensors = mutated_safetensors(random, data)
        arrays = ArrayRecord({"data": Array("uint8", (len(tensors),), "safetensors", tensors)})
        content = RecordDict({"outcomes": ConfigRecord({"json": own}), "tensors-0": arrays})
        return isinstance(read_outcomes(content, [0], expected, joined)[0], Outcome)

    return attempt


def secure_messages(folder: Path) -> Attempt:
    """Read changed messages of clients in each step of a secure sum, and changed states of the server."""
    from flwr.app import Array, ArrayRecord, RecordDict
    from secure_round import STEPS, Round, session, vectors

    from fedcue.flower.expected import ExpectedMessage
    from fedcue.flower.messages import Member, Outcome, write_outcomes
    from fedcue.flower.replies import read_outcomes
    from fedcue.secure.server import Server

    of, joined = session(range(3), 2), {0: Member(0, "a", "b", False, 5, 2)}
    played, moments = Round(of, vectors(of)), []
    for _ in STEPS:
        before = played.server.written()
        moments.append((before, played.play_step()[0]))
        played.server.advance()

    def attempt(random: Random) -> bool | None:
        before, message = random.choice(moments)
        if random.random() < 0.2:
            Server.resume(of, mutated_json(random, before))
            return True
        data = mutated_bytes(random, message)
        content = write_outcomes([Outcome(0)])
        content["message-0"] = ArrayRecord({"data": Array("uint8", (len(data),), "safetensors", data)})
        expected = ExpectedMessage(Server.resume(of, before))
        return isinstance(read_outcomes(RecordDict(dict(content)), [0], expected, joined)[0], Outcome)

    return attempt


TARGETS: dict[str, Prepare] = {
    "recipes": recipe_files,
    "key=value": key_values,
    "config values": config_values,
    "config.json": backbone_configs,
    "model.safetensors": backbone_weights,
    "trained models": trained_models,
    "published models": published_models,
    "checkpoints": checkpoints,
    "metrics.jsonl": metrics,
    "releases.jsonl": releases,
    "run folders": run_folders,
    "images": images,
    "Parquet files": parquet_files,
    "Flower replies": flower_replies,
    "secure messages": secure_messages,
}

if importlib.util.find_spec("flwr") is None:
    del TARGETS["Flower replies"], TARGETS["secure messages"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

"""Export the model of a finished run: one file that needs no fedcue, and what explains it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram

from fedcue.after.hub import found
from fedcue.after.predict import Model, load
from fedcue.clients.priors import estimate_priors
from fedcue.errors import ConfigError, FedcueError, RunFolderError
from fedcue.export.card import File, labels, model_card, rendered
from fedcue.export.files import FILES, Form, described, needed, written
from fedcue.export.graph import Deployed, takes_priors, trace
from fedcue.record.files import explained, write_files

OURS = (*FILES.values(), "labels.json", "README.md", "classify.py")
_TOLERANCE = 1e-4
"""By how much a probability of the file may differ from fedcue's own, both in float32."""


@dataclass(frozen=True)
class Exported:
    """What was written: where, which file, and whether it wants priors beside images."""

    folder: Path
    file: Path
    priors: bool


def export(
    run: str | Path,
    out: str | Path,
    client: int | str | None = None,
    *,
    form: Form = "onnx",
    quantize: str | None = None,
    overwrite: bool = False,
    trusted: Collection[str] = (),
    fetch: bool | None = None,
) -> Exported:
    """Write the model of a run as one file into ``out``, checked against fedcue's own prediction.

    Beside it: ``labels.json``, a model card and a program that classifies images with the file.
    """
    _check(form, quantize)
    place = Path(out)
    _check_place(place, overwrite)
    folder, fetch = found(run, fetch)
    model = load(folder, trusted, fetch=fetch, precision="float32")
    if isinstance(client, str):
        client = model.client_called(client)
    program = trace(Deployed(model, client), client=client is not None)
    data, priors = written(program, form, quantize), takes_priors(program)
    _compare(data, program, form, model, client, exact=quantize is None)
    size = model.model.architecture.image_size
    about = File(FILES[form], described(form, quantize), len(data), size, len(model.classes), priors)
    engine = "torch" if form == "torch" else "onnxruntime"
    example = {"engine": engine, "size": size, "file": FILES[form], "priors": priors}
    texts = {
        "labels.json": labels(model),
        "README.md": model_card(folder, model, client, about),
        "classify.py": rendered("classify.txt", **example, **_estimate(model)),
    }
    with explained(place):
        place.mkdir(parents=True, exist_ok=True)
    files = {
        FILES[form]: data,
        **{name: text.encode(errors="backslashreplace") for name, text in texts.items()},
    }
    write_files({place / name: content for name, content in files.items()})
    with explained(place):
        for name in set(OURS) - files.keys():
            (place / name).unlink(missing_ok=True)
    return Exported(place, place / FILES[form], priors)


def _estimate(model: Model) -> dict[str, Any]:
    """Return what the example estimates priors with: our own function, and its numbers."""
    concentration, temperature = model.unlabelled
    source = inspect.getsource(estimate_priors)
    return {"estimate": source, "concentration": concentration, "temperature": temperature}


def _check(form: str, quantize: str | None) -> None:
    if form not in FILES:
        raise ConfigError(f"Unknown --format {form!r}. Give one of: {', '.join(FILES)}.")
    if quantize not in (None, "int8") or (quantize and form != "onnx"):
        raise ConfigError(f"--quantize {quantize} with --format {form}: give int8, with --format onnx.")
    if form == "onnx":
        needed("onnx", "onnxscript", "onnxruntime")


def _check_place(place: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written or holds something else, before anything is traced."""
    nearest = next(path for path in (place, *place.absolute().parents) if os.path.lexists(path))
    if not (nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)):
        raise RunFolderError(f"--out {place} cannot be written: look at {nearest}. Give a new folder.")
    there = sorted(entry.name for entry in place.iterdir()) if nearest == place else []
    foreign = [name for name in there if name not in OURS or (place / name).is_dir()]
    if foreign:
        raise RunFolderError(
            f"{place} holds {foreign[0]!r}, which is no part of an export. Give another --out."
        )
    if there and not overwrite:
        raise RunFolderError(f"{place} is not empty. Give another --out, or --overwrite.")


def _compare(
    data: bytes, program: ExportedProgram, form: Form, model: Model, client: int | None, exact: bool
) -> None:
    """Refuse a file that does not predict what the model does."""
    size, classes = model.model.architecture.image_size, len(model.classes)
    given: dict[str, NDArray[Any]] = {
        "images": np.random.default_rng(0).integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    }
    mix = np.arange(1, classes + 1, dtype=np.float32)
    if takes_priors(program):
        given["priors"] = mix
    priors = mix.tolist() if client is None else None
    expected = model.predict(given["images"], priors, client, details=False).probabilities.numpy()
    answer = _run(data, program, form, given)
    wrong = float(np.abs(answer - expected).max()) if np.isfinite(answer).all() else np.inf
    if wrong > (_TOLERANCE if exact else 1):
        raise FedcueError(
            f"The file would not predict what the run does: probabilities differ by {wrong:.1g}. "
            f"{model.method.name} may look at its client's priors before it sees an image: give --client ID."
        )


def _run(data: bytes, program: ExportedProgram, form: Form, given: Mapping[str, Any]) -> NDArray[np.float32]:
    if form == "torch":
        return np.asarray(program.module()(*map(torch.from_numpy, given.values())).detach())
    from onnxruntime import InferenceSession

    return np.asarray(InferenceSession(data).run(["probabilities"], dict(given))[0])

"""Compare the forms of an exported model: size, speed on one core, accuracy over the run's test clients.

python benchmarks/export_forms.py RUN

Speed is images per second of processor time on one thread, so that what else runs here does not count.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

import fedcue
from fedcue.clients.federation import Federation, load_federation
from fedcue.config.layers import load_folder
from fedcue.export.write import export

Predict = Callable[[NDArray[np.uint8], NDArray[np.float32]], NDArray[np.float32]]
FORMS: dict[str, dict[str, Any]] = {
    "ONNX": {},
    "torch.export": {"form": "torch"},
    "ONNX, int8": {"quantize": "int8"},
}
BATCH = 32


def opened(file: Path, priors: bool) -> Predict:
    """Return a function from images and priors to probabilities, on one thread."""
    if file.suffix == ".pt2":
        module = torch.export.load(file).module()
        return lambda images, mix: (
            module(*map(torch.from_numpy, (images, mix)[: 1 + priors])).detach().numpy()
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options)
    return lambda images, mix: session.run(None, {"images": images} | ({"priors": mix} if priors else {}))[0]


def measured(predict: Predict, federation: Federation) -> tuple[float, float]:
    """Return the mean accuracy over clients, and images per second of processor time."""
    accuracies, images, seconds = [], 0, 0.0
    for client in federation.clients:
        mix = client.class_priors.astype(np.float32)
        right = 0
        for rows in np.array_split(np.arange(len(client.test)), max(1, len(client.test) // BATCH)):
            pixels = federation.pixels[client.test[rows]].permute(0, 2, 3, 1).contiguous().numpy()
            started = time.process_time()
            found = predict(pixels, mix)
            seconds += time.process_time() - started
            right += int((found.argmax(1) == client.test_labels[rows]).sum())
        accuracies.append(right / len(client.test))
        images += len(client.test)
    return float(np.mean(accuracies)), images / seconds


def main() -> None:
    """Print one row for each form."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    federation = load_federation(load_folder(run, None, ()))
    model = fedcue.load(run, precision="float32")
    print("| form | MB | images/s of one core | mean accuracy |\n|---|---:|---:|---:|")

    def itself(images: NDArray[np.uint8], mix: NDArray[np.float32]) -> NDArray[np.float32]:
        return model.predict(images, mix.tolist(), details=False).probabilities.numpy()

    accuracy, speed = measured(itself, federation)
    print(f"| fedcue itself | – | {speed:.0f} | {accuracy:.1%} |", flush=True)
    for name, how in FORMS.items():
        with tempfile.TemporaryDirectory() as folder:
            done = export(run, Path(folder) / "out", **how)
            size = done.file.stat().st_size / 1e6
            accuracy, speed = measured(opened(done.file, done.priors), federation)
            print(f"| {name} | {size:.1f} | {speed:.0f} | {accuracy:.1%} |", flush=True)


if __name__ == "__main__":
    main()

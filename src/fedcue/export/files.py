"""Write a traced program as the bytes of one file: ONNX, ONNX in eight bits, or torch's own format."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch.export import ExportedProgram

from fedcue.errors import ConfigError, FedcueError

Form = Literal["onnx", "torch"]
"""What a program is written as."""

FILES: dict[Form, str] = {"onnx": "model.onnx", "torch": "model.pt2"}
_OPSET = 20
LIMIT = 2**31 - 2**20
"""Bytes an ONNX file may have: its encoding allows 2 GiB."""


def described(form: Form, quantize: str | None) -> str:
    """Return a description of the kind of file."""
    if form == "torch":
        return "a program of torch.export in float32"
    return f"ONNX, opset {_OPSET}, matrices in int8" if quantize else f"ONNX, opset {_OPSET}, float32"


def written(program: ExportedProgram, form: Form, quantize: str | None) -> bytes:
    """Return the program as a file's bytes, without paths of this machine."""
    if form == "torch":
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)
        file = io.BytesIO()
        torch.export.save(program, file)
        return file.getvalue()
    model = _onnx(program)
    return _in_eight_bits(model) if quantize else bytes(model.SerializeToString())


def _onnx(program: ExportedProgram) -> Any:
    """Return the program as an ONNX model, the number of images called N."""
    needed("onnx", "onnxscript")
    size = sum(tensor.nbytes for tensor in (*program.state_dict.values(), *program.constants.values()))
    if size > LIMIT:
        raise FedcueError(
            f"The model has {size / 2**30:.1f} GiB, and an ONNX file holds at most 2. Give --format torch."
        )
    with _quietly():
        made = torch.onnx.export(
            program, dynamo=True, opset_version=_OPSET, output_names=["probabilities"], verbose=False
        )
    assert made is not None
    model = made.model_proto
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.shape.dim[0].dim_param:
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.initializer):
        del part.metadata_props[:]  # where in whose files a node comes from
    return model


def _in_eight_bits(model: Any) -> bytes:
    """Return the model with the backbone's matrices in int8, one scale a column, activations as they come."""
    needed("onnxruntime")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _quietly():
        path = Path(folder) / "model.onnx"
        quantize_dynamic(
            model,
            path,
            per_channel=True,
            reduce_range=True,  # eight bits overflow on a processor without VNNI
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
        )
        return path.read_bytes()


def needed(*modules: str) -> None:
    """Say how to install what is missing."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"An ONNX file needs its extra, and {error.name} is missing: pip install 'fedcue[export]'."
            ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporters' remarks on their own workings from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

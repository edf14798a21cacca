"""How a method declares its tensors: one line each, from which everything else follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedcue.rng import torch_rng
from fedcue.types import Kind, Sizes, TensorSpec

Shape = tuple[int, ...]
First = Callable[[Shape, int], Tensor]
"""How a tensor starts: from its shape and the run's seed to its value."""

PromptInit = Literal["vpt", "zeros", "unit"]
"""How prompts start: uniform within VPT's bound, zero, or uniform on (0, 1)."""


def linear_head(sizes: Sizes, bias: bool = False, rows: int | None = None) -> list[TensorSpec]:
    """Declare the linear head H ``[C, d]``, drawn as a linear layer's default is, and a bias of zeros."""
    start = uniform("head", 1 / math.sqrt(sizes.width))
    specs = [trained("head", (sizes.classes, sizes.width), start, rows)]
    if bias:
        specs.append(trained("head_bias", (sizes.classes,), zeros, rows))
    return specs


def prompt(
    name: str, shape: Shape, sizes: Sizes, start: PromptInit = "vpt", rows: int | None = None
) -> TensorSpec:
    """Declare prompts ``[..., d]`` that clients are sent, train and send back for a mean."""
    return trained(name, shape, prompt_start(name, sizes, start), rows)


def trained(name: str, shape: Shape, first: First, rows: int | None = None) -> TensorSpec:
    """Declare a tensor that clients are sent, train and send back, and whose mean the server keeps."""
    return TensorSpec(
        name,
        shape,
        partial(first, shape),
        stored=True,
        sent=True,
        trained=True,
        returned=True,
        rows=rows,
        kind="shared",
    )


def statistic(
    name: str,
    shape: Shape,
    rows: int | None = None,
    seldom: bool = False,
    dtype: torch.dtype = torch.float32,
) -> TensorSpec:
    """Declare what the server computes and sends, at first zeros; clients do not train it."""
    first = partial(zeros, shape, dtype=dtype)
    return TensorSpec(name, shape, first, stored=True, sent=True, rows=rows, seldom=seldom, dtype=dtype)


def reply(
    name: str,
    shape: Shape,
    kind: Kind | None,
    rows: int | None = None,
    returned: bool = False,
    dtype: torch.dtype = torch.float32,
) -> TensorSpec:
    """Declare what clients report of their images before round 0 and, if ``returned``, after every visit."""
    return TensorSpec(
        name, shape, replied=True, returned=returned, rows=rows, kind=kind, weighted=False, dtype=dtype
    )


def kept(name: str, shape: Shape, first: First) -> TensorSpec:
    """Declare a tensor that a client trains, keeps and never sends."""
    return TensorSpec(name, shape, partial(first, shape), trained=True, kept=True)


def kept_as(spec: TensorSpec) -> TensorSpec:
    """Return a trained tensor as one that stays at the client."""
    return TensorSpec(spec.name, spec.shape, spec.first, trained=True, kept=True)


def kept_moments(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Declare what a client keeps of its optimiser: two moments of each tensor, and the steps taken."""
    return [
        TensorSpec(f"{spec.name}_{part}", shape, partial(zeros, shape), kept=True)  # type: ignore[arg-type]
        for spec in specs
        for part, shape in (("mean", spec.shape), ("square", spec.shape), ("steps", ()))
    ]


def server(
    name: str, shape: tuple[int | None, ...], first: First | None = None, dtype: torch.dtype = torch.float32
) -> TensorSpec:
    """Declare what only the server has."""
    start = None if first is None else partial(first, tuple(size or 0 for size in shape))
    return TensorSpec(name, shape, start, stored=True, dtype=dtype)


def zeros(shape: Shape, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Start with zeros."""
    return torch.zeros(shape, dtype=dtype)


def uniform(name: str, bound: float, seed: int | None = None) -> First:
    """Start with uniform values on (-bound, bound), of the run's seed or of a fixed one."""

    def first(shape: Shape, run_seed: int) -> Tensor:
        generator = torch_rng(run_seed if seed is None else seed, "init", name)
        return (torch.rand(*shape, generator=generator) * 2 - 1) * bound

    return first


def prompt_start(name: str, sizes: Sizes, start: PromptInit = "vpt", seed: int | None = None) -> First:
    """Start prompts within VPT's bound (Xavier's for the patch embedding), with zeros, or on (0, 1)."""
    if start == "zeros":
        return zeros
    if start == "unit":
        return lambda shape, seed: torch.rand(*shape, generator=torch_rng(seed, "init", name))
    return uniform(name, math.sqrt(6 / (3 * sizes.patch**2 + sizes.width)), seed)

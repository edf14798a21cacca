"""Run the frozen backbone with prompts: what is inserted where, from which block on, for whom.

A block may take a change of its weights instead of tokens; the frozen weights stay as they are.
New prompt tokens always go right behind cls, so that the tokens a head reads are the first ones.
Prompts carry no position embedding: their order does not matter to the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcue.model.vit import LowRank, VisionTransformer

Precision = Literal["float32", "bfloat16"]
"""The precision of the backbone's products and attention; everything else is float32."""

PRODUCTS: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The type of the products by precision."""


def has_bfloat16(device: str) -> bool | None:
    """Tell whether a device multiplies bfloat16 matrices in hardware; none if that is not known."""
    if torch.device(device).type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.device(device).type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return None
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "arm_bf16", "bf16"))


def fast_precision(device: str) -> Precision:
    """Return bfloat16 where a device is known to multiply it in hardware, else float32."""
    try:
        return "bfloat16" if has_bfloat16(device) else "float32"
    except (RuntimeError, AssertionError):  # no such device: said when the model is moved there
        return "float32"


@dataclass(frozen=True)
class Insertion:
    """Prompt tokens ``[n, d]`` or ``[B, n, d]`` put behind cls, in place of those there or not."""

    tokens: Tensor
    overwrite: bool = False


Prompter = Callable[[int, Tensor], Insertion | LowRank | None]
"""From block index and its input tokens ``[B, T, d]`` to what is inserted before or changed in that block."""


def no_prompts(block: int, tokens: Tensor) -> None:
    """Insert nothing: the bare backbone."""


@dataclass(frozen=True)
class Prefix:
    """What no prompt can change: the tokens at the input of ``block`` and their projection there.

    At ``block == depth`` the tokens are the final normalised cls token, ``[B, 1, d]``.
    """

    block: int
    tokens: Tensor
    qkv: Tensor | None = None

    def __getitem__(self, rows: Tensor | slice) -> Prefix:
        """Return the prefix of the chosen images."""
        return Prefix(self.block, self.tokens[rows], None if self.qkv is None else self.qkv[rows])


class PromptedViT:
    """The frozen backbone and the ways to run it."""

    def __init__(
        self,
        backbone: VisionTransformer,
        precision: Precision = "float32",
        feature_norm: float | None = None,
    ) -> None:
        self.backbone = backbone if precision == "float32" else _with_products_in(torch.bfloat16, backbone)
        self.precision, self.dtype = precision, PRODUCTS[precision]
        self.device = backbone.cls_token.device
        self.architecture = backbone.architecture
        self.depth = backbone.architecture.depth
        self.feature_scale = 1.0 if feature_norm is None else feature_norm / _usual_length(backbone)

    def autocast(self, enabled: bool = True) -> AbstractContextManager[object]:
        """Return the context in which blocks are run; not enabled, prompts are made in it."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    @torch.no_grad()
    def prefix(self, images: Tensor, block: int = 0, project: bool = True) -> Prefix:
        """Compute from ``uint8`` images what comes before any prompt at ``block``."""
        with self.autocast():
            embedded = self.backbone.embed(self.backbone.normalise(images.to(self.device)))
        start = Prefix(0, embedded)
        if block == self.depth:
            return Prefix(block, self.features(start, no_prompts))
        tokens = self._run(start, no_prompts, stop=block)
        with self.autocast():
            return Prefix(block, tokens, self.backbone.blocks[block].project(tokens) if project else None)  # type: ignore[operator]

    def features(self, prefix: Prefix, prompts: Prompter, read: int = 1) -> Tensor:
        """Return the first ``read`` final tokens, normalised: ``[B, read, d]``."""
        if prefix.block == self.depth:
            return prefix.tokens
        tokens: Tensor = self.backbone.norm(self._run(prefix, prompts, self.depth, read))
        return tokens if self.feature_scale == 1.0 else tokens * self.feature_scale

    def cls_tokens(self, prefix: Prefix, prompts: Prompter, blocks: tuple[int, ...]) -> Tensor:
        """Return cls at the input of each of ``blocks`` (``depth``: the output): ``[B, len, d]``.

        The pass stops at the last block asked for.
        """
        seen: dict[int, Tensor] = {}

        def watch(block: int, tokens: Tensor) -> Insertion | LowRank | None:
            seen[block] = tokens[:, 0]
            return prompts(block, tokens)

        stop = max(blocks)
        seen[stop] = self._run(prefix, watch, stop, read=1)[:, 0]
        return torch.stack([seen[block] for block in blocks], 1)

    def _run(self, prefix: Prefix, prompts: Prompter, stop: int, read: int | None = None) -> Tensor:
        """Run blocks ``prefix.block`` to ``stop - 1``; the last block of all only for ``read`` tokens."""
        x, qkv = prefix.tokens, prefix.qkv
        with self.autocast():
            for index in range(prefix.block, stop):
                block = self.backbone.blocks[index]
                with self.autocast(enabled=False):
                    change = prompts(index, x)
                if isinstance(change, LowRank):
                    qkv = block.project(x, qkv, change)  # type: ignore[operator]
                elif change is not None:
                    if qkv is not None:
                        qkv = _place(qkv, block.project(change.tokens), change.overwrite)  # type: ignore[operator]
                    x = _place(x, change.tokens, change.overwrite)
                x = block(x, qkv, read if index == stop - 1 else None)
                qkv = None
        return x


def _usual_length(backbone: VisionTransformer) -> float:
    """Return about how long final features are, without any data: as the final LayerNorm's weight is."""
    return float(torch.linalg.vector_norm(backbone.norm.weight))


def _with_products_in(dtype: torch.dtype, backbone: VisionTransformer) -> VisionTransformer:
    """Return a copy whose blocks' matrices are of a type: autocast need not turn them at every step."""
    copied = deepcopy(backbone)
    for module in copied.blocks.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(dtype)
    return copied


def _place(x: Tensor, tokens: Tensor, overwrite: bool) -> Tensor:
    tokens = tokens.expand(x.shape[0], -1, -1)
    rest = x[:, 1 + tokens.shape[1] :] if overwrite else x[:, 1:]
    return torch.cat([x[:, :1], tokens, rest], 1)


def inserted(prompts: Mapping[int, Tensor]) -> Prompter:
    """Insert ``[n, d]`` or ``[B, n, d]`` behind cls at some blocks; they accumulate and flow on."""

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        return Insertion(prompts[block]) if block in prompts else None

    return insert


def shallow(prompts: Tensor) -> Prompter:
    """Insert prompts ``[n, d]`` behind cls at block 0; they flow to the end (VPT-shallow)."""
    return inserted({0: prompts})


def deep(prompts: Tensor) -> Prompter:
    """Give each of the first blocks its own prompts ``[blocks, n, d]``, overwriting (VPT-deep)."""

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        return Insertion(prompts[block], overwrite=block > 0) if block < len(prompts) else None

    return insert


def mixed(
    shared: Tensor, blocks: Sequence[int], mix: Callable[[int, Tensor], Tensor], accumulate: bool = False
) -> Prompter:
    """Insert shared prompts at block 0 and, at each of ``blocks``, one prompt per image; all in one slot.

    ``mix`` makes it ``[B, d]`` from the position in ``blocks`` and the images' cls ``[B, d]``. With
    ``accumulate`` each block adds a slot of its own.
    """

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        if block not in blocks:
            return Insertion(shared) if block == 0 else None
        position = blocks.index(block)
        slot = mix(position, tokens[:, 0])[:, None]  # [B, 1, d]
        if block == 0:
            slot = torch.cat([slot, shared.expand(slot.shape[0], -1, -1)], 1)
        return Insertion(slot, overwrite=position > 0 and not accumulate)

    return insert


def query_and_value(down: Tensor, up: Tensor) -> LowRank:
    """Change a block's query by ``up[0] @ down[0]`` and its value by ``up[1] @ down[1]``, not its key.

    ``down [2, r, d], up [2, d, r]``.
    """
    nothing = torch.zeros_like(up[0])
    query, key, value = ((up[0], nothing), (nothing, nothing), (nothing, up[1]))
    return LowRank(down.flatten(0, 1), torch.cat([torch.cat(rows, 1) for rows in (query, key, value)]))

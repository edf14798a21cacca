"""A compact Vision Transformer with timm's parameter names: plain ViT, AugReg, DeiT and DINOv2.

Only what prompt tuning needs: the blocks can be run one by one, the first one from a cached
query/key/value projection, the last one only for the tokens that the head reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Architecture:
    """The shape of a ViT and the normalisation of its input."""

    width: int
    depth: int
    heads: int
    patch: int
    image_size: int
    hidden: int
    registers: int = 0
    layer_scale: bool = False
    position_on_prefix: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    @property
    def patches(self) -> int:
        """Number of patch tokens of one image."""
        return (self.image_size // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """Number of tokens of one image without prompts: cls, registers and patches."""
        return 1 + self.registers + self.patches


class LayerScale(nn.Module):
    """Per-channel scale of a residual branch (DINOv2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels of ``x``."""
        return x * self.gamma


class Attention(nn.Module):
    """Multi-head self-attention over an already projected query/key/value tensor."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, qkv: Tensor, read: int | None = None) -> Tensor:
        """Attend: ``[B, T, 3d] -> [B, read or T, d]``, queries of the first ``read`` tokens only."""
        batch, tokens, _ = qkv.shape
        q, k, v = qkv.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = attend(q[:, :, :read], k, v)
        return self.proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return ``softmax(q k^T / sqrt(d)) v``, by whichever way is fastest.

    On a CPU torch's fused kernel takes four times as long backward in bfloat16 as plain products do.
    """
    if q.dtype is torch.bfloat16 and q.device.type == "cpu":
        scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        return scores.float().softmax(-1).to(q.dtype) @ v
    return F.scaled_dot_product_attention(q, k, v)


class Mlp(nn.Module):
    """The two-layer perceptron of a block."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the perceptron to every token."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class LowRank:
    """A change of a block's query/key/value weight by ``up @ down``, without touching the weight."""

    down: Tensor
    """From tokens to a few numbers: ``[k, d]``."""
    up: Tensor
    """From these to the projection: ``[3d, k]``."""

    def __call__(self, normed: Tensor) -> Tensor:
        """Return what the change adds to the projection of normalised tokens: ``[B, T, d] -> [B, T, 3d]``."""
        return F.linear(F.linear(normed, self.down), self.up)


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.width
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, architecture.heads)
        self.ls1 = LayerScale(width) if architecture.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, architecture.hidden)
        self.ls2 = LayerScale(width) if architecture.layer_scale else nn.Identity()

    def project(self, x: Tensor, qkv: Tensor | None = None, change: LowRank | None = None) -> Tensor:
        """Return the query/key/value projection ``[B, T, 3d]`` of tokens ``[B, T, d]``, changed or not.

        ``qkv`` is the projection by the frozen weights, if it is already known.
        """
        normed = self.norm1(x)
        qkv = self.attn.qkv(normed) if qkv is None else qkv
        return qkv if change is None else qkv + change(normed)

    def forward(self, x: Tensor, qkv: Tensor | None = None, read: int | None = None) -> Tensor:
        """Run the block; ``qkv`` if already known; with ``read``, only the first tokens come out."""
        qkv = self.project(x) if qkv is None else qkv
        x = x[:, :read] + self.ls1(self.attn(qkv, read))
        return x + self.ls2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class PatchEmbed(nn.Module):
    """Linear embedding of non-overlapping patches."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed ``[B, 3, H, W] -> [B, N, d]``."""
        return self.proj(pixels).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """The backbone: patch embedding, blocks, final norm; no head."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        width = architecture.width
        prefix = 1 + architecture.registers if architecture.position_on_prefix else 0
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        if architecture.registers:
            self.reg_token = nn.Parameter(torch.zeros(1, architecture.registers, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, prefix + architecture.patches, width))
        self.patch_embed = PatchEmbed(width, architecture.patch)
        self.blocks = nn.ModuleList(Block(architecture) for _ in range(architecture.depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def embed(self, pixels: Tensor) -> Tensor:
        """Turn normalised pixels ``[B, 3, H, W]`` into the tokens at the input of block 0."""
        patches = self.patch_embed(pixels)
        prefix = [self.cls_token.expand(patches.shape[0], -1, -1)]
        if self.architecture.registers:
            prefix.append(self.reg_token.expand(patches.shape[0], -1, -1))
        if self.architecture.position_on_prefix:
            return torch.cat([*prefix, patches], 1) + self.pos_embed
        return torch.cat([*prefix, patches + self.pos_embed], 1)

    def normalise(self, images: Tensor) -> Tensor:
        """Map ``uint8`` images to the range the backbone was trained on."""
        mean = torch.tensor(self.architecture.mean, device=images.device).view(3, 1, 1)
        std = torch.tensor(self.architecture.std, device=images.device).view(3, 1, 1)
        return (images.float() / 255 - mean) / std

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the final normalised tokens ``[B, T, d]`` of normalised pixels, without prompts."""
        x = self.embed(pixels)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]


def interpolate_positions(positions: Tensor, patches: int, prefix: int) -> Tensor:
    """Resample a square grid of position embeddings to ``patches`` patches, as timm does.

    A grid that is not square comes back as it is, and does not fit the model.
    """
    there = positions.shape[1] - prefix
    old, new = math.isqrt(max(there, 0)), math.isqrt(patches)
    if there in (0, patches) or old**2 != there:
        return positions
    grid = positions[:, prefix:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", antialias=True)
    return torch.cat([positions[:, :prefix], grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)

"""The shapes of the usual ViTs by name, to plan a run with one that is not on this machine."""

from __future__ import annotations

import re

from fedcue.foreign import expanded
from fedcue.model.backbone import EMBEDDED, load_backbone
from fedcue.model.vit import Architecture

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, depth and heads."""


def shape_of(name: str, image_size: int | None = None) -> Architecture:
    """Return the shape of the backbone ``name``: of its files if they are here, else by its name."""
    found = re.fullmatch(rf"timm/\w+_({'|'.join(SIZES)})_patch(\d+)(?:_(\d+))?(?:\.\w+)?", name)
    if found is None or name == EMBEDDED or expanded(name).is_dir():
        return load_backbone(name, image_size).architecture
    width, depth, heads = SIZES[found[1]]
    size = image_size or int(found[3] or 224)
    return Architecture(width, depth, heads, int(found[2]), size, 4 * width)

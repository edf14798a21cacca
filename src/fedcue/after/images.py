"""Users' images, turned into a model's input, and their single pass through the backbone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedcue.data.image_sources import FileImages, UnreadableError, decode
from fedcue.errors import DataError
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.train.batches import Batch

Picture = Image.Image | str | Path | NDArray[np.uint8] | Tensor
"""One image, or several in one array: whatever ``read_images`` takes."""

_ALLOWED = (
    "Give PIL images, paths, or uint8 arrays or tensors from 0 to 255 of shape [height, width, 3], "
    "[3, height, width] or [height, width], or several of one of these."
)


@dataclass(frozen=True)
class _GivenImages:
    """Images that are there already, and files."""

    images: Sequence[Image.Image | Path]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def open(self, index: int) -> Image.Image:
        """Open a file, or copy an image: whoever opens one may close it."""
        image = self.images[index]
        return image.copy() if isinstance(image, Image.Image) else FileImages([image]).open(0)

    def content(self, index: int) -> bytes:
        """Return the bytes of the file or of the pixels."""
        image = self.images[index]
        return image.tobytes() if isinstance(image, Image.Image) else image.read_bytes()

    def describe(self, index: int) -> str:
        """Return the path, or the number of the image."""
        image = self.images[index]
        return f"image {index}" if isinstance(image, Image.Image) else str(image)


def read_images(given: Picture | Sequence[Picture], size: int) -> Tensor:
    """Return images as training saw them: upright, RGB, resized, uint8 ``[n, 3, size, size]``."""
    images = list(_each(given))
    if not images:
        raise DataError(f"No image was given. {_ALLOWED}")
    source = _GivenImages(images)
    try:
        return torch.stack([torch.from_numpy(decode(source, index, size)) for index in range(len(images))])
    except UnreadableError as error:
        raise UnreadableError(error.where, error.reason, "Mend it, or give another image.") from error


def _each(given: Any) -> Iterator[Image.Image | Path]:
    if isinstance(given, Image.Image):
        yield given
    elif isinstance(given, str | Path):
        yield Path(given)
    elif isinstance(given, Tensor):
        yield from _pictures(given.detach().cpu(), str(given.dtype).removeprefix("torch."))
    elif isinstance(given, np.ndarray):
        yield from _pictures(given, str(given.dtype))
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _each(one)
    else:
        raise DataError(f"{type(given).__name__} is no image. {_ALLOWED}")


def _pictures(given: Any, kind: str) -> Iterator[Image.Image]:
    """Yield the images of an array or tensor, the axis of three colours put last."""
    if kind != "uint8":
        raise DataError(
            f"The images are of type {kind}; the model takes uint8 from 0 to 255 and scales them itself. "
            f"Undo your own scaling first. {_ALLOWED}"
        )
    pixels = np.asarray(given)
    if pixels.ndim == 2:  # grey, as datasets of digits have them
        pixels = np.stack([pixels] * 3, axis=2)
    if pixels.ndim == 3:
        pixels = pixels[None]
    first, last = pixels.ndim == 4 and pixels.shape[1] == 3, pixels.ndim == 4 and pixels.shape[3] == 3
    if first == last or 0 in pixels.shape[1:]:
        which = "could have its colours first or last" if first else "has no axis of three colours"
        raise DataError(f"An array of shape {list(given.shape)} {which}. {_ALLOWED}")
    for one in pixels.transpose(0, 2, 3, 1) if first else pixels:
        yield Image.fromarray(np.ascontiguousarray(one))


@dataclass(frozen=True)
class OnePass:
    """The frozen values of ``uint8`` images ``[n, 3, S, S]``, computed whenever they are asked for."""

    model: PromptedViT
    pixels: Tensor
    block: int
    bare_blocks: tuple[int, ...]

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        """Return the prefix of the images at ``rows``."""
        return self.model.prefix(self.pixels[rows], self.block)

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        """Return cls of the bare backbone at the blocks the method asked for: ``[B, L, d]``."""
        return self.model.cls_tokens(inputs, no_prompts, self.bare_blocks)

    def whole(self, log_priors: Tensor) -> Batch:
        """Return all images as one batch, in a way that can be traced with any number of them."""
        rows = torch.arange(self.pixels.shape[0])
        inputs = self.model.prefix(self.pixels, self.block)
        return Batch(rows, inputs, torch.zeros_like(rows), log_priors, self)

"""Every image a run uses, decoded and resized once, and varied a little if training asks for it.

Processes forked afterwards share the pixels. Ordinary memory is enough for that, and unlike ``/dev/shm`` it
is not limited to 64 MB in a container.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedcue.data.dataset import Dataset, Indices
from fedcue.data.image_sources import UnreadableError, decode
from fedcue.data.options import DataOptions
from fedcue.errors import DataError, printable
from fedcue.foreign import expanded

log = logging.getLogger(__name__)

NAMED = 10
"""Skipped images that are called by name."""


@dataclass(frozen=True, eq=False)
class PixelStore:
    """Decoded images by their index in the dataset, in memory or in a mapped file.

    ``bad`` lists the indices that could not be read and are not in the store.
    """

    images: Tensor  # uint8 [n, 3, size, size]
    rows: Tensor  # int64 [N]: the row of each dataset index, -1 if it is not stored
    bad: Indices

    def __getitem__(self, indices: Indices | Tensor) -> Tensor:
        """Return the images with these dataset indices, uint8 ``[n, 3, size, size]``."""
        rows = self.rows[torch.as_tensor(indices)]
        if (rows < 0).any():
            raise DataError("Images were asked for that were not decoded: decode the union of all clients.")
        return self.images[rows]


def decode_images(
    dataset: Dataset,
    indices: Indices,
    size: int,
    options: DataOptions,
    progress: Callable[[int, int], None] | None = None,
) -> PixelStore:
    """Decode these images, each once and in the order of their files, to ``size`` x ``size`` pixels.

    Over ``data.cache_bytes`` the pixels lie in a temporary file that vanishes with the process. ``progress``
    is called with the numbers of images done and wanted.
    """
    wanted = np.unique(indices)
    images = _allocate((len(wanted), 3, size, size), options.cache_bytes, options.cache_folder)
    rows = torch.full((len(dataset),), -1, dtype=torch.int64)
    bad: list[int] = []
    for row, index in enumerate(wanted.tolist()):
        try:
            images[row] = torch.from_numpy(decode(dataset.images, index, size, options.max_pixels))
            rows[index] = row
        except UnreadableError as error:
            if options.on_bad_image == "error":
                raise
            bad.append(index)
            if len(bad) <= NAMED:
                log.warning("Skipped %s", printable(f"{error.where}: {error.reason}"))
        if progress is not None:
            progress(row + 1, len(wanted))
    if bad:
        log.warning(
            "%s of %s images could not be read and are left out; fedcue data check lists them all.",
            f"{len(bad):,}",
            f"{len(wanted):,}",
        )
    return PixelStore(images, rows, np.array(bad, dtype=np.int64))


def _allocate(shape: tuple[int, ...], cache_bytes: int, cache_folder: Path | None) -> Tensor:
    needed = int(np.prod(shape))
    if needed <= cache_bytes:
        return torch.empty(shape, dtype=torch.uint8)
    folder = Path(tempfile.gettempdir()) if cache_folder is None else expanded(cache_folder)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"The decoded images need {needed / 2**30:.1f} GiB, {folder} has {free / 2**30:.1f} GiB left. "
            "Choose another disk with data.cache_folder, smaller images, or fewer with data.train_per_class."
        )
    with tempfile.NamedTemporaryFile(prefix="fedcue-", suffix=".pixels", dir=folder) as file:
        # the mapping outlives the name, so nothing is left behind
        return torch.from_file(file.name, shared=True, size=needed, dtype=torch.uint8).reshape(shape)


def flip_and_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its size (mirrored at the edge) and flip half of them.

    Works on uint8 ``[B, 3, S, S]``; every image has its own shift and flip.
    """
    batch, channels, height, width = images.shape
    rows = _shifted(batch, height, generator)
    columns = _shifted(batch, width, generator)
    flip = torch.rand((batch, 1), generator=generator) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    number = torch.arange(batch)[:, None, None, None]
    channel = torch.arange(channels)[None, :, None, None]
    return images[number, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(batch: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``[B, size]`` source positions: a window of a line that is reflected at both ends."""
    margin = size // 8
    shift = torch.randint(-margin, margin + 1, (batch, 1), generator=generator)
    position = (torch.arange(size) + shift).abs()
    return torch.where(position < size, position, 2 * (size - 1) - position)

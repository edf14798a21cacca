"""Varied training images: shifted, flipped, repeatable."""

from __future__ import annotations

import torch

from fedcue.data.pixels import flip_and_crop
from fedcue.rng import torch_rng


def test_augmentation_shifts_and_flips_within_an_eighth() -> None:
    images = torch.arange(64, dtype=torch.uint8).expand(200, 3, 64, 64).contiguous()  # each column its number
    varied = flip_and_crop(images, torch_rng(0, "augment"))
    assert varied.shape == images.shape
    assert varied.dtype == torch.uint8
    middle = varied[:, 0, 32, 28:36].int()
    step = middle[:, 1] - middle[:, 0]
    assert set(step.tolist()) == {-1, 1}
    assert 60 < int((step == -1).sum()) < 140
    upright = varied[step == 1][:, 0, 0, 32].int() - 32
    assert int(upright.min()) >= -8
    assert int(upright.max()) <= 8
    assert len(upright.unique()) > 10


def test_augmentation_mirrors_at_the_edge_and_repeats_with_its_seed() -> None:
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=torch_rng(0, "images"))
    first = flip_and_crop(images, torch_rng(1, "augment"))
    assert torch.equal(first, flip_and_crop(images, torch_rng(1, "augment")))
    assert not torch.equal(first, flip_and_crop(images, torch_rng(2, "augment")))
    assert all(
        set(out.flatten().tolist()) <= set(image.flatten().tolist())
        for out, image in zip(first, images, strict=True)
    )

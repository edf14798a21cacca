"""Decoded images: each once, in memory or in a file, unreadable ones named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.data_files import save_picture

from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import FileImages, decode
from fedcue.data.pixels import PixelStore, decode_images
from fedcue.data.readers.digits import Digits
from fedcue.errors import DataError


def decoded(dataset: Dataset, *indices: int) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(dataset.images, index, 6) for index in indices]))


def files(paths: list[Path]) -> Dataset:
    number = len(paths)
    return Dataset(
        "made",
        ("a",),
        np.zeros(number, dtype=np.int64),
        np.zeros(number, dtype=np.bool_),
        FileImages(paths),
    )


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_the_store_holds_each_image_once(tmp_path: Path, cache_bytes: int) -> None:
    dataset = files([save_picture(tmp_path / f"{number}.png", number) for number in range(5)])
    seen: list[tuple[int, int]] = []
    store = decode_images(
        dataset,
        np.array([4, 1, 3, 1]),
        6,
        Digits(cache_bytes=cache_bytes, cache_folder=tmp_path / "cache"),
        progress=lambda done, wanted: seen.append((done, wanted)),
    )
    assert store.images.shape == (3, 3, 6, 6)
    assert torch.equal(store[np.array([3, 4])], decoded(dataset, 3, 4))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert not list(tmp_path.glob("cache/*"))
    with pytest.raises(DataError, match="not decoded"):
        store[np.array([0])]


def test_a_full_disk_is_noticed_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    dataset = files([save_picture(tmp_path / "x.png", 1)])
    with pytest.raises(DataError, match=r"need 0\.0 GiB.*data\.cache_folder"):
        decode_images(dataset, np.array([0]), 6, Digits(cache_bytes=0))


def test_the_store_skips_and_names_or_refuses_bad_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [save_picture(tmp_path / f"{number}.png", number) for number in range(3)]
    paths[1].write_bytes(b"broken")
    dataset = files(paths)
    with pytest.raises(DataError, match=r"1\.png"):
        decode_images(dataset, np.arange(3), 6, Digits())
    store: PixelStore = decode_images(dataset, np.arange(3), 6, Digits(on_bad_image="skip"))
    assert f"Skipped {paths[1]}: it is no BMP, GIF, JPEG" in caplog.text
    assert "1 of 3 images could not be read and are left out" in caplog.text
    assert store.bad.tolist() == [1]
    assert torch.equal(store[np.array([2])], decoded(dataset, 2))

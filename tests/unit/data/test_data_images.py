from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_files import picture, save_picture
from PIL import Image

from fedcue.data.dataset import Dataset
from fedcue.data.images import decode, flip_and_crop, pixels, upright_rgb
from fedcue.data.sources import FileImages
from fedcue.data.store import PixelStore, decode_images
from fedcue.errors import DataError
from fedcue.rng import torch_rng


def files(paths: list[Path]) -> Dataset:
    number = len(paths)
    return Dataset(
        "made",
        ("a",),
        np.zeros(number, dtype=np.int64),
        np.zeros(number, dtype=np.bool_),
        FileImages(paths),
    )


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"]
)
def test_every_mode_becomes_rgb(mode: str) -> None:
    if mode in ("I", "I;16"):
        image = Image.fromarray(np.full((4, 4), 257 * 128, dtype=np.uint16 if mode == "I;16" else np.int32))
    elif mode == "P":
        image = Image.new("RGB", (4, 4), (128, 128, 128)).quantize()
    else:
        image = Image.new("RGB", (4, 4), (128, 128, 128)).convert(mode)
    assert image.mode == mode
    grey = np.asarray(upright_rgb(image)).astype(int)
    assert grey.shape == (4, 4, 3)
    assert mode == "1" or np.abs(grey - 128).max() <= 2


def test_transparent_pixels_are_white() -> None:
    assert np.asarray(upright_rgb(Image.new("RGBA", (2, 2), (10, 20, 30, 0)))).min() == 255
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([10, 20, 30])
    buffer = BytesIO()
    palette.save(buffer, "PNG", transparency=0)
    assert np.asarray(upright_rgb(Image.open(buffer))).min() == 255


def test_exif_orientation_turns_the_picture(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 4), "black")
    image.paste("white", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter clockwise when shown: the left half is now at the top
    image.save(tmp_path / "x.png", exif=exif)
    turned = decode(FileImages([tmp_path / "x.png"]), 0, 8)
    assert turned[:, 0].mean() > 250
    assert turned[:, -1].mean() < 5


def test_a_damaged_orientation_does_not_lose_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(image: Image.Image) -> Image.Image:
        raise SyntaxError("not a TIFF header")

    monkeypatch.setattr("PIL.ImageOps.exif_transpose", fail)
    path = save_picture(tmp_path / "x.png", 1)
    assert np.array_equal(decode(FileImages([path]), 0, 6).transpose(1, 2, 0), np.asarray(picture(1)))


def test_resizing_is_bicubic_and_goes_straight_to_the_square(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    image = picture(1, 32).crop((0, 0, 32, 20))
    image.save(path)
    expected = np.asarray(image.resize((9, 9), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.array_equal(decode(FileImages([path]), 0, 9), expected)


def test_shrinking_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / "x.png")
    small = decode(FileImages([tmp_path / "x.png"]), 0, 8)
    assert np.abs(small.astype(int) - 127).max() < 20


def test_pixels_are_a_batch(tmp_path: Path) -> None:
    dataset = files([save_picture(tmp_path / f"{number}.png", number) for number in range(3)])
    batch = pixels(dataset, np.array([2, 0]), 6)
    assert batch.dtype == torch.uint8
    assert batch.shape == (2, 3, 6, 6)
    assert np.array_equal(batch[0].permute(1, 2, 0).numpy(), np.asarray(picture(2)))


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n broken"])
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken\.png.*data\.on_bad_image=skip"):
        decode(FileImages([path]), 0, 4)


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short.png"
    path.write_bytes(save_picture(tmp_path / "x.png", 1).read_bytes()[:-40])
    with pytest.raises(DataError, match="short"):
        decode(FileImages([path]), 0, 4)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = save_picture(tmp_path / "x.png", 1)
    with pytest.raises(DataError, match=r"6 x 6 pixels are more than data.max_pixels=35"):
        decode(FileImages([path]), 0, 4, max_pixels=35)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_the_store_holds_each_image_once(tmp_path: Path, cache_bytes: int) -> None:
    dataset = files([save_picture(tmp_path / f"{number}.png", number) for number in range(5)])
    seen: list[tuple[int, int]] = []
    store = decode_images(
        dataset,
        np.array([4, 1, 3, 1]),
        6,
        cache_bytes=cache_bytes,
        cache_folder=tmp_path / "cache",
        progress=lambda done, wanted: seen.append((done, wanted)),
    )
    assert store.images.shape == (3, 3, 6, 6)
    assert torch.equal(store[np.array([3, 4])], pixels(dataset, np.array([3, 4]), 6))
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
        decode_images(dataset, np.array([0]), 6, cache_bytes=0)


def test_the_store_skips_or_refuses_bad_images(tmp_path: Path) -> None:
    paths = [save_picture(tmp_path / f"{number}.png", number) for number in range(3)]
    paths[1].write_bytes(b"broken")
    dataset = files(paths)
    with pytest.raises(DataError, match=r"1\.png"):
        decode_images(dataset, np.arange(3), 6)
    store: PixelStore = decode_images(dataset, np.arange(3), 6, on_bad="skip")
    assert store.bad.tolist() == [1]
    assert torch.equal(store[np.array([2])], pixels(dataset, np.array([2]), 6))


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


def test_files_travel_to_another_process(tmp_path: Path) -> None:
    source = FileImages([save_picture(tmp_path / "x.png", 1)])
    assert pickle.loads(pickle.dumps(source)).content(0) == source.content(0)

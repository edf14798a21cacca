"""Load a frozen backbone: the embedded one, a folder as on the hub, a file of weights, or a hub id."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedcue.errors import BackboneError, shown
from fedcue.foreign import expanded, text_of
from fedcue.machine import hub_failures, network_allowed, one_thread
from fedcue.model.vit import Architecture, VisionTransformer, interpolate_positions

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
FILES = ("config.json", WEIGHTS)
EMBEDDED = "embedded"
_MAX_IMAGE_SIZE = 4096
_MAX_SIDE = 90
"""Patches along a side at most: the time of a pass grows with the fourth power of it."""

Shape = tuple[int, ...]
_IGNORED = ("head.", "head_dist.", "mask_token")
_HEADS = {
    ("test_vit", 64): 2,
    ("so400m", 1152): 16,
    ("huge", 1280): 16,
    ("giant", 1408): 16,
    ("gigantic", 1664): 16,
}
"""By a part of its name and its width: the heads of timm's architectures whose heads are not 64 wide."""


@one_thread()
def load_backbone(name: str = EMBEDDED, image_size: int | None = None) -> VisionTransformer:
    """Load the backbone ``name`` for square images of ``image_size`` pixels, frozen, in eval mode.

    With one thread: in a process forked from one that used them, torch's other threads do not answer.
    """
    weights = locate(name)
    config = _read_config(weights)
    with _opened(weights) as file:  # shapes first: nothing is made room for before all is known to fit
        names = [name for name in file.keys() if not name.startswith(_IGNORED)]  # noqa: SIM118
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        architecture = _architecture(weights, config, shapes, image_size)
        with torch.device("meta"):
            model = VisionTransformer(architecture)
        wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        prefix = 1 + architecture.registers if architecture.position_on_prefix else 0
        _check_shapes(
            weights, {**shapes, "pos_embed": _resampled(shapes["pos_embed"], wanted, prefix)}, wanted
        )
        tensors = {name: file.get_tensor(name).to(torch.float32, copy=True) for name in names}
    tensors["pos_embed"] = interpolate_positions(tensors["pos_embed"], architecture.patches, prefix)
    strange = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    _refuse(weights, [f"{name} holds values that are not finite" for name in strange])
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


def locate(name: str) -> Path:
    """Return the weights of the backbone ``name``, downloading a hub id if need be and allowed.

    Its ``config.json`` lies beside them.
    """
    if name == EMBEDDED:
        return Path(str(resources.files("fedcue"))) / "assets" / "backbone" / WEIGHTS
    path = expanded(name)
    if path.is_dir():
        _require_files(path)
        return path / WEIGHTS
    if path.suffix == ".safetensors" and path.is_file():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise BackboneError(
            f"Backbone {name!r} is neither a folder nor a hub id nor a .safetensors file. Give {EMBEDDED!r}, "
            f"a folder with {' and '.join(FILES)}, or an id such as timm/vit_base_patch16_224.orig_in21k."
        )
    return _download(name)


def _download(repository: str) -> Path:
    from huggingface_hub import hf_hub_download

    fetch = network_allowed()
    try:
        paths = [Path(hf_hub_download(repository, file, local_files_only=not fetch)) for file in FILES]
    except hub_failures() as error:
        failed = f"could not be downloaded ({type(error).__name__})"
        why = failed if fetch else "is not fetched because a folder names it (--fetch allows that)"
        raise BackboneError(
            f"Backbone {repository!r} is not in the local cache and {why}. Without network, copy the "
            f"repository's {' and '.join(FILES)} into a folder and give backbone=FOLDER; the "
            "embedded backbone needs no network and knows little: backbone=embedded."
        ) from error
    return paths[1]


def _require_files(folder: Path) -> None:
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise BackboneError(
            f"Backbone folder {folder} has no {' and no '.join(missing)}. Give a folder with "
            f"{' and '.join(FILES)}, as in a timm repository on the hub (pickled weights are not read)."
        )


def _read_config(weights: Path) -> dict[str, Any]:
    path = weights.parent / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError) as error:
        raise BackboneError(f"{path} is not readable JSON: {error}. Fetch the file again.") from error
    if not isinstance(config, dict) or not isinstance(config.get("pretrained_cfg", {}), dict):
        raise BackboneError(f"{path} must be an object with a 'pretrained_cfg' object, as timm writes.")
    return config


@contextmanager
def _opened(weights: Path) -> Iterator[Any]:
    try:
        with safe_open(weights, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        reason = str(error)[:300]
        raise BackboneError(
            f"{weights} is not a readable safetensors file: {reason}. Fetch the file again."
        ) from error


def _architecture(
    weights: Path, config: dict[str, Any], shapes: Mapping[str, Shape], image_size: int | None
) -> Architecture:
    pretrained = {**config, **config.get("pretrained_cfg", {})}
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    _refuse(weights, list(_other_passes({**pretrained, **arguments})))
    _say_guesses(weights, pretrained, arguments)
    try:
        width, channels, patch, _ = shapes["patch_embed.proj.weight"]
        hidden = shapes["blocks.0.mlp.fc1.weight"][0]
        positions = shapes["pos_embed"][1]
        registers = shapes.get("reg_token", (1, 0, width))[1]
        grid = math.isqrt(positions - 1 - registers)
        if not width or not hidden:
            raise ValueError("its width is 0")
    except (KeyError, ValueError, IndexError) as error:
        raise BackboneError(
            f"{weights} does not hold a ViT under timm's names "
            f"({error}). Known: plain ViT, AugReg, DeiT (not distilled) and DINOv2."
        ) from error
    depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    on_prefix = grid**2 == positions - 1 - registers
    prefix = 1 + registers if on_prefix else 0
    size = image_size or _input_size(weights, pretrained) or math.isqrt(positions - prefix) * patch
    heads = _heads(config.get("architecture"), arguments, width)
    largest = min(_MAX_IMAGE_SIZE // patch, _MAX_SIDE) * patch if patch else 0
    if channels != 3 or patch < 1 or size < patch or size % patch or size > largest:
        raise BackboneError(
            f"Image size {shown(size)} does not fit backbone {weights}: its patches are {patch} pixels wide "
            f"on {channels} channels. Give a multiple of {patch} up to {largest}."
        )
    if heads < 1 or width % heads:
        raise BackboneError(
            f"{weights}: {shown(heads)} heads do not divide the width {width}. "
            "Mend model_args.num_heads in config.json, or fetch the file again."
        )
    return Architecture(
        width=width,
        depth=depth,
        heads=heads,
        patch=patch,
        image_size=size,
        hidden=hidden,
        registers=registers,
        layer_scale="blocks.0.ls1.gamma" in shapes,
        position_on_prefix=on_prefix,
        mean=_channels(weights, pretrained, "mean"),
        std=_channels(weights, pretrained, "std"),
    )


def _input_size(weights: Path, pretrained: dict[str, Any]) -> int | None:
    size = pretrained.get("input_size")
    if size is None:
        return None
    if isinstance(size, list) and len(size) == 3 and all(type(side) is int for side in size):
        if size[1] != size[2]:
            raise BackboneError(f"{weights} was trained on images that are not square: {shown(size)}.")
        return int(size[-1])
    raise BackboneError(f"{weights.parent / 'config.json'}: input_size must be [3, H, W], got {shown(size)}.")


def _other_passes(said: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a description says of the pass that is not ours and that no tensor's shape shows."""
    if said.get("global_pool") not in (None, "", "token"):
        yield f"it pools its tokens ({shown(said['global_pool'])}), and fedcue reads the class token"
    for name, value in said.items():
        if name.endswith(("_layer", "_fn")) and value not in (None, "gelu"):
            yield f"its {name} is {shown(value)}"


def _say_guesses(weights: Path, pretrained: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Warn of what is taken as usual because no ``config.json`` says it."""
    guessed = []
    if not {"mean", "std"} <= pretrained.keys():
        guessed.append("images are scaled to mean 0.5 and deviation 0.5")
    if "architecture" not in pretrained and "num_heads" not in arguments:
        guessed.append("heads are 64 columns wide")
    if guessed:
        log.warning(
            "No config.json beside %s says otherwise: %s. If the backbone was trained otherwise, put its "
            "config.json there.",
            weights,
            ", ".join(guessed),
        )


def _heads(architecture: object, arguments: Mapping[str, Any], width: int) -> int:
    given = arguments.get("num_heads")
    if type(given) is int:
        return given
    name = architecture if isinstance(architecture, str) else ""
    known = (heads for (part, wide), heads in _HEADS.items() if part in name and wide == width)
    return next(known, max(1, width // 64))


def _channels(weights: Path, pretrained: dict[str, Any], key: str) -> tuple[float, float, float]:
    value = pretrained.get(key, [0.5, 0.5, 0.5])
    try:
        red, green, blue = (float(channel) for channel in value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BackboneError(
            f"{weights.parent / 'config.json'}: {key} must be three numbers, got {shown(value)}."
        ) from error
    if not all(map(math.isfinite, (red, green, blue))) or (key == "std" and min(red, green, blue) <= 0):
        raise BackboneError(
            f"{weights.parent / 'config.json'}: {key} {shown(value)} cannot normalise an image. It must be "
            "three finite numbers, deviations above 0."
        )
    return red, green, blue


def _resampled(positions: Shape, wanted: Mapping[str, Shape], prefix: int) -> Shape:
    """Return the shape of position embeddings once a square grid of another image size is resampled."""
    grid = positions[1] - prefix
    square = grid > 0 and math.isqrt(grid) ** 2 == grid
    fits = len(positions) == 3 and positions[::2] == wanted["pos_embed"][::2]
    return wanted["pos_embed"] if fits and square else positions


def _check_shapes(weights: Path, given: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> None:
    problems = [f"missing {name}" for name in sorted(wanted.keys() - given.keys())]
    problems += [f"unknown {name}" for name in sorted(given.keys() - wanted.keys())]
    problems += [
        f"{name} has shape {given[name]} instead of {wanted[name]}"
        for name in sorted(wanted.keys() & given.keys())
        if given[name] != wanted[name]
    ]
    _refuse(weights, problems)


def _refuse(weights: Path, problems: Sequence[str]) -> None:
    if problems:
        first = [problem[:200] for problem in problems[:5]]
        listed = "; ".join(first) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise BackboneError(
            f"{weights} does not fit a ViT under timm's names: {listed}. "
            "Use the weights of a plain ViT, AugReg, DeiT (not distilled) or DINOv2 as timm saves them."
        )

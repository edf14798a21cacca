"""The backbone is held to timm and transformers, block by block; bad folders are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import REAL_BACKBONE, needs_real_backbone
from support.fake_hub import run_with_hub, serve
from torch import Tensor

from fedcue.errors import BackboneError
from fedcue.model.backbone import load_backbone
from fedcue.model.vit import VisionTransformer


@pytest.fixture(scope="module", autouse=True)
def torchvision_operators() -> Any:
    """Declare the operators that torchvision, which timm and transformers import, has in GPU builds only."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


@pytest.fixture(scope="module")
def timm(torchvision_operators: Any) -> Any:
    return pytest.importorskip("timm")


def write_folder(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def block_inputs(model: VisionTransformer, pixels: Tensor) -> list[Tensor]:
    x, seen = model.embed(pixels), []
    for block in model.blocks:
        seen.append(x)
        x = block(x)
    return [*seen, x, model.norm(x)]


def timm_block_inputs(model: Any, pixels: Tensor) -> list[Tensor]:
    x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(pixels))))
    seen = []
    for block in model.blocks:
        seen.append(x)
        x = block(x)
    return [*seen, x, model.norm(x)]


def assert_all_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


VARIANTS = [
    ("vit_tiny_patch16_224", {"depth": 3}),
    ("deit_tiny_patch16_224", {"depth": 2}),
    ("vit_small_patch14_dinov2", {"depth": 2, "embed_dim": 96, "num_heads": 6}),
    ("vit_small_patch14_reg4_dinov2", {"depth": 2, "embed_dim": 96, "num_heads": 6}),
]


@pytest.mark.parametrize(("name", "arguments"), VARIANTS, ids=[name for name, _ in VARIANTS])
@pytest.mark.parametrize("patches", [2, 5])
@torch.no_grad()
def test_every_block_equals_timm(
    timm: Any, tmp_path: Path, name: str, arguments: dict[str, int], patches: int
) -> None:
    torch.manual_seed(0)
    patch = 14 if "14" in name else 16
    stored = timm.create_model(name, img_size=4 * patch, num_classes=0, **arguments).eval()
    for parameter in stored.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.2)
    config = {
        "architecture": name,
        "model_args": {"num_heads": arguments.get("num_heads", 3)},
        "pretrained_cfg": {},
    }
    folder = write_folder(tmp_path / name, stored.state_dict(), config)
    ours = load_backbone(str(folder), patches * patch)
    resized = timm.create_model(name, img_size=patches * patch, num_classes=0, **arguments).eval()
    filtered = timm.models.vision_transformer.checkpoint_filter_fn(stored.state_dict(), resized)
    resized.load_state_dict(filtered)
    pixels = torch.randn(2, 3, patches * patch, patches * patch)
    assert_all_close(block_inputs(ours, pixels), timm_block_inputs(resized, pixels))


@needs_real_backbone
@pytest.mark.parametrize("size", [224, 128])
@torch.no_grad()
def test_the_real_vit_equals_timm(timm: Any, size: int) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=size).eval()
    tensors = load_file(REAL_BACKBONE / "model.safetensors")
    theirs.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(tensors, theirs))
    pixels = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    ours = block_inputs(load_backbone(str(REAL_BACKBONE), size), pixels)
    assert_all_close(ours, timm_block_inputs(theirs, pixels))


def vit_names(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Rename our tensors as transformers' ViTModel has them."""
    renamed = {
        "embeddings.cls_token": tensors["cls_token"],
        "embeddings.position_embeddings": tensors["pos_embed"],
        "embeddings.patch_embeddings.projection.weight": tensors["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": tensors["patch_embed.proj.bias"],
        "layernorm.weight": tensors["norm.weight"],
        "layernorm.bias": tensors["norm.bias"],
    }
    return renamed | _block_names(tensors, depth)


def _block_names(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    parts = {
        "norm1": ("layernorm_before", "norm1"),
        "norm2": ("layernorm_after", "norm2"),
        "attn.proj": ("attention.output.dense", "attention.o_proj"),
        "mlp.fc1": ("intermediate.dense", "mlp.fc1"),
        "mlp.fc2": ("output.dense", "mlp.fc2"),
    }
    named = {}
    for block in range(depth):
        for kind in ("weight", "bias"):
            for own, others in parts.items():
                for other in others:
                    named[f"{block}.{other}.{kind}"] = tensors[f"blocks.{block}.{own}.{kind}"]
            q, k, v = tensors[f"blocks.{block}.attn.qkv.{kind}"].chunk(3)
            for part, short, tensor in (("query", "q_proj", q), ("key", "k_proj", k), ("value", "v_proj", v)):
                named[f"{block}.attention.attention.{part}.{kind}"] = tensor
                named[f"{block}.attention.{short}.{kind}"] = tensor
        for scale in (1, 2):
            if f"blocks.{block}.ls{scale}.gamma" in tensors:
                named[f"{block}.layer_scale{scale}.lambda1"] = tensors[f"blocks.{block}.ls{scale}.gamma"]
    return named


def load_into(model: torch.nn.Module, top: dict[str, Tensor], blocks: dict[str, Tensor]) -> None:
    """Fill every parameter of a transformers model by the end of its name; fail if one has no match."""
    state = model.state_dict()
    for name in state:
        key = name.split("layer.")[-1].split("layers.")[-1]
        source = top.get(name, blocks.get(key))
        if name.endswith("mask_token"):
            continue
        assert source is not None, f"no tensor of ours for {name}"
        state[name] = source.reshape(state[name].shape)
    model.load_state_dict(state)


@torch.no_grad()
def test_every_block_equals_transformers_vit(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, image_size=32,
        patch_size=8, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = transformers.ViTModel(config, add_pooling_layer=False).eval()
    ours = random_backbone(tmp_path, layer_scale=False)
    tensors = dict(ours.state_dict())
    load_into(theirs, vit_names(tensors, 3), _block_names(tensors, 3))
    pixels = torch.randn(2, 3, 32, 32)
    output = theirs(pixels, output_hidden_states=True)
    assert_all_close(block_inputs(ours, pixels), [*output.hidden_states, output.last_hidden_state])


@torch.no_grad()
def test_every_block_equals_transformers_dinov2(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, mlp_ratio=2, image_size=32, patch_size=8,
    )  # fmt: skip
    theirs = transformers.Dinov2Model(config).eval()
    ours = random_backbone(tmp_path, layer_scale=True, hidden=128)
    tensors = dict(ours.state_dict())
    load_into(theirs, vit_names(tensors, 3), _block_names(tensors, 3))
    pixels = torch.randn(2, 3, 32, 32)
    output = theirs(pixels, output_hidden_states=True)
    assert_all_close(block_inputs(ours, pixels), [*output.hidden_states, output.last_hidden_state])


CONFIG = {
    "architecture": "vit_test",
    "model_args": {"num_heads": 4},
    "pretrained_cfg": {"input_size": [3, 32, 32]},
}


def random_tensors(layer_scale: bool = False, hidden: int = 96) -> dict[str, Tensor]:
    from fedcue.model.vit import Architecture

    shape = Architecture(64, 3, 4, 8, 32, hidden, layer_scale=layer_scale)
    model = VisionTransformer(shape)
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(t.shape, generator=generator) * 0.2 for name, t in model.state_dict().items()}


def random_backbone(folder: Path, layer_scale: bool, hidden: int = 96) -> VisionTransformer:
    return load_backbone(str(write_folder(folder / "random", random_tensors(layer_scale, hidden), CONFIG)))


def test_a_loaded_backbone_is_frozen_and_in_eval_mode(tmp_path: Path) -> None:
    model = random_backbone(tmp_path, layer_scale=False)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_normalisation_comes_from_the_config(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "std": [1, 2, 4]},
    }
    model = load_backbone(str(write_folder(tmp_path / "b", random_tensors(), config)))
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    torch.testing.assert_close(model.normalise(white)[0, :, 0, 0], torch.tensor([0.9, 0.4, 0.175]))


def test_a_head_in_the_file_is_ignored(tmp_path: Path) -> None:
    tensors = random_tensors() | {"head.weight": torch.zeros(10, 64), "head.bias": torch.zeros(10)}
    assert load_backbone(str(write_folder(tmp_path / "b", tensors, CONFIG))).architecture.depth == 3


OTHER_PASSES = {
    "pooled": ({"global_pool": "avg"}, "pools its tokens"),
    "pooled by its arguments": ({"model_args": {"num_heads": 4, "global_pool": "avg"}}, "pools its tokens"),
    "another activation": ({"model_args": {"num_heads": 4, "act_layer": "quick_gelu"}}, "act_layer is"),
    "another norm": ({"model_args": {"num_heads": 4, "norm_layer": "layernorm"}}, "norm_layer is"),
    "not square": ({"pretrained_cfg": {"input_size": [3, 16, 64]}}, "not square"),
}


@pytest.mark.parametrize("case", OTHER_PASSES)
def test_a_pass_that_is_not_ours_is_refused_even_if_every_tensor_fits(tmp_path: Path, case: str) -> None:
    described, message = OTHER_PASSES[case]
    with pytest.raises(BackboneError, match=message):
        load_backbone(str(write_folder(tmp_path / "b", random_tensors(), CONFIG | described)))


def test_a_norm_behind_pooling_is_refused(tmp_path: Path) -> None:
    tensors = random_tensors() | {"fc_norm.weight": torch.ones(64), "fc_norm.bias": torch.zeros(64)}
    with pytest.raises(BackboneError, match="unknown fc_norm"):
        load_backbone(str(write_folder(tmp_path / "b", tensors, CONFIG)))


HEADS = [
    "test_vit",
    "vit_giant_patch14_224",
    "vit_gigantic_patch14_224",
    "vit_huge_patch14_224",
    "vit_so400m_patch14_reg1_tipsv2",
]


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_as_many_as_timm_gives_the_architecture(timm: Any, tmp_path: Path, name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name, depth=1, num_classes=0)
    tensors = {key: torch.zeros(tensor.shape) for key, tensor in theirs.state_dict().items()}
    ours = load_backbone(str(write_folder(tmp_path / "b", tensors, {"architecture": name})))
    assert ours.architecture.heads == theirs.blocks[0].attn.num_heads


def test_a_config_that_says_neither_heads_nor_pixels_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_backbone(str(write_folder(tmp_path / "b", random_tensors(), {"num_attention_heads": 4})))
    assert "mean 0.5 and deviation 0.5, heads are 64 columns wide" in caplog.text


def _without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in random_tensors().items() if key != name}


BAD_TENSORS = {
    "missing": (_without("blocks.1.mlp.fc2.bias"), "missing blocks.1.mlp.fc2.bias"),
    "extra": (random_tensors() | {"blocks.0.extra": torch.zeros(1)}, "unknown blocks.0.extra"),
    "misshapen": (random_tensors() | {"norm.weight": torch.zeros(3)}, "norm.weight has shape"),
    "no positions": (random_tensors() | {"pos_embed": torch.zeros(1, 1, 64)}, "pos_embed has shape"),
    "not a vit": ({"weight": torch.zeros(3)}, "does not hold a ViT"),
    "not finite": (random_tensors() | {"norm.bias": torch.full((64,), torch.nan)}, "not finite"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors_are_explained(tmp_path: Path, case: str) -> None:
    tensors, message = BAD_TENSORS[case]
    with pytest.raises(BackboneError, match=message):
        load_backbone(str(write_folder(tmp_path / "b", tensors, CONFIG)))


def test_a_folder_without_weights_is_explained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BackboneError, match=r"has no model\.safetensors"):
        load_backbone(str(tmp_path))


def test_a_file_that_is_no_safetensors_is_explained(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "b", random_tensors(), CONFIG)
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(BackboneError, match="not a readable safetensors file"):
        load_backbone(str(folder))


def test_an_image_size_the_patch_does_not_divide_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "b", random_tensors(), CONFIG)
    with pytest.raises(BackboneError, match="36 does not fit.*multiple of 8 up to"):
        load_backbone(str(folder), 36)


@pytest.mark.parametrize("size", [728, 4096])
def test_an_image_size_of_so_many_patches_that_a_pass_never_ends_is_refused(
    tmp_path: Path, size: int
) -> None:
    folder = write_folder(tmp_path / "b", random_tensors(), CONFIG)
    with pytest.raises(BackboneError, match=f"{size} does not fit.*multiple of 8 up to 720"):
        load_backbone(str(folder), image_size=size)


def test_a_hub_id_without_network_says_how_to_give_a_folder() -> None:
    with pytest.raises(BackboneError, match="backbone=FOLDER"):
        load_backbone("timm/vit_base_patch16_224.orig_in21k")


HUB_SCRIPT = """
import sys
from fedcue.errors import FedcueError
from fedcue.model.backbone import load_backbone
try:
    print(load_backbone("timm/vit_test").architecture.depth)
except FedcueError as error:
    print("refused:", error)
"""


def test_a_hub_id_is_downloaded_once_and_then_read_from_the_cache(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "b", random_tensors(), CONFIG)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serve({**files, "pytorch_model.bin": b"pickled"}) as address:
        assert run_with_hub(HUB_SCRIPT, address, tmp_path / "home") == "3"
    assert run_with_hub(HUB_SCRIPT, address, tmp_path / "home", offline=True) == "3"
    assert not list((tmp_path / "home").rglob("*.bin"))


def test_a_hub_repository_without_safetensors_is_refused(tmp_path: Path) -> None:
    with serve({"config.json": b"{}", "pytorch_model.bin": b"pickled"}) as address:
        said = run_with_hub(HUB_SCRIPT, address, tmp_path / "home")
    assert said.startswith("refused: Backbone 'timm/vit_test'")
    assert "backbone=FOLDER" in said


def test_a_name_that_is_nothing_is_explained() -> None:
    with pytest.raises(BackboneError, match="neither a folder nor a hub id"):
        load_backbone("./nowhere")


def test_a_file_of_weights_is_read_with_the_config_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = {"input_size": [3, 32, 32], "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    described = {**CONFIG, "pretrained_cfg": pixels}
    folder = write_folder(tmp_path / "b", random_tensors(), described)
    file = (folder / "model.safetensors").rename(folder / "mine.safetensors")
    assert load_backbone(str(file)).architecture.mean == (0.1, 0.2, 0.3)
    assert not caplog.records
    (folder / "config.json").unlink()
    assert load_backbone(str(file)).architecture.mean == (0.5, 0.5, 0.5)
    assert "No config.json beside" in caplog.text

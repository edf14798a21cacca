"""A dry run says what a run would do: the numbers of the paper, and those of a real run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from support import SMALL
from support.tiny_federation import TinyFederation, random_vit
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import fedcue
from fedcue.cli.dry_run import duration
from fedcue.cli.main import app
from fedcue.config.layers import load
from fedcue.errors import BackboneError, ConfigError
from fedcue.model.shapes import shape_of
from fedcue.model.vit import Architecture
from fedcue.plan import dry_run
from fedcue.plan.counting_vit import Meter, counting_vit
from fedcue.plan.dry_run import matmul_gflops, plan
from fedcue.plan.stand_ins import CountedImages, CountedTraining
from fedcue.registry import METHODS
from fedcue.train.settings import Training

SHAPE = Architecture(width=32, depth=8, heads=2, patch=1, image_size=8, hidden=128)
RECIPES = ("cifar100-pathological", "tinyimagenet-pathological", "domainnet", "inaturalist")
FLOATS = {  # of each of these recipes
    "head": (76_800, 153_600, 7_680, 923_904),
    "fedvpt": (77_568, 154_368, 8_448, 924_672),
    "fedvpt_deep": (86_016, 162_816, 16_896, 933_120),
    "fedpr": (84_480, 161_280, 15_360, 931_584),
    "sgpt": (141_312, 218_112, None, 988_416),
    "pfedpg": (7_680, 7_680, 7_680, 7_680),
    "ppt": (76_800, 153_600, 7_680, 923_904),
    "pep": (384_768, 768_768, 39_168, 4_620_288),
    "ncm": (76_900, 153_800, 7_690, 925_107),
    "fed3r": (76_900, 153_800, 7_690, 925_107),
    "fedcof": (76_800, 153_600, 7_680, 923_904),
    "fedrod": (76_800, 153_600, 7_680, 923_904),
    "lora": (224_256, 301_056, 155_136, 1_071_360),
    "local": (0, 0, 0, 0),
    "central": (0, 0, 0, 0),
    "cue": (86_116, 163_016, 16_906, 934_323),
}
GMAC = {  # forward and backward, one image and epoch, of a ViT-B/16
    "fedvpt": (17.66, 18.26),
    "fedvpt_deep": (17.66, 18.26),
    "ppt": (17.66, 18.26),
    "fedpr": (18.49, 19.16),
    "pfedpg": (18.49, 19.16),
    "sgpt": (17.89 + 18.05, 18.51 + 12.55),
    "pep": (17.72, 18.33),
    "local": (17.66, 18.26),
    "central": (17.66, 18.26),
    "cue": (17.66, 18.26),
}


@pytest.mark.parametrize("method", METHODS.names())
def test_floats_down_and_up(method: str) -> None:
    for recipe, floats in zip(RECIPES, FLOATS[method], strict=True):
        if floats is not None:
            travel = plan(load(recipe, [f"method={method}"]), 100).travel
            assert (travel.download_floats, travel.upload_floats) == (floats, floats), recipe


@pytest.mark.parametrize("method", GMAC)
def test_arithmetic_of_one_image(method: str) -> None:
    arithmetic = plan(load("cifar100-pathological", [f"method={method}"]), 100).arithmetic
    forward, backward = GMAC[method]
    assert arithmetic.forward_gmac == pytest.approx(forward, abs=0.011)
    assert arithmetic.backward_gmac == pytest.approx(backward, abs=0.011)


def test_pep_in_its_variants() -> None:
    accumulate = plan(load("cifar100-pathological", ["method.ccmp_mode=accumulate"]), 100).arithmetic
    assert (accumulate.forward_gmac, accumulate.backward_gmac) == pytest.approx((17.82, 18.44), abs=0.006)
    sparse = plan(load("cifar100-pathological", ["transport=sparse"]), 100).travel
    assert sparse.upload_floats == 108_288
    plain = plan(load("cifar100-pathological", ["method=fedvpt"]), 100)
    assert plain.travel.upload_floats == 77_568
    assert plain.travel.warm_up_bytes == 0


def test_a_run_of_the_paper_as_a_whole() -> None:
    planned = plan(load("cifar100-pathological"), 100)
    assert planned.arithmetic.image_steps == pytest.approx(1.25e6, rel=0.01)
    step = planned.arithmetic.forward_gmac + planned.arithmetic.backward_gmac
    assert 2e-6 * step * planned.arithmetic.image_steps == pytest.approx(90, rel=0.01)
    assert planned.memory.weights == pytest.approx(4 * 85.8e6, rel=0.001)
    assert planned.memory.frozen_level == "nothing"
    assert planned.population.images_per_client[1] == 500


def test_the_head_passes_each_image_once() -> None:
    planned = plan(load("cifar100-pathological", ["method=head"]), 100)
    assert planned.arithmetic.pflop["training"] == 0
    assert planned.arithmetic.pflop["once per image"] == pytest.approx(2e-6 * 60_000 * 17.56, rel=0.1)
    assert planned.memory.frozen == 60_000 * 768 * 4


def test_class_means_take_a_pass_over_the_training_images() -> None:
    settings = ["method=cue", "rounds=0"]
    planned = plan(load("cifar100-pathological", settings), 100).arithmetic.pflop
    assert planned["other passes"] == pytest.approx(2e-6 * 50_000 * 17.66, rel=0.1)
    assert plan(load("cifar100-pathological", [*settings, "method.head_init=random"]), 100).arithmetic.pflop[
        "other passes"
    ] == 0  # fmt: skip


def test_class_means_without_training_pass_each_image_once() -> None:
    planned = plan(load("cifar100-pathological", ["method=ncm"]), 100).arithmetic.pflop
    assert planned["once per image"] == pytest.approx(2e-6 * 60_000 * 17.56, rel=0.1)


def test_projections_in_bfloat16_take_half_the_room() -> None:
    frozen = [
        plan(load("cifar100-pathological", ["data.test_per_class=4", "data.train_per_class=10", "partition.clients=20", f"precision={p}"]), 100)
        for p in ("float32", "bfloat16")
    ]  # fmt: skip
    assert [planned.memory.frozen_level for planned in frozen] == ["projected", "projected"]
    images = 1400 * 768 * 4
    assert [planned.memory.frozen - 3 * images for planned in frozen] == [
        4 * 197 * images,
        2.5 * 197 * images,
    ]


@pytest.mark.parametrize("method", ["pep", "pfedpg", "lora", "central"])
def test_a_plan_is_what_a_run_does(method: str, tmp_path) -> None:
    config = load("default", [*SMALL, f"method={method}"])
    planned, summary = plan(config, 100), fedcue.run(config, tmp_path / "run").summary
    assert planned.travel.total_floats == summary["total_upload_floats"] + summary["total_download_floats"]
    travelled = summary["total_upload_bytes"] + summary["total_download_bytes"]
    assert planned.travel.total_bytes == travelled + summary["warm_up_upload_bytes"]
    assert planned.memory.frozen_level == summary["frozen_cache"]


def tiny(method: str) -> TinyFederation:
    """Return a federation of 65 tokens per image, so that blocks outweigh heads and mixing."""
    return TinyFederation(METHODS.get(method)(), random_vit(SHAPE), Training(epochs=1, batch_size=16))


def real_flops(method: str) -> float:
    """Count what torch really does for one visit of a tiny client: 16 images, one epoch."""
    federation = tiny(method)
    client, sent = federation.client(0), federation.sent(federation.start(), 0)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        federation.method.update(client, sent)
    return float(counter.get_total_flops())


def counted_flops(method: str) -> float:
    """Count the same visit on the stand-in."""
    meter, federation = Meter(), tiny(method)
    model, own = counting_vit(SHAPE, meter), federation.method
    blocks = own.first_block(federation.sizes), own.bare_blocks(federation.sizes)
    images = CountedImages(model, meter, *blocks, "projected", 0)
    samples = replace(federation.samples(0), frozen=images)
    client = replace(federation.client(0), samples=samples, train=CountedTraining(meter))
    with meter.reading(1) as tally:
        own.update(client, federation.sent(federation.start(), 0))
    return 2 * (tally.passes.done + 16 * tally.training.done)


@pytest.mark.parametrize("method", ["fedvpt", "fedvpt_deep", "fedpr", "ppt", "sgpt", "pep", "lora"])
def test_the_stand_in_counts_what_torch_does(method: str) -> None:
    assert counted_flops(method) == pytest.approx(real_flops(method), rel=0.02)


def test_backbones_are_known_by_name_or_by_their_files() -> None:
    large = shape_of("timm/vit_large_patch16_384.augreg_in21k_ft_in1k")
    assert (large.width, large.depth, large.heads, large.image_size) == (1024, 24, 16, 384)
    assert shape_of("timm/vit_small_patch16_224.augreg_in21k", 128).tokens == 65
    assert shape_of("embedded").patch > 0
    with pytest.raises(BackboneError, match="neither a folder nor a hub id"):
        shape_of("/no/such/vit_base_patch16_224")


def test_an_impossible_run_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match="only 100 of 100 clients train"):
        plan(load("cifar100-pathological", ["clients_per_round=101"]), 100)
    with pytest.raises(ConfigError, match="reach beyond the backbone"):
        plan(load("cifar100-pathological", ["method.layers=[12]"]), 100)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_machine_is_measured_at_the_precision_of_the_run(precision, monkeypatch) -> None:
    measured = []
    ones = torch.ones
    monkeypatch.setattr(
        torch, "ones", lambda *size, dtype: measured.append(dtype) or ones(*size, dtype=dtype)
    )
    assert matmul_gflops(precision, 0.05) > 0.1
    assert set(measured) == {getattr(torch, precision)}


def test_a_plan_says_at_which_precision_it_reckons(monkeypatch) -> None:
    monkeypatch.setattr(dry_run, "matmul_gflops", {"float32": 50.0, "bfloat16": 200.0}.__getitem__)
    slow, quick = (plan(load("default", [f"precision={name}"])) for name in ("float32", "bfloat16"))
    assert (slow.precision, slow.gflops, quick.precision, quick.gflops) == ("float32", 50, "bfloat16", 200)
    assert slow.seconds == pytest.approx(4 * quick.seconds)


def test_the_command_line_prints_a_plan_and_runs_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["run", "cifar100-pathological", "--dry-run"])
    assert shown.exit_code == 0
    for text in ("384,768 floats", "17.72 GMAC forward", "100, of which 0 never train", "about"):
        assert text in shown.output
    plain = CliRunner().invoke(app, ["run", "cifar100-pathological", "method=fedvpt", "--dry-run", "--json"])
    assert json.loads(plain.output)["travel"]["download_floats"] == 77_568
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.6, "1 second"), (2.0, "2 seconds"), (130, "2 minutes"), (7_300, "2 hours")]
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said

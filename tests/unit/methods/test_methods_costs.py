"""What travels for CIFAR-100 and ViT-B/16, counted from what the methods really send."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from fedcue.methods.base import Visit
from fedcue.model.prompted import Prefix, PromptedViT, no_prompts
from fedcue.model.vit import Architecture, VisionTransformer
from fedcue.registry import METHODS
from fedcue.train.settings import Training
from fedcue.train.batches import Samples
from fedcue.types import ClientMemory, Sizes, count_floats

BASE = Architecture(width=768, depth=12, heads=12, patch=16, image_size=224, hidden=3072)
CIFAR100 = Setting(classes=100, width=768, depth=12, patch=16, clients=100)


class Weightless(PromptedViT):
    """ViT-B/16 without weights: every cls token is zero."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.architecture, self.depth = BASE, BASE.depth
        self.backbone = VisionTransformer(replace(BASE, depth=0))

    def features(self, prefix, prompts, read=1):
        return torch.zeros(len(prefix.tokens), read, BASE.width)

    def cls_tokens(self, prefix, prompts, blocks):
        return torch.zeros(len(prefix.tokens), len(blocks), BASE.width)


class NoImages:
    """Frozen values of images nobody looks at."""

    def __init__(self, blocks: tuple[int, ...]) -> None:
        self.blocks = blocks

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        return Prefix(0, torch.zeros(len(rows), 1, 1))

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        return Weightless().cls_tokens(inputs, no_prompts, self.blocks)


@dataclass(frozen=True)
class UntrainedVisit(Visit):
    """A visit whose training returns what it was given."""

    def fit(self, loss, start, finished_rounds, step_filter=None):
        return dict(start), 0.0


def counted(name: str, **options: object) -> tuple[int, int]:
    """Return the floats sent to and by a client of ten classes in one round."""
    method = METHODS.get(name)(**options)
    labels = torch.arange(10)
    priors = torch.bincount(labels, minlength=100).div(10).log()
    samples = Samples(NoImages(method.bare_blocks(CIFAR100)), labels, priors)
    visit = UntrainedVisit(0, Weightless(), samples, Training(), torch.Generator())
    reply = method.warm_up(visit)
    state = method.start(CIFAR100, 0, [] if reply is None else [reply])
    download = method.download(state, 0, 0)
    update, _ = method.update(visit, download, ClientMemory())
    method.aggregate(state, [update])
    return count_floats(download.tensors), count_floats(update.tensors)


@pytest.mark.parametrize(
    ("name", "options", "floats"),
    [
        ("head", {}, 76_800),
        ("fedvpt", {}, 77_568),
        ("fedvpt_deep", {}, 86_016),
        ("fedvpt_deep", {"blocks": 11}, 85_248),
        ("fedpr", {}, 84_480),
        ("sgpt", {}, 141_312),
        ("sgpt", {"prompts": 5}, 144_384),
        ("pfedpg", {}, 7_680),
        ("pfedpg", {"descriptor_vectors": "prompts"}, 7_680),
        ("ppt", {}, 76_800),
        ("pep", {}, 384_768),
        ("pep", {"layers": ()}, 77_568),
        ("ncm", {}, 76_900),
        ("cue", {}, 86_116),
        ("cue", {"head_bias": False, "blocks": 1}, 77_568),
    ],
)
def test_floats_per_client_and_round(name, options, floats):
    assert counted(name, **options) == (floats, floats)


@pytest.mark.parametrize(
    ("name", "options", "rounds", "millions"),
    [
        ("pep", {}, 12, 4.6),
        ("fedvpt", {}, 100, 7.8),  # printed as 7.7: 7.757, cut off
        ("fedvpt_deep", {"blocks": 11}, 90, 7.67),
        ("fedvpt_deep", {}, 90, 7.74),  # twelve prompts, unlike the paper's table
        ("fedpr", {}, 100, 8.4),
        ("sgpt", {}, 90, 12.7),  # the public scripts' four shared prompts
        ("sgpt", {"prompts": 5}, 90, 13.0),  # 88 vectors, as the paper's table implies
    ],
)
def test_totals_of_the_papers_communication_table(name, options, rounds, millions):
    digits = len(str(millions).partition(".")[2])
    assert round(counted(name, **options)[1] * rounds / 1e6, digits) == millions


def test_counters_are_not_floats_but_travel():
    method = METHODS.get("sgpt")()
    state = method.start(CIFAR100, 0, [])
    counts = method.download(state, 0, 0).tensors["counts"]
    assert counts.shape == (20,)
    assert not counts.is_floating_point()

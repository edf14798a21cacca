"""The embedded backbone: what is on disk, and that its features are worth more than random ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from sklearn import datasets
from torch import Tensor, nn

from fedcue.model.backbone import load_backbone, locate
from fedcue.model.vit import VisionTransformer

MIDDLE = slice(4, 7)
FINAL = 12


@pytest.fixture(scope="module")
def embedded() -> VisionTransformer:
    return load_backbone("embedded")


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """Scikit-learn's digits at 32 pixels in a fixed random order."""
    bunch = datasets.load_digits()
    small = torch.tensor(bunch.images * (255 / 16)).float()[:, None]
    images = F.interpolate(small, (32, 32), mode="bicubic").round().clamp(0, 255).byte()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images.expand(-1, 3, -1, -1)[order], torch.tensor(bunch.target)[order]


def untrained_twin(model: VisionTransformer, seed: int) -> VisionTransformer:
    """A net of the same shape with Xavier weights and random cls and position embeddings."""
    twin = VisionTransformer(model.architecture)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in ("cls_token", "pos_embed"):
                nn.init.trunc_normal_(parameter, std=0.02, generator=generator)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter.flatten(1), generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
    return twin.eval()


@torch.inference_mode()
def cls_tokens(model: VisionTransformer, images: Tensor) -> list[Tensor]:
    """The cls token at the input of every block and, last, after the final norm."""
    x = model.embed(model.normalise(images))
    tokens = []
    for block in model.blocks:
        tokens.append(x[:, 0])
        x = block(x)
    return [*tokens, model.norm(x)[:, 0]]


def prototype_accuracies(model: VisionTransformer, digits: tuple[Tensor, Tensor]) -> list[float]:
    """Nearest class mean by cosine similarity, at every depth: means from one half, tested on the other."""
    images, labels = digits
    half = len(labels) // 2
    accuracies = []
    for tokens in cls_tokens(model, images):
        means = torch.stack([tokens[:half][labels[:half] == digit].mean(0) for digit in range(10)])
        scores = F.normalize(tokens[half:], dim=1) @ F.normalize(means, dim=1).T
        accuracies.append(float((scores.argmax(1) == labels[half:]).float().mean()))
    return accuracies


@pytest.fixture(scope="module")
def trained(embedded: VisionTransformer, digits: tuple[Tensor, Tensor]) -> list[float]:
    return prototype_accuracies(embedded, digits)


@pytest.fixture(scope="module")
def untrained(embedded: VisionTransformer, digits: tuple[Tensor, Tensor]) -> list[list[float]]:
    return [prototype_accuracies(untrained_twin(embedded, seed), digits) for seed in range(2)]


def middle(accuracies: list[float]) -> float:
    """The mean over the inputs of blocks 4 to 6, which the prototype scores read."""
    return sum(accuracies[MIDDLE]) / len(accuracies[MIDDLE])


def test_has_the_advertised_shape(embedded: VisionTransformer) -> None:
    architecture = embedded.architecture
    assert (architecture.width, architecture.depth, architecture.heads) == (128, 12, 4)
    assert (architecture.patch, architecture.image_size, architecture.hidden) == (8, 32, 512)
    assert architecture.tokens == 17
    assert architecture.mean == architecture.std == (0.5, 0.5, 0.5)


def test_is_frozen_and_in_eval_mode(embedded: VisionTransformer) -> None:
    assert not embedded.training
    assert not any(parameter.requires_grad for parameter in embedded.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in embedded.parameters())


def test_is_small_and_stored_in_half_precision() -> None:
    path = locate("embedded")
    assert path.stat().st_size <= 6_000_000
    with safe_open(path, framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


def test_comes_with_a_model_card() -> None:
    card = (locate("embedded").parent / "README.md").read_text(encoding="utf-8")
    assert "CIFAR-100" in card
    assert "Tiny-ImageNet" in card


def test_final_token_separates_unseen_digits(trained: list[float], untrained: list[list[float]]) -> None:
    assert trained[FINAL] > 0.60
    assert trained[FINAL] > max(twin[FINAL] for twin in untrained) + 0.15


def test_middle_tokens_separate_unseen_digits(trained: list[float], untrained: list[list[float]]) -> None:
    assert middle(trained) > 0.60
    assert middle(trained) > max(middle(twin) for twin in untrained) + 0.15


def test_first_token_carries_nothing_yet(trained: list[float]) -> None:
    """Before block 0 the cls token is the same for all images: the measurement itself is sound."""
    assert trained[0] < 0.2

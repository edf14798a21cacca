"""Every cut of work gives what the plain computation gives, in values and in gradients."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fedcue.model.prompted import (
    Insertion,
    Prefix,
    PromptedViT,
    Prompter,
    deep,
    inserted,
    no_prompts,
    query_and_value,
    shallow,
)
from fedcue.model.vit import Architecture, LowRank, VisionTransformer, attend

WIDTH, DEPTH = 32, 4


@pytest.fixture(scope="module")
def model() -> PromptedViT:
    torch.manual_seed(0)
    backbone = VisionTransformer(Architecture(WIDTH, DEPTH, 2, 8, 32, 64))
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return PromptedViT(backbone.eval().requires_grad_(False))


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(
        0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )


def plain(model: PromptedViT, images: Tensor, prompts: Prompter, read: int) -> Tensor:
    """The plain computation: all tokens through all blocks, nothing kept."""
    x = model.backbone.embed(model.backbone.normalise(images))
    for index, block in enumerate(model.backbone.blocks):
        insertion = prompts(index, x)
        if insertion is not None:
            tokens = insertion.tokens.expand(len(x), -1, -1)
            rest = x[:, 1 + tokens.shape[1] :] if insertion.overwrite else x[:, 1:]
            x = torch.cat([x[:, :1], tokens, rest], 1)
        x = block(x)
    return model.backbone.norm(x)[:, :read]


def mixing(prompts: Tensor, replace: bool, first: int) -> Prompter:
    """Tokens made from cls at two blocks, behind a shared one at block 0 unless ``first`` is later."""
    layers = (max(first, 1), 3)

    def insert(block: int, tokens: Tensor) -> Insertion | None:
        if block not in layers:
            return Insertion(prompts[0]) if block == 0 and first == 0 else None
        mixed = torch.softmax(tokens[:, 0] @ prompts[1].T, -1) @ prompts[1]
        return Insertion(mixed[:, None], overwrite=replace and block != layers[0])

    return insert


PROMPTERS = {
    "none": (lambda p: no_prompts, DEPTH),
    "shallow": (lambda p: shallow(p[0]), 0),
    "deep": (lambda p: deep(torch.stack([p[0], p[1], p[0], p[1]])), 0),
    "mixed, replaced": (lambda p: mixing(p, True, 0), 0),
    "mixed, accumulated": (lambda p: mixing(p, False, 0), 0),
    "mixed from block 2": (lambda p: mixing(p, True, 2), 2),
}


@pytest.mark.parametrize("read", [1, 3])
@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("name", PROMPTERS)
def test_the_cuts_change_neither_features_nor_gradients(
    model: PromptedViT, images: Tensor, name: str, project: bool, read: int
) -> None:
    make, block = PROMPTERS[name]
    if block == DEPTH and read > 1:
        pytest.skip("without prompts only cls is kept at the end")
    start = torch.randn(2, 2, WIDTH, generator=torch.Generator().manual_seed(2))
    outcomes = []
    for cut in (True, False):
        prompts = start.clone().requires_grad_()
        features = (
            model.features(model.prefix(images, block, project), make(prompts), read)
            if cut
            else plain(model, images, make(prompts), read)
        )
        gradient = torch.zeros_like(start)
        if name != "none":
            weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
            (gradient,) = torch.autograd.grad((features * weights).sum(), prompts)
        outcomes.append((features.detach(), gradient))
    for cut_value, plain_value in zip(*outcomes, strict=True):
        torch.testing.assert_close(cut_value, plain_value, atol=1e-5, rtol=1e-5)


RANK = 3


def matrices(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return ``down [blocks, 2, r, d]`` and ``up [blocks, 2, d, r]``, large enough to matter."""
    generator = torch.Generator().manual_seed(5)
    down = torch.randn(DEPTH, 2, RANK, WIDTH, generator=generator, dtype=torch.float64) * 0.3
    up = torch.randn(DEPTH, 2, WIDTH, RANK, generator=generator, dtype=torch.float64) * 0.3
    return down.to(dtype), up.to(dtype)


def changed(down: Tensor, up: Tensor, blocks: tuple[int, ...]) -> Prompter:
    """Change some blocks' query and value."""

    def change(block: int, tokens: Tensor) -> LowRank | None:
        return query_and_value(down[block], up[block]) if block in blocks else None

    return change


def merged(backbone: VisionTransformer, down: Tensor, up: Tensor, blocks: tuple[int, ...]) -> PromptedViT:
    """Return the model whose weights have taken the change in."""
    copied = deepcopy(backbone)
    for index in blocks:
        weight = copied.blocks[index].attn.qkv.weight
        weight[:WIDTH] += up[index, 0] @ down[index, 0]
        weight[2 * WIDTH :] += up[index, 1] @ down[index, 1]
    return PromptedViT(copied)


@pytest.mark.parametrize("read", [1, 4])
@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("blocks", [(0, 1, 2, 3), (2, 3), (1,)])
def test_a_low_rank_change_is_a_merged_weight(
    model: PromptedViT, images: Tensor, blocks: tuple[int, ...], project: bool, read: int
) -> None:
    """In float64 to 1e-9, from what is kept below the first changed block; the frozen weights stay."""
    exact = PromptedViT(deepcopy(model.backbone).double())
    before = {name: tensor.clone() for name, tensor in exact.backbone.state_dict().items()}
    down, up = matrices()
    start = Prefix(0, exact.backbone.embed(exact.backbone.normalise(images).double()))
    tokens = exact._run(start, no_prompts, blocks[0])
    qkv = exact.backbone.blocks[blocks[0]].project(tokens) if project else None
    found = exact.features(Prefix(blocks[0], tokens, qkv), changed(down, up, blocks), read)
    expected = merged(exact.backbone, down, up, blocks).features(start, no_prompts, read)[:, :read]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    assert not torch.allclose(found, exact.features(start, no_prompts, read), atol=1e-3)
    assert all(torch.equal(before[name], tensor) for name, tensor in exact.backbone.state_dict().items())


def test_the_gradients_of_a_low_rank_change_are_the_merged_weights(
    model: PromptedViT, images: Tensor
) -> None:
    exact = PromptedViT(deepcopy(model.backbone).double())
    start = Prefix(0, exact.backbone.embed(exact.backbone.normalise(images).double()))
    down, up = (tensor.requires_grad_() for tensor in matrices())
    exact.features(start, changed(down, up, (1,))).square().sum().backward()
    other = merged(exact.backbone, down.detach(), up.detach(), (1,))
    weight = other.backbone.blocks[1].attn.qkv.weight.requires_grad_()
    other.features(start, no_prompts).square().sum().backward()
    assert weight.grad is not None
    of_query, of_value = weight.grad[:WIDTH], weight.grad[2 * WIDTH :]
    for index, slope in enumerate((of_query, of_value)):
        torch.testing.assert_close(up.grad[1, index], slope @ down[1, index].detach().T)  # type: ignore[index]
        torch.testing.assert_close(down.grad[1, index], up[1, index].detach().T @ slope)  # type: ignore[index]
    assert not up.grad[0].any()  # type: ignore[index]
    assert all(parameter.grad is None for parameter in exact.backbone.parameters())


def test_a_low_rank_change_of_nothing_changes_no_bit(model: PromptedViT, images: Tensor) -> None:
    down, up = matrices(torch.float32)
    prefix = model.prefix(images)
    found = model.features(prefix, changed(down, torch.zeros_like(up), (0, 1, 2, 3)))
    assert torch.equal(found, model.features(prefix, no_prompts))


def test_a_low_rank_change_in_bfloat16_is_close_and_trains(
    model: PromptedViT, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    monkeypatch.setattr("fedcue.model.vit.attend", lambda q, k, v: seen.append(q.dtype) or attend(q, k, v))
    outcomes = []
    for precision in ("float32", "bfloat16"):
        own = PromptedViT(model.backbone, precision)  # type: ignore[arg-type]
        down, up = matrices(torch.float32)
        up.requires_grad_()
        features = own.features(own.prefix(images, 1), changed(down, up, (1, 2)))
        features.square().mean().backward()
        assert up.grad is not None
        assert up.grad.dtype == features.dtype == torch.float32
        outcomes.append((features.detach(), up.grad))
    for exact, rough in zip(*outcomes, strict=True):
        assert (rough - exact).norm() < 0.1 * exact.norm()
    assert set(seen) == {torch.float32, torch.bfloat16}


def test_cls_tokens_are_those_at_the_blocks_inputs(model: PromptedViT, images: Tensor) -> None:
    prompts = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(2))
    seen = {}

    def watch(block: int, tokens: Tensor) -> Insertion | None:
        seen[block] = tokens[:, 0]
        return shallow(prompts)(block, tokens)

    final = plain(model, images, watch, 1)[:, 0]
    tokens = model.cls_tokens(model.prefix(images), shallow(prompts), (1, 3, DEPTH))
    torch.testing.assert_close(tokens[:, 0], seen[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tokens[:, 1], seen[3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.backbone.norm(tokens[:, 2]), final, atol=1e-5, rtol=1e-5)


def test_no_gradient_is_kept_for_frozen_weights_or_image_tokens(model: PromptedViT, images: Tensor) -> None:
    prompts = torch.randn(1, WIDTH, requires_grad=True)
    prefix = model.prefix(images)
    assert not prefix.tokens.requires_grad
    model.features(prefix, shallow(prompts)).sum().backward()
    assert prompts.grad is not None
    assert all(parameter.grad is None for parameter in model.backbone.parameters())


def test_the_order_of_prompts_does_not_matter(model: PromptedViT, images: Tensor) -> None:
    prompts = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(2))
    prefix = model.prefix(images)
    one, other = (model.features(prefix, shallow(p)) for p in (prompts, prompts[[2, 0, 3, 1]]))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_deep_prompts_keep_the_length_and_mixed_ones_grow_as_stated(
    model: PromptedViT, images: Tensor
) -> None:
    def lengths(prompter: Prompter) -> list[int]:
        seen = []

        def watch(block: int, tokens: Tensor) -> Insertion | None:
            seen.append(tokens.shape[1])
            return prompter(block, tokens)

        model.features(model.prefix(images), watch)
        return seen

    def end(prompter: Prompter) -> int:
        return model.features(model.prefix(images), prompter, read=100).shape[1]

    prompts = torch.zeros(2, 1, WIDTH)
    assert lengths(deep(torch.zeros(DEPTH, 1, WIDTH))) == [17, 18, 18, 18]
    assert lengths(mixing(prompts, True, 0)) == [17, 18, 19, 19]
    assert lengths(mixing(prompts, False, 0)) == [17, 18, 19, 19]
    assert end(mixing(prompts, True, 0)) == 19
    assert end(mixing(prompts, False, 0)) == 20
    three = inserted({block: torch.zeros(1, WIDTH) for block in (0, 1, 2)})
    assert lengths(three) == [17, 18, 19, 20]


def test_an_insertion_that_overwrites_does_so_in_the_kept_projection_too(
    model: PromptedViT, images: Tensor
) -> None:
    """At the first block of a kept prefix, too, though nothing stands in the slot there but image tokens."""
    tokens = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(4))
    for overwrite in (True, False):

        def insert(block: int, x: Tensor, overwrite: bool = overwrite) -> Insertion | None:
            return Insertion(tokens, overwrite) if block == 1 else None

        cut = model.features(model.prefix(images, 1), insert)
        torch.testing.assert_close(cut, plain(model, images, insert, 1), atol=1e-5, rtol=1e-5)


def test_a_prefix_can_be_indexed() -> None:
    prefix = Prefix(0, torch.arange(12.0).view(3, 2, 2), torch.arange(36.0).view(3, 2, 6))
    chosen = prefix[torch.tensor([2, 0])]
    assert chosen.tokens[0, 0, 0] == 8
    assert chosen.qkv is not None
    assert chosen.qkv.shape == (2, 2, 6)


def test_bfloat16_is_close_and_leaves_scores_and_residuals_in_float32(
    model: PromptedViT, images: Tensor
) -> None:
    seen: list[torch.dtype] = []
    prompts = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(2))

    def run(precision: str) -> tuple[Tensor, Tensor]:
        own = PromptedViT(model.backbone, precision)  # type: ignore[arg-type]
        tokens = prompts.clone().requires_grad_()

        def insert(block: int, x: Tensor) -> Insertion | None:
            seen.append((x @ tokens.T).dtype)
            return Insertion(tokens) if block == 0 else None

        prefix = own.prefix(images)
        features = own.features(prefix, insert)
        features.square().mean().backward()
        assert tokens.grad is not None
        return features.detach(), tokens.grad

    exact, exact_gradient = run("float32")
    rough, rough_gradient = run("bfloat16")
    assert set(seen) == {torch.float32}
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert (rough - exact).norm() < 0.03 * exact.norm()
    assert (rough_gradient - exact_gradient).norm() < 0.1 * exact_gradient.norm()


def test_attention_in_bfloat16_is_the_fused_kernels_up_to_rounding() -> None:
    q, k, v = torch.randn(3, 2, 4, 7, 16, generator=torch.Generator().manual_seed(3))
    exact = torch.nn.functional.scaled_dot_product_attention(q[:, :, :3], k, v)
    rough = attend(q[:, :, :3].bfloat16(), k.bfloat16(), v.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.03


def test_bfloat16_turns_a_copy_of_the_matrices_and_nothing_else(model: PromptedViT) -> None:
    own = PromptedViT(model.backbone, "bfloat16").backbone
    changed = {name for name, tensor in own.state_dict().items() if tensor.dtype == torch.bfloat16}
    assert {tensor.dtype for tensor in model.backbone.state_dict().values()} == {torch.float32}
    assert changed == {
        name
        for name in own.state_dict()
        if name.startswith("blocks.") and any(part in name for part in ("qkv", "proj", "fc1", "fc2"))
    }

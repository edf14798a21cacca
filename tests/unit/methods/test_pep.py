"""PEP-FedPT: the mixing weights, the prototypes at the server, and what reduces to what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.tiny_federation import added

import fedcue.methods as fm
from fedcue.aggregate.class_means import CentroidSums
from fedcue.errors import ConfigError
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.pep import PEP, class_scores, move_prototypes
from fedcue.methods.pep_variants import PEPVariants
from fedcue.types import Sizes

PRIORS = torch.tensor([0.5, 0.3, 0.2, 0.0]).log()
ALL = torch.ones(4, dtype=torch.bool)


def scores(temperature, prototypes=None, cls=None, priors=PRIORS, known=ALL):
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(4, 16, generator=generator) if prototypes is None else prototypes
    cls = torch.randn(6, 16, generator=generator) if cls is None else cls
    return class_scores(cls, prototypes, known, priors, temperature)


# The scores


def test_high_temperature_gives_the_prior():
    torch.testing.assert_close(scores(1e9), PRIORS.exp().expand(6, 4))


def test_low_temperature_gives_the_nearest_class_the_client_has():
    weights = scores(1e-5)
    assert torch.isfinite(weights).all()
    assert torch.equal(weights.amax(1), torch.ones(6))
    assert not weights[:, 3].any()


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.05, 1.0, 100.0])
def test_weights_are_a_distribution_over_the_clients_classes(temperature):
    weights = scores(temperature)
    torch.testing.assert_close(weights.sum(1), torch.ones(6))
    assert not weights[:, 3].any()


def test_scores_stay_finite_at_any_temperature():
    generator = torch.Generator().manual_seed(0)
    cls, prototypes = torch.randn(6, 8, generator=generator), torch.randn(5, 8, generator=generator)
    priors = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).log()
    for temperature in (1e-5, 1e-2, 1.0, 1e5):
        found = class_scores(cls, prototypes, torch.ones(5, dtype=torch.bool), priors, temperature)
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found.sum(1), torch.ones(6))
        assert (found[:, 2:] == 0).all()
    torch.testing.assert_close(found, priors.exp().expand(6, 5), atol=1e-4, rtol=0)


def test_scaling_a_prototype_changes_nothing():
    prototypes = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    scaled = prototypes * torch.tensor([0.1, 1, 7, 100])[:, None]
    torch.testing.assert_close(scores(0.05, prototypes), scores(0.05, scaled))


def test_a_class_without_prototype_takes_the_mean_similarity_of_the_clients_known_classes():
    """Class 1 has none; class 3 has one, but the client does not hold it: it has no part in the mean."""
    cls = torch.tensor([[1.0, 0.0]])
    prototypes = torch.tensor([[1.0, 0.0], [0.3, 0.4], [0.0, 1.0], [-1.0, 0.0]])  # cosines 1, -, 0, -1
    known = torch.tensor([True, False, True, True])
    expected = torch.softmax(torch.tensor([1.0, 0.5, 0.0, -torch.inf]) / 0.5 + PRIORS, -1)
    torch.testing.assert_close(scores(0.5, prototypes, cls, known=known)[0], expected)


def test_a_class_without_prototype_takes_the_similarity_of_the_only_known_class():
    cls, prototypes = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.6, 0.8], [0.0, 0.0]])
    found = class_scores(cls, prototypes, torch.tensor([True, False]), torch.zeros(2), 0.5)
    torch.testing.assert_close(found, torch.full((2, 2), 0.5))


def test_without_any_prototype_the_weights_are_the_priors():
    torch.testing.assert_close(scores(0.05, known=~ALL), PRIORS.exp().expand(6, 4))


def test_scores_of_several_clients_at_once_take_each_images_own_priors():
    other = torch.tensor([0.0, 0.0, 0.5, 0.5]).log()
    together = scores(0.05, priors=torch.stack([PRIORS] * 3 + [other] * 3))
    torch.testing.assert_close(together[:3], scores(0.05)[:3])
    torch.testing.assert_close(together[3:], scores(0.05, priors=other)[3:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_scores_are_computed_in_float32_at_least(dtype):
    """With temperature 0.05 an error of bfloat16 in a cosine would change the odds by a fifth."""
    cls = torch.randn(6, 16, generator=torch.Generator().manual_seed(2)).to(dtype)
    prototypes = torch.randn(4, 16, generator=torch.Generator().manual_seed(3))
    found = class_scores(cls, prototypes, ALL, PRIORS, 0.05)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    expected = class_scores(cls.double(), prototypes.double(), ALL, PRIORS.double(), 0.05)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)
    assert fm.cosines(cls, prototypes).dtype == found.dtype


# The mixed prompts


class Unmixed(PEP):
    """PEP whose mixed prompts are left out."""

    def prompter(self, tensors, batch):
        insert = super().prompter(tensors, batch)
        return lambda block, tokens: insert(block, tokens) if block == 0 else None


def test_without_mixed_prompts_logits_and_gradients_are_fedvpts_bit_for_bit(federation):
    outcomes = []
    for method in (Unmixed(prompts=2), FedVPT(prompts=2)):
        tiny = federation(method, images=8)
        tensors, batch = tiny.personal(tiny.start(), 0), tiny.batch(0)
        leaves = {name: tensors[name].clone().requires_grad_() for name in ("head", "shared_prompts")}
        logits = method.logits({**tensors, **leaves}, batch)
        method.cross_entropy(logits, batch).backward()
        outcomes.append({"logits": logits, **{name: leaf.grad for name, leaf in leaves.items()}})
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])
    assert outcomes[0]["shared_prompts"].abs().max() > 0


def test_without_mixed_prompts_a_whole_run_is_fedvpts_bit_for_bit(federation):
    ours, theirs = (federation(method, images=8).run(2) for method in (Unmixed(), FedVPT()))
    for name in ("head", "shared_prompts"):
        assert torch.equal(ours.state.tensors[name], theirs.state.tensors[name])
    assert torch.equal(ours.predict(3), theirs.predict(3))
    mixed = federation(PEP(), images=8).run(2)
    assert not torch.equal(mixed.state.tensors["head"], theirs.state.tensors["head"])


def test_class_prompts_of_zero_length_make_no_gradient_through_the_scores(federation):
    """The mixed token is the same for all images then, and its gradient is the scores'."""
    tiny = federation(PEP(), images=8)
    state = tiny.start()
    tensors = {**tiny.personal(state, 0)}
    tensors["class_prompts"] = torch.zeros(2, 32, requires_grad=True)
    tiny.method.loss(tensors)(tensors, tiny.batch(0)).backward()
    assert tensors["class_prompts"].grad.abs().amax(1).gt(0).all()


def test_the_mixed_prompt_has_one_slot_that_each_mixed_block_overwrites(federation):
    tiny = federation(PEP(prompts=2, layers=(1, 3, 4)), images=8)
    tensors, batch = tiny.personal(tiny.start(), 0), tiny.batch(0, 4)
    insert, seen = tiny.method.prompter(tensors, batch), {}

    def watch(block, tokens):
        seen[block] = (tokens.clone(), insert(block, tokens))
        return seen[block][1]

    tiny.model.features(batch.inputs, watch)
    assert [tokens.shape[1] for tokens, _ in seen.values()] == [5, 7, 8, 8, 8, 8, 8, 8]
    assert [put is None for _, put in seen.values()] == [False, False, True, False, False, True, True, True]
    for position, block in enumerate((1, 3, 4)):
        tokens, put = seen[block]
        weights = class_scores(
            tokens[:, 0], tensors["prototypes"][position], ALL[:2], batch.log_priors[:2], 0.05
        )
        torch.testing.assert_close(put.tokens[:, 0], weights @ tensors["class_prompts"])
        assert put.overwrite is (position > 0)


def test_an_overwritten_slot_is_overwritten_in_the_kept_projection_too(federation):
    """Mixed at blocks 0 and 1: what is kept of block 0 must not show the slot's first content twice."""
    kept, plain = (federation(PEP(layers=(0, 1)), images=8) for _ in range(2))
    plain.frozen.whole = type(plain.frozen.whole)(0, plain.frozen.whole.tokens, None)
    tensors = kept.personal(kept.start(), 0)
    assert kept.batch(0).inputs.qkv is not None
    assert plain.batch(0).inputs.qkv is None
    found, expected = (tiny.method.logits(tensors, tiny.batch(0)) for tiny in (kept, plain))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_at_the_first_block_every_image_gets_the_same_weights(federation):
    run = federation(PEPVariants(layers=(0, 1, 2))).run(1)
    weights = run.tiny.method.inspect(run.tiny.personal(run.state, 0), run.tiny.batch(0))["mixing_weights"]
    torch.testing.assert_close(weights[:, 0], weights[:1, 0].expand(16, 4))
    assert (weights[:, 2] - weights[:1, 2]).abs().max() > 1e-4
    assert not weights[:, :, 2:].any()  # the client holds the classes 0 and 1


def test_mixed_blocks_must_ascend_and_exist():
    with pytest.raises(ValueError, match="must be ascending block indices"):
        PEP(layers=(5, 4))
    with pytest.raises(ValueError, match="at least 1 item"):
        PEP(layers=())
    with pytest.raises(ConfigError, match=r"method.layers=\[4, 5, 6\] reach beyond .* 0 to 5"):
        PEP().check(Sizes(4, 8, 6, 4, 3))
    PEP().check(Sizes(4, 8, 7, 4, 3))


def test_rows_of_absent_classes_come_back_as_they_were_sent(federation):
    tiny = federation(PEP())
    state = tiny.run(1).state
    update, _ = tiny.update(state, 0)
    sent, back = state.tensors["class_prompts"], update.tensors["class_prompts"]
    assert torch.equal(back[2:], sent[2:])
    assert not torch.equal(back[:2], sent[:2])


def test_centroids_are_taken_under_what_was_broadcast_and_before_training(federation):
    tiny = federation(PEP(), images=8)
    state = tiny.run(1).state
    update, _ = tiny.update(state, 0)
    batch = tiny.batch(0)
    cls = tiny.method.cls_tokens(tiny.personal(state, 0), batch)  # [B, L, d]
    for c in (0, 1):
        torch.testing.assert_close(update.tensors["centroids"][:, c], cls[batch.labels == c].mean(0))
    assert update.tensors["holds"].tolist() == [True, True, False, False]
    assert not update.tensors["centroids"][:, 2:].any()


# The prototypes at the server


def test_heldout_clients_enter_no_prototype(federation):
    run = federation(PEP()).run(0)
    assert [reply.client for reply in run.replies] == [0, 1, 2]
    assert run.state.tensors["has_prototype"].tolist() == [True, True, True, True]
    alone = run.tiny.method.start(run.tiny.sizes, 0, added(run.tiny.method, run.tiny.sizes, run.replies[:1]))
    assert alone.tensors["has_prototype"].tolist() == [True, True, False, False]


def test_first_prototypes_are_means_over_the_holders(federation):
    run = federation(PEP(), images=8).run(0)
    centroids = torch.stack([reply.tensors["centroids"] for reply in run.replies])  # clients 0, 1, 2
    found = run.state.tensors["prototypes"]
    torch.testing.assert_close(found[:, 0], centroids[0, :, 0])  # client 0 alone
    torch.testing.assert_close(found[:, 1], (centroids[0, :, 1] + centroids[1, :, 1]) / 2)
    torch.testing.assert_close(found[:, 2], (centroids[1, :, 2] + centroids[2, :, 2]) / 2)


def test_prototypes_move_only_at_the_end_of_a_period(federation):
    run = federation(PEP(period=2), images=8).run(1)
    first = run.tiny.start().tensors["prototypes"]
    assert torch.equal(run.state.tensors["prototypes"], first)
    assert run.state.tensors["centroid_weights"].any()
    run.more(1)
    assert not torch.equal(run.state.tensors["prototypes"], first)
    assert not run.state.tensors["centroid_weights"].any()
    assert not run.state.tensors["centroid_sums"].any()


def made(known: list[bool], sent: list[float]) -> dict[str, torch.Tensor]:
    """Return prototypes of ones, and a period in which sent centroids add up to fives."""
    weights = torch.tensor(sent)
    return {
        "prototypes": torch.tensor(known).float()[:, None].expand(-1, 2)[None].clone(),
        "has_prototype": torch.tensor(known),
        "centroid_sums": (5 * weights)[:, None].expand(-1, 2)[None].clone(),
        "centroid_weights": weights,
    }


def test_a_prototype_keeps_its_share_and_takes_the_rest_from_the_periods_mean():
    moved = move_prototypes(made([True, True], [2.0, 1.0]), momentum=0.7)
    torch.testing.assert_close(moved["prototypes"], torch.full((1, 2, 2), 0.7 * 1 + 0.3 * 5))
    assert not moved["centroid_sums"].any()
    assert not moved["centroid_weights"].any()


def test_a_class_nobody_sent_keeps_its_prototype():
    moved = move_prototypes(made([True, True], [0.0, 1.0]), momentum=0.5)
    assert moved["prototypes"][0].tolist() == [[1, 1], [3, 3]]
    assert moved["has_prototype"].tolist() == [True, True]


def test_a_class_that_had_no_prototype_takes_the_mean_as_it_is_and_is_known_from_then_on():
    moved = move_prototypes(made([False, True, False], [2.0, 0.0, 0.0]), momentum=0.5)
    assert moved["prototypes"][0].tolist() == [[5, 5], [1, 1], [0, 0]]
    assert moved["has_prototype"].tolist() == [True, True, False]
    again = move_prototypes({**moved, **{n: torch.zeros_like(moved[n]) for n in ("centroid_sums",)}}, 0.5)
    assert again["has_prototype"].tolist() == [True, True, False]


@pytest.mark.parametrize("private", [False, True])
def test_what_gathers_centroids_is_told_the_prototypes_that_were_sent(private, federation):
    tiny, told = federation(PEP(), images=8), []
    state = tiny.start()

    class Told(CentroidSums):
        def reply(self, *given):
            told.append(self.told)
            return super().reply(*given)

    client = replace(tiny.client(0), class_sums=Told, hide_priors=private)
    tiny.method.update(client, tiny.sent(state, 0))
    assert torch.equal(told[0].values, state.tensors["prototypes"])
    assert torch.equal(told[0].known, state.tensors["has_prototype"])

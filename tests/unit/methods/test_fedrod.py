"""FedROD: a balanced shared head, a personal head that never leaves the client."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedcue.methods.fedrod import FedROD
from fedcue.train.settings import Training

PLAIN = Training(lr=0.1, epochs=1, batch_size=8, weight_decay=0.0)


def losses(tiny, client=0, **changes):
    """Return the loss of a client's images and its slopes, some tensors changed."""
    tensors = {**tiny.personal(tiny.start(), client), **changes}
    leaves = {name: tensors[name].clone().requires_grad_() for name in tiny.host.table.trained}
    value = tiny.method.loss(tensors)(leaves, tiny.batch(client))
    value.backward()
    return value, {name: leaf.grad for name, leaf in leaves.items()}


def test_the_personal_loss_moves_the_personal_head_alone(federation):
    tiny = federation(FedROD(prompts=2), images=8)
    _, plain = losses(tiny)
    _, other = losses(tiny, personal_head=torch.randn(4, 32, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(plain["head"], other["head"])
    assert torch.equal(plain["prompts"], other["prompts"])
    assert plain["prompts"].any()
    assert not torch.equal(plain["personal_head"], other["personal_head"])


def test_the_shared_loss_is_softmax_weighed_by_class_counts(federation):
    tiny = federation(FedROD(), labels=[[0, 0, 0, 1], [1, 2], [3, 3], [2]])
    value, slopes = losses(tiny)
    tensors, batch = tiny.personal(tiny.start(), 0), tiny.batch(0)
    features = batch.features(tiny.method.prompter(tensors, batch))[:, 0]
    logits = (features @ tensors["head"].T).detach()
    counts = torch.tensor([3.0, 1.0, 0.0, 0.0])
    shares = counts * logits.exp() / (counts * logits.exp()).sum(1, keepdim=True)
    balanced = -shares.gather(1, batch.labels[:, None]).log().mean()
    torch.testing.assert_close(value.detach(), balanced + F.cross_entropy(logits, batch.labels))
    error = (shares - F.one_hot(batch.labels, 4)).T @ features / 4
    torch.testing.assert_close(slopes["head"], error.detach())


def test_rows_of_classes_a_client_lacks_have_no_gradient_in_the_shared_head(federation):
    tiny = federation(FedROD(), images=8, training=PLAIN)
    state = tiny.start()
    update, kept = tiny.update(state, 0)  # its classes are 0 and 1
    moved = (update.tensors["head"] != state.tensors["head"]).any(1)
    assert moved.tolist() == [True, True, False, False]
    assert (kept.tensors["personal_head"] != 0).any(1).all(), "it learns that it lacks the others"


@pytest.mark.parametrize("bias", [False, True])
def test_a_client_that_never_trained_decides_with_the_shared_head(bias, federation):
    run = federation(FedROD(head_bias=bias), images=8).run(2, sampled=(0, 1))
    for client in (2, 3):  # not drawn, and held out
        samples, tensors = run.for_test(client)
        (batch,) = samples.batches(100)
        shared = F.linear(batch.features(lambda *_: None)[:, 0], tensors["head"], tensors.get("head_bias"))
        assert torch.equal(run.predict(client), shared)
    assert not torch.equal(run.for_test(0)[1]["personal_head"], torch.zeros(4, 32))


def test_a_client_decides_with_both_heads_and_its_own_is_for_its_own_classes(federation):
    run = federation(FedROD()).run(4)
    both = run.predict(0)
    alone = run.memories.pop(0)
    shared = run.predict(0)
    (batch,) = run.for_test(0)[0].batches(100)
    own = batch.features(lambda *_: None)[:, 0] @ alone.tensors["personal_head"].T
    torch.testing.assert_close(both, shared + own)
    gain = own[:, :2].mean() - own[:, 2:].mean()
    assert gain > 0, "of the four classes it has the first two"


def test_without_prompts_no_block_sees_one_and_what_is_below_the_heads_is_computed_once(federation):
    sizes = federation(FedROD(), images=8).sizes
    assert FedROD().first_block(sizes) == sizes.depth == 8
    assert FedROD(prompts=2).first_block(sizes) == 0
    assert "prompts" not in FedROD().table(sizes).sent

"""The oracle is consistent with itself, and its ViT with the library's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from golden import oracle

from fedcue.model.vit import Architecture, VisionTransformer

WIDTH, HEADS, DEPTH, CLASSES = 12, 3, 8, 5


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def random_vit(**changes) -> VisionTransformer:
    """A small ViT in float64 whose every parameter, biases and norms included, is random."""
    settings = {"width": WIDTH, "depth": DEPTH, "heads": HEADS, "patch": 4, "image_size": 8, "hidden": 20}
    model = VisionTransformer(Architecture(**{**settings, **changes})).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model.requires_grad_(False)


def arrays(model: VisionTransformer) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in model.state_dict().items()}


@pytest.fixture
def weights():
    return arrays(random_vit())


@pytest.fixture
def images(rng):
    return rng.normal(size=(3, 3, 8, 8))


@pytest.fixture
def pep(rng, weights, images):
    """The arguments of a PEP forward: class 2 is not held, class 3 has no prototype."""
    return {
        "weights": weights,
        "heads": HEADS,
        "pixels": images,
        "shared_prompts": rng.normal(size=(2, WIDTH)),
        "class_prompts": rng.normal(size=(CLASSES, WIDTH)),
        "prototypes": rng.normal(size=(3, CLASSES, WIDTH)),
        "has_prototype": np.array([True, True, True, False, True]),
        "priors": np.array([0.2, 0.3, 0.0, 0.4, 0.1]),
        "head": rng.normal(size=(CLASSES, WIDTH)),
    }


# The Vision Transformer


@pytest.mark.parametrize(
    "changes",
    [{}, {"registers": 2}, {"registers": 3, "layer_scale": True, "position_on_prefix": False}, {"heads": 1}],
    ids=["plain", "registers", "dinov2", "one-head"],
)
def test_vit_equals_the_library(changes, images):
    model = random_vit(**changes)
    heads, pixels = changes.get("heads", HEADS), torch.from_numpy(images)
    x = model.embed(pixels)
    np.testing.assert_allclose(oracle.embed(arrays(model), images), x, atol=1e-12)
    theirs = [x[:, 0]]
    for block in model.blocks:
        x = block(x)
        theirs.append(x[:, 0])
    ours = oracle.bare_cls(arrays(model), heads, images)
    np.testing.assert_allclose(ours, torch.stack(theirs), atol=1e-9)
    np.testing.assert_allclose(oracle.final_norm(arrays(model), ours[-1]), model(pixels)[:, 0], atol=1e-9)


def test_vit_with_prompts_equals_the_library(rng, images):
    model = random_vit()
    prompts, head = rng.normal(size=(2, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    x = model.embed(torch.from_numpy(images))
    rows = torch.from_numpy(prompts).expand(len(images), -1, -1)
    x = torch.cat([x[:, :1], rows, x[:, 1:]], 1)
    for block in model.blocks:
        x = block(x)
    ours = oracle.vpt_forward(arrays(model), HEADS, images, prompts, head)
    np.testing.assert_allclose(ours["logits"], model.norm(x)[:, 0].numpy() @ head.T, atol=1e-9)


def test_order_of_prompts_does_not_matter(rng, weights, images):
    prompts, head = rng.normal(size=(4, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    first = oracle.vpt_forward(weights, HEADS, images, prompts, head)
    second = oracle.vpt_forward(weights, HEADS, images, prompts[::-1], head)
    np.testing.assert_allclose(first["logits"], second["logits"], atol=1e-10)


def test_deep_prompts(rng, weights, images):
    deep, head = rng.normal(size=(DEPTH, 2, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    result = oracle.vpt_forward(weights, HEADS, images, deep, head)
    assert result["tokens"] == [1 + 2 + 4] * DEPTH
    # One set at block 0 alone is the shallow form.
    shallow = oracle.vpt_forward(weights, HEADS, images, deep[0], head)
    only_first = oracle.vpt_forward(weights, HEADS, images, deep[:1], head, blocks=[0])
    np.testing.assert_array_equal(shallow["logits"], only_first["logits"])
    assert not np.allclose(result["logits"], shallow["logits"])
    # Without prompts: the bare backbone, Head-Tuning.
    bare = oracle.vpt_forward(weights, HEADS, images, np.zeros((0, WIDTH)), head)
    cls = oracle.final_norm(weights, oracle.bare_cls(weights, HEADS, images)[-1])
    np.testing.assert_array_equal(bare["logits"], cls @ head.T)


def test_deep_prompts_discard_the_outputs_of_the_previous_ones(rng, weights, images):
    deep, head = rng.normal(size=(DEPTH, 1, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    x = oracle.embed(weights, images)
    for block in range(DEPTH):
        with_prompt = np.concatenate([x[:, :1], np.stack([deep[block]] * len(x)), x[:, 1:]], axis=1)
        with_prompt = oracle.run_block(weights, block, HEADS, with_prompt)
        x = np.delete(with_prompt, 1, axis=1)
    expected = oracle.final_norm(weights, x)[:, 0] @ head.T
    result = oracle.vpt_forward(weights, HEADS, images, deep, head)
    np.testing.assert_allclose(result["logits"], expected, atol=1e-12)


# Scores and mixing


def test_scores_by_hand():
    """Two classes along the axes: the odds are exp((cos a - cos b) / temperature) times the prior's."""
    cls = np.array([[3.0, 4.0]])
    got = oracle.scores(cls, np.array([[2.0, 0.0], [0.0, 5.0]]), np.ones(2, bool), np.array([0.9, 0.1]), 0.5)
    odds = math.exp((0.6 - 0.8) / 0.5) * 9
    np.testing.assert_allclose(got, [[odds / (1 + odds), 1 / (1 + odds)]], rtol=1e-14)


def test_scores_limits_and_invariance(rng):
    cls, prototypes = rng.normal(size=(6, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    priors, known = np.array([0.2, 0.3, 0.0, 0.4, 0.1]), np.ones(CLASSES, bool)
    normal = oracle.scores(cls, prototypes, known, priors, 0.05)
    np.testing.assert_allclose(normal.sum(axis=1), 1, rtol=1e-12)
    assert (normal[:, 2] == 0).all()
    scale = rng.uniform(0.1, 10, size=(CLASSES, 1))
    scaled = oracle.scores(3 * cls, scale * prototypes, known, priors, 0.05)
    np.testing.assert_allclose(scaled, normal, rtol=1e-9)
    np.testing.assert_allclose(oracle.scores(cls, prototypes, known, priors, 1e9) - priors, 0, atol=1e-8)
    cold = oracle.scores(cls, prototypes, known, priors, 1e-5)
    similarity = np.where(priors > 0, oracle.cosine(cls, prototypes), -np.inf)
    np.testing.assert_allclose(cold, np.eye(CLASSES)[similarity.argmax(axis=1)], atol=1e-12)


def test_scores_of_classes_without_prototype(rng):
    cls, prototypes = rng.normal(size=(4, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    priors, known = np.array([0.2, 0.3, 0.0, 0.4, 0.1]), np.array([True, True, True, False, True])
    neutral = oracle.scores(cls, prototypes, known, priors, 0.5)
    zero = oracle.scores(cls, prototypes, known, priors, 0.5, "zero")
    similarity = oracle.cosine(cls, prototypes)
    # The mean runs over the held classes 0, 1, 4; class 2 has a prototype but is not held.
    for got, missing in ((neutral, similarity[:, [0, 1, 4]].mean(axis=1)), (zero, np.zeros(4))):
        np.testing.assert_allclose(got[:, 3] / got[:, 0], np.exp((missing - similarity[:, 0]) / 0.5) * 2)
    # The value of a missing prototype is never read.
    prototypes[3] = 1e6
    np.testing.assert_array_equal(oracle.scores(cls, prototypes, known, priors, 0.5), neutral)
    for nothing_known in (np.zeros(CLASSES, bool), np.array([False, False, True, False, False])):
        got = oracle.scores(cls, prototypes, nothing_known, priors, 0.05)
        np.testing.assert_allclose(got, np.tile(priors, (4, 1)), rtol=1e-12)
    with pytest.raises(ValueError, match="neutral, zero"):
        oracle.scores(cls, prototypes, known, priors, 0.05, "mean")


def test_mix_is_a_matrix_product(rng):
    score, prompts = rng.dirichlet(np.ones(CLASSES), size=4), rng.normal(size=(CLASSES, WIDTH))
    np.testing.assert_allclose(oracle.mix(score, prompts), score @ prompts, rtol=1e-12)


# The forward pass of PEP


def test_pep_without_mixing_is_fedvpt(pep):
    off = oracle.pep_forward(**{**pep, "prototypes": pep["prototypes"][:0]}, layers=())
    vpt = oracle.vpt_forward(pep["weights"], HEADS, pep["pixels"], pep["shared_prompts"], pep["head"])
    np.testing.assert_array_equal(off["logits"], vpt["logits"])
    assert off["tokens"] == vpt["tokens"]


@pytest.mark.parametrize(("mode", "extra"), [("replace", [1, 1, 1, 1]), ("accumulate", [1, 2, 3, 3])])
def test_pep_tokens(pep, mode, extra):
    tokens = oracle.pep_forward(**pep, mode=mode)["tokens"]
    assert tokens == [7] * 4 + [7 + more for more in extra]


def test_pep_equal_class_prompts_ignore_scores(pep):
    """With identical class prompts the mixture is that prompt, whatever the scores."""
    pep["class_prompts"] = np.tile(pep["class_prompts"][:1], (CLASSES, 1))
    first = oracle.pep_forward(**pep)
    second = oracle.pep_forward(**{**pep, "prototypes": -pep["prototypes"]})
    assert not np.allclose(first["scores"], second["scores"])
    np.testing.assert_allclose(first["logits"], second["logits"], atol=1e-10)


def test_pep_replace_is_a_deep_prompt(pep):
    """Block by block with fixed scores: overwrite one slot at blocks 4, 5 and 6, keep it afterwards."""
    result = oracle.pep_forward(**pep)
    x = oracle.insert(oracle.embed(pep["weights"], pep["pixels"]), pep["shared_prompts"])
    for block in range(DEPTH):
        if block in (4, 5, 6):
            x = x if block == 4 else np.delete(x, 1, axis=1)
            x = oracle.insert(x, result["mixed"][block - 4][:, None])
        x = oracle.run_block(pep["weights"], block, HEADS, x)
    np.testing.assert_allclose(oracle.final_norm(pep["weights"], x)[:, 0], result["cls"], atol=1e-12)


def test_pep_bare_scores_do_not_depend_on_prompts(pep):
    first = oracle.pep_forward(**pep, score_source="bare")
    second = oracle.pep_forward(**{**pep, "shared_prompts": pep["shared_prompts"] + 1}, score_source="bare")
    np.testing.assert_array_equal(first["scores"], second["scores"])
    bare = oracle.bare_cls(pep["weights"], HEADS, pep["pixels"])
    np.testing.assert_array_equal(first["score_cls"], bare[4:7])
    assert not np.allclose(first["layer_cls"], bare[4:7])
    prompted = oracle.pep_forward(**pep)
    np.testing.assert_array_equal(prompted["layer_cls"], prompted["score_cls"])


def test_pep_at_block_zero_sees_the_same_cls_for_all_images(pep):
    result = oracle.pep_forward(**pep, layers=(0, 1, 2))
    np.testing.assert_array_equal(result["scores"][0], np.tile(result["scores"][0][:1], (3, 1)))
    assert not np.allclose(result["scores"][1], result["scores"][1][:1])


def test_pep_does_not_mix_across_the_batch(pep):
    together = oracle.pep_forward(**pep)["logits"]
    alone = [oracle.pep_forward(**{**pep, "pixels": image[None]})["logits"][0] for image in pep["pixels"]]
    np.testing.assert_allclose(together, alone, atol=1e-12)


def test_pep_fixed_scores(pep):
    """Fixed scores reproduce the pass; the gradient through the scores is the difference to the full one."""
    result = oracle.pep_forward(**pep)
    fixed = {**pep, "fixed_scores": result["scores"]}
    np.testing.assert_array_equal(oracle.pep_forward(**fixed)["logits"], result["logits"])
    labels = np.array([0, 1, 3])

    def loss(arguments, row):
        arguments = {**arguments, "shared_prompts": np.stack([row, arguments["shared_prompts"][1]])}
        return oracle.cross_entropy(oracle.pep_forward(**arguments)["logits"], labels)

    row = pep["shared_prompts"][0]
    full = oracle.numerical_gradient(lambda x: loss(pep, x), row)
    detached = oracle.numerical_gradient(lambda x: loss(fixed, x), row)
    assert np.abs(full - detached).max() > 1e-4


# Prototypes


def test_centroids_are_class_means(rng):
    cls, labels = rng.normal(size=(3, 7, WIDTH)), np.array([0, 3, 3, 1, 0, 0, 3])
    centroids, mask, counts = oracle.local_centroids(cls, labels, CLASSES)
    np.testing.assert_array_equal(counts, [3, 1, 0, 3, 0])
    np.testing.assert_array_equal(mask, counts > 0)
    np.testing.assert_allclose(centroids[:, 3], (cls[:, 1] + cls[:, 2] + cls[:, 6]) / 3)
    assert (centroids[:, [2, 4]] == 0).all()
    np.testing.assert_allclose(oracle.class_priors(labels, CLASSES), counts / 7)


@pytest.fixture
def uploads(rng):
    """Three clients: class 0 at all, class 1 at the first only, class 2 at none, 3 and 4 at two."""
    counts = np.array([[2, 5, 0, 1, 0], [6, 0, 0, 3, 4], [1, 0, 0, 0, 8]])
    centroids = rng.normal(size=(3, 2, CLASSES, WIDTH)) * (counts > 0)[:, None, :, None]
    return centroids, counts


def test_warm_start(uploads):
    centroids, counts = uploads
    mean, has = oracle.warm_start(centroids, counts)
    literal, has_literal = oracle.warm_start(centroids, counts, "literal")
    np.testing.assert_array_equal(has, [True, True, False, True, True])
    np.testing.assert_array_equal(has, has_literal)
    np.testing.assert_allclose(mean[:, 3], (centroids[0, :, 3] + centroids[1, :, 3]) / 2)
    np.testing.assert_allclose(literal[:, 3], (centroids[0, :, 3] + centroids[1, :, 3]) / 3)
    weighted, _ = oracle.warm_start(centroids, counts, weighting="count")
    np.testing.assert_allclose(weighted[:, 3], (centroids[0, :, 3] + 3 * centroids[1, :, 3]) / 4)
    # Cosines do not see the shrinking, so the scores agree.
    cls, priors = np.ones((1, WIDTH)), np.full(CLASSES, 0.2)
    first, second = (oracle.scores(cls, value[0], has, priors, 0.05) for value in (mean, literal))
    np.testing.assert_allclose(first, second, rtol=1e-9)
    with pytest.raises(ValueError, match="literal"):
        oracle.warm_start(centroids, counts, "literal", "count")


def test_count_weights_equal_the_mean_over_all_images(rng):
    cls, labels = rng.normal(size=(2, 12, WIDTH)), rng.integers(0, 3, size=12)
    parts = [oracle.local_centroids(cls[:, part], labels[part], 3) for part in (slice(0, 3), slice(3, 12))]
    mean, _ = oracle.centroid_mean(np.array([p[0] for p in parts]), np.array([p[2] for p in parts]), "count")
    np.testing.assert_allclose(mean, oracle.local_centroids(cls, labels, 3)[0], atol=1e-12)


def test_momentum_rule(rng, uploads):
    centroids, counts = uploads
    old, has = rng.normal(size=(2, CLASSES, WIDTH)), np.array([True, False, True, True, False])
    new, has_new = oracle.momentum_update(old, has, centroids, counts, 0.9)
    mean, _ = oracle.centroid_mean(centroids, counts)
    np.testing.assert_allclose(new[:, 0], 0.9 * old[:, 0] + 0.1 * mean[:, 0])
    np.testing.assert_array_equal(new[:, 1], mean[:, 1])  # first time: as it is
    np.testing.assert_array_equal(new[:, 2], old[:, 2])  # nobody held it
    assert has_new.all()
    same, has_same = oracle.momentum_update(old, has, centroids[:0], counts[:0], 0.9)
    np.testing.assert_array_equal(same, old)
    np.testing.assert_array_equal(has_same, has)


def test_period_rule(rng, uploads):
    assert [t for t in range(30) if oracle.is_period_end(t, 10)] == [9, 19, 29]
    centroids, counts = uploads
    start, has = rng.normal(size=(2, CLASSES, WIDTH)), np.ones(CLASSES, bool)
    rounds = [[(centroids[t % 3], counts[t % 3])] for t in range(5)]
    history = oracle.prototype_history(start, has, rounds, period=2)
    assert len(history) == 6
    changed = [t for t in range(1, 6) if not np.array_equal(history[t][0], history[t - 1][0])]
    assert changed == [2, 4]  # after rounds 1 and 3; the fifth round stays in the buffer
    second, _ = oracle.momentum_update(*history[2], centroids[[2, 0]], counts[[2, 0]])
    np.testing.assert_array_equal(history[4][0], second)


# Averaging and SGD


def test_fedavg(rng):
    states = [{"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(3)]
    uniform, equal = oracle.fedavg(states), oracle.fedavg(states, [7, 7, 7])
    weighted = oracle.fedavg(states, [1, 2, 5])
    for name in states[0]:
        values = np.array([state[name] for state in states])
        np.testing.assert_allclose(uniform[name], values.mean(axis=0))
        np.testing.assert_allclose(equal[name], uniform[name])
        np.testing.assert_allclose(weighted[name], np.average(values, axis=0, weights=[1, 2, 5]))
        np.testing.assert_allclose(oracle.fedavg([states[0]] * 4)[name], states[0][name], rtol=1e-14)


@pytest.mark.parametrize("clip", [None, 1.0, 1e6])
def test_sgd_equals_torch(rng, clip):
    values = {"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)}
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    optimiser = torch.optim.SGD(tensors.values(), lr=0.1, momentum=0.9, weight_decay=0.01)
    buffers = None
    for _ in range(4):
        gradients = {name: rng.normal(size=value.shape) for name, value in values.items()}
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name])
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(tensors.values(), clip)
        optimiser.step()
        values, buffers = oracle.sgd_step(values, gradients, buffers, 0.1, 0.9, 0.01, clip)
        for name, tensor in tensors.items():
            np.testing.assert_allclose(values[name], tensor.detach(), rtol=1e-13)


def test_decay_mask_leaves_rows_alone():
    values = {"prompts": np.ones((3, 2)), "head": np.ones(2)}
    zero = {name: np.zeros_like(value) for name, value in values.items()}
    mask = {"prompts": np.array([[1.0], [0.0], [1.0]])}
    new, _ = oracle.sgd_step(values, zero, None, 0.5, 0.9, 0.1, decay_mask=mask)
    np.testing.assert_allclose(new["prompts"][:, 0], [0.95, 1.0, 0.95])
    np.testing.assert_allclose(new["head"], 0.95)


def test_local_training_equals_torch(rng):
    """Softmax regression: numerical gradients against automatic ones."""
    inputs, labels = rng.normal(size=(6, 4)), rng.integers(0, 3, size=6)
    batches = [np.arange(4), np.arange(4, 6), np.arange(4)]
    head = rng.normal(size=(3, 4))
    options = {"learning_rate": 0.3, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5}

    def loss(state, batch):
        return oracle.cross_entropy(inputs[batch] @ state["head"].T, labels[batch])

    ours = oracle.local_training(loss, {"head": head}, batches, **options)["head"]
    tensor = torch.tensor(head, requires_grad=True)
    optimiser = torch.optim.SGD([tensor], lr=0.3, momentum=0.9, weight_decay=0.01)
    for batch in batches:
        optimiser.zero_grad()
        logits = torch.tensor(inputs[batch]) @ tensor.T
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels[batch])).backward()
        torch.nn.utils.clip_grad_norm_([tensor], 0.5)
        optimiser.step()
    np.testing.assert_allclose(ours, tensor.detach(), atol=1e-9)


# SGPT


def test_sgpt_selection(rng):
    keys = np.eye(3)
    queries = np.array([[1.0, 0.9, 0.0], [0.0, 0.0, 2.0], [1.0, 0.9, 0.1]])
    empty, used = np.zeros(3), np.array([100, 1, 1])
    np.testing.assert_array_equal(oracle.sgpt_select(queries, keys, empty, training=True), [0, 2, 0])
    # Group 0 is used up: the factor 100/102 against 1/102 sends its samples to the second-best key.
    np.testing.assert_array_equal(oracle.sgpt_select(queries, keys, used, training=True), [1, 2, 1])
    np.testing.assert_array_equal(oracle.sgpt_select(queries, keys, used), [0, 2, 0])
    majority = oracle.sgpt_select(queries, keys, used, training=True, majority=True)
    np.testing.assert_array_equal(majority, [1, 1, 1])
    np.testing.assert_array_equal(oracle.sgpt_select(queries, keys, used, majority=True), [0, 2, 0])
    plain, scaled = oracle.sgpt_distances(queries, keys), oracle.sgpt_distances(queries, keys, used)
    np.testing.assert_allclose(scaled, plain * (used / 102 + 5e-4))
    expected = -np.mean([1 / math.sqrt(1.81), 1.0, 1 / math.sqrt(1.82)])
    assert oracle.sgpt_key_loss(queries, keys, np.array([0, 2, 0])) == pytest.approx(expected)


def test_sgpt_query(weights, images):
    query = oracle.sgpt_query(weights, HEADS, images)
    np.testing.assert_allclose(np.linalg.norm(query, axis=1), 1)
    assert (query >= 0).all()
    last = oracle.sgpt_query(weights, HEADS, images, DEPTH - 1)
    np.testing.assert_array_equal(last, query)
    assert not np.allclose(oracle.sgpt_query(weights, HEADS, images, 5), query)


def test_sgpt_forward(rng, weights, images):
    shared, groups = rng.normal(size=(4, 1, WIDTH)), rng.normal(size=(3, 6, WIDTH))
    head, chosen = rng.normal(size=(CLASSES, WIDTH)), np.array([5, 0, 5])
    first = oracle.sgpt_forward(weights, HEADS, images, shared, groups, head)
    second = oracle.sgpt_forward(weights, HEADS, images, shared, groups, head, selected=chosen)
    assert first["tokens"] == [6, 7, 8, 9, 9, 9, 9, 9]
    assert second["tokens"] == [6, 7, 8, 9, 10, 11, 12, 12]
    x = oracle.embed(weights, images)
    for block in range(DEPTH):  # the same with the new tokens appended at the end
        if block < 4:
            x = np.concatenate([x, np.stack([shared[block]] * 3)], axis=1)
        elif block < 7:
            x = np.concatenate([x, groups[block - 4][chosen][:, None]], axis=1)
        x = oracle.run_block(weights, block, HEADS, x)
    x = oracle.final_norm(weights, x)
    np.testing.assert_allclose(second["features"], x[:, [0, -3, -2, -1]].mean(axis=1), atol=1e-10)
    # Groups that nobody selected do not matter; in stage 1 none does.
    groups[:, 1:5] += 1
    again = oracle.sgpt_forward(weights, HEADS, images, shared, groups, head, selected=chosen)
    np.testing.assert_array_equal(again["logits"], second["logits"])
    none = oracle.sgpt_forward(weights, HEADS, images, shared, groups + 1, head)
    np.testing.assert_array_equal(none["logits"], first["logits"])


def test_sgpt_aggregate(rng):
    def state():
        return {
            "keys": rng.normal(size=(2, WIDTH)),
            "groups": rng.normal(size=(3, 2, WIDTH)),
            "shared": rng.normal(size=(4, WIDTH)),
            "head": rng.normal(size=(CLASSES, WIDTH)),
        }

    old, clients = state(), [state(), state()]
    counts = np.array([[40, 20], [20, 30]])  # totals 60 and 50: the second is not above the threshold
    new, counter = oracle.sgpt_aggregate(old, clients, [1, 3], counts, np.array([1, 2]))
    mean = {name: (clients[0][name] + 3 * clients[1][name]) / 4 for name in old}
    np.testing.assert_allclose(new["head"], mean["head"])
    np.testing.assert_allclose(new["shared"], mean["shared"])
    np.testing.assert_allclose(new["groups"], (old["groups"] + mean["groups"]) / 2)
    first = (2 * clients[0]["keys"][0] + clients[1]["keys"][0]) / 3
    second = (clients[0]["keys"][1] + clients[1]["keys"][1]) / 2
    np.testing.assert_allclose(new["keys"], (old["keys"] + [first, second]) / 2)
    np.testing.assert_array_equal(counter, [61, 52])


# FedPR


def test_fedpr_projector(rng):
    prompts, extra = rng.normal(size=(3, 30)), rng.normal(size=(40, 30))
    for normalise in (True, False):
        projector = oracle.fedpr_projector(prompts, 0.8, extra, normalise)
        violations = oracle.fedpr_violations(projector, prompts, 0.8, normalise)
        assert max(violations.values()) < 1e-10, violations
        only_rows = oracle.fedpr_projector(prompts, None, None, normalise)
        assert max(oracle.fedpr_violations(only_rows, prompts, None, normalise).values()) < 1e-10
    update = rng.normal(size=(3, 30)) @ projector
    assert np.abs(update @ prompts.T).max() < 1e-10
    # Six directions go: three rows and the first three extra ones.
    assert np.abs(projector @ extra[:3].T).max() < 1e-10
    assert np.abs(projector @ extra[3]).max() > 0.1
    assert oracle.fedpr_dropped(768, 0.8) == 153
    assert oracle.fedpr_dropped(10, 0.8) == 2
    with pytest.raises(ValueError, match="only 4 given"):
        oracle.fedpr_projector(prompts, 0.8, extra[:1])


def test_fedpr_violations_can_fail(rng):
    prompts = rng.normal(size=(3, 30))
    wrong = oracle.fedpr_projector(rng.normal(size=(3, 30)), None, normalise=False)
    assert oracle.fedpr_violations(wrong, prompts, None, False)["row_space"] > 1e-3
    assert oracle.fedpr_violations(wrong, prompts, 0.8, False)["rank"] > 1
    assert oracle.fedpr_violations(2 * wrong, prompts, None, False)["idempotence"] > 0.1


# pFedPG


@pytest.fixture
def generator(rng):
    return {
        "basis": rng.normal(size=(4, 6)),
        "query": rng.normal(size=(6, 3)),
        "key": rng.normal(size=(6, 3)),
        "value": rng.normal(size=(6, 5)),
        "output": rng.normal(size=(5, 6)),
    }


@pytest.mark.parametrize("shape", [(6,), (4, 6)], ids=["vector", "matrix"])
def test_pfedpg_gradient_is_numerical(rng, generator, shape):
    descriptor, upstream = rng.normal(size=shape), rng.normal(size=(4, 6))
    analytic = oracle.pfedpg_gradient(generator, descriptor, upstream)
    everything = {**generator, "descriptor": descriptor}
    for name, value in everything.items():

        def objective(candidate, name=name):
            changed = {**everything, name: candidate}
            return float((upstream * oracle.pfedpg_generate(changed, changed["descriptor"])).sum())

        numerical = oracle.numerical_gradient(objective, value)
        np.testing.assert_allclose(analytic[name], numerical, rtol=1e-7, atol=1e-8)


def test_pfedpg_server_step_approaches_the_adapted_prompts(rng, generator):
    descriptors = rng.normal(size=(5, 6))
    starts = {client: oracle.pfedpg_generate(generator, descriptors[client]) for client in (1, 3)}
    finals = {client: start + 0.1 * rng.normal(size=(4, 6)) for client, start in starts.items()}
    gradients, d_descriptors = oracle.pfedpg_server_gradient(generator, descriptors, finals)
    assert (d_descriptors[[0, 2, 4]] == 0).all()
    moved = {name: value - 1e-4 * gradients[name] for name, value in generator.items()}

    def distance(parts, vectors):
        return sum(np.sum((oracle.pfedpg_generate(parts, vectors[c]) - finals[c]) ** 2) for c in finals)

    before = distance(generator, descriptors)
    assert distance(moved, descriptors) < before
    assert distance(generator, descriptors - 1e-4 * d_descriptors) < before
    away = {name: value + 1e-4 * gradients[name] for name, value in generator.items()}
    assert distance(away, descriptors) > before


def test_pfedpg_single_basis_row_ignores_the_descriptor(rng, generator):
    generator["basis"] = generator["basis"][:1]
    first, second = (oracle.pfedpg_generate(generator, rng.normal(size=6)) for _ in range(2))
    np.testing.assert_allclose(first, second)


# Communication


@pytest.mark.parametrize(
    ("arguments", "down", "up"),
    [
        (("head",), 76_800, 76_800),
        (("fedvpt",), 77_568, 77_568),
        (("fedvpt_deep",), 86_016, 86_016),
        (("fedpr",), 84_480, 84_480),
        (("sgpt",), 141_312, 141_312),
        (("pfedpg",), 7_680, 7_680),
        (("ppt",), 76_800, 76_800),
        (("pep",), 384_768, 384_768),
        (("head", 200), 153_600, 153_600),
        (("fedvpt", 200), 154_368, 154_368),
        (("fedvpt_deep", 200), 162_816, 162_816),
        (("fedpr", 200), 161_280, 161_280),
        (("sgpt", 200), 218_112, 218_112),
        (("pep", 200), 768_768, 768_768),
        (("head", 10), 7_680, 7_680),
        (("fedvpt", 10), 8_448, 8_448),
        (("fedvpt_deep", 10), 16_896, 16_896),
        (("fedpr", 10), 15_360, 15_360),
        (("sgpt", 10), 72_192, 72_192),
        (("pep", 10), 39_168, 39_168),
        (("head", 1203), 923_904, 923_904),
        (("fedvpt", 1203), 924_672, 924_672),
        (("fedvpt_deep", 1203), 933_120, 933_120),
        (("fedpr", 1203), 931_584, 931_584),
        (("sgpt", 1203), 988_416, 988_416),
        (("pep", 1203), 4_620_288, 4_620_288),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_communication_table(arguments, down, up):
    result = oracle.communication(*arguments)
    assert (result["down"], result["up"]) == (down, up)
    counts = 20 if arguments[0] == "sgpt" else 0
    assert (result["down_counts"], result["up_counts"]) == (counts, counts)


def test_communication_of_sparse_pep_and_totals():
    sparse = oracle.communication("pep", held_classes=10)
    assert (sparse["down"], sparse["up"]) == (384_768, 177_408)
    assert oracle.communication("pep", held_classes=10, sparse_prompts=True)["up"] == 108_288
    assert oracle.communication("pep", held_classes=58, sparse_prompts=True)["up"] == 255_744
    assert 12 * oracle.communication("pep")["down"] == 4_617_216  # the paper's 4.6 million in 12 rounds
    assert 90 * oracle.communication("fedvpt_deep", depth=11)["down"] == 7_672_320  # its 7.67 million
    assert 90 * oracle.communication("sgpt", shared=8)["down"] == 12_994_560  # its 13.0 million

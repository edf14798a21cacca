"""Every method against the numpy oracle: forward passes, gradients, local training, server steps."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from support.tiny_federation import Images, added, random_vit

from fedcue.methods.client import Client
from fedcue.methods.fedpr import FedPR
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.fedvpt_deep import FedVPTDeep
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep_variants import PEPVariants
from fedcue.methods.pfedpg import GENERATOR, PFedPG, generate, gradients
from fedcue.methods.sgpt import SGPT
from fedcue.model.vit import Architecture
from fedcue.rng import torch_rng
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.types import ServerState, Sizes, Update

SHAPE = Architecture(width=16, depth=8, heads=2, patch=4, image_size=8, hidden=16)
SMALL = Architecture(width=8, depth=3, heads=2, patch=4, image_size=8, hidden=8)
LABELS = np.array([0, 2, 2, 0, 2])
CLASSES = 4
TRAINED = ("head", "shared_prompts", "class_prompts")
"""What PEP trains."""


class Bench:
    """One client with five images, its method in float64, and the same numbers for the oracle."""

    def __init__(self, method, shape=SHAPE, **training):
        self.method, self.shape = method, shape
        self.model = random_vit(shape)
        self.model.backbone.double()
        self.weights = {name: t.numpy() for name, t in self.model.backbone.state_dict().items()}
        self.sizes = Sizes(CLASSES, shape.width, shape.depth, shape.patch, 3)
        self.pixels = np.random.default_rng(3).normal(size=(len(LABELS), 3, 8, 8))
        self.priors = oracle.class_priors(LABELS, CLASSES)
        blocks = method.first_block(self.sizes), method.bare_blocks(self.sizes)
        frozen = Images(self.model, torch.from_numpy(self.pixels), *blocks).view(np.arange(len(LABELS)))
        log_priors = torch.from_numpy(self.priors).log()
        self.samples = Samples(frozen, torch.from_numpy(LABELS), log_priors)
        self.training = Training(batch_size=50, **training)

    def client(self, finished_rounds=0):
        """Return the client at work in a round."""
        table, generator = self.method.table(self.sizes), torch.Generator()
        return Client(
            0,
            self.samples,
            self.samples.log_priors,
            table,
            self.sizes,
            self.training,
            generator,
            seed=0,
            round=finished_rounds,
        )

    def random(self, *size, seed=0):
        """Return random prompts, large enough to matter."""
        return np.random.default_rng(seed).normal(size=size) * 0.3

    def batch(self):
        return next(iter(self.samples.batches(50)))

    def logits(self, tensors):
        return self.method.logits(tensors, self.batch()).numpy()

    def oracle(self, forward, *arguments, **options):
        return forward(self.weights, self.shape.heads, self.pixels, *arguments, **options)


def as_torch(tensors):
    return {name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}


def close(found, expected, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=tolerance, rtol=tolerance)


# Forward passes


def test_head_tuning():
    bench = Bench(HeadTuning())
    head = bench.random(CLASSES, 16)
    expected = bench.oracle(oracle.vpt_forward, np.zeros((0, 16)), head)["logits"]
    close(bench.logits(as_torch({"head": head})), expected)


@pytest.mark.parametrize("method", [FedVPT(prompts=3), FedPR(prompts=3)])
def test_shallow_prompts(method):
    bench = Bench(method)
    head, bias, prompts = bench.random(CLASSES, 16), bench.random(CLASSES), bench.random(3, 16, seed=1)
    expected = bench.oracle(oracle.vpt_forward, prompts, head, head_bias=bias)["logits"]
    close(bench.logits(as_torch({"head": head, "head_bias": bias, "shared_prompts": prompts})), expected)


@pytest.mark.parametrize("blocks", [None, 5])
def test_deep_prompts(blocks):
    bench = Bench(FedVPTDeep(prompts=2, blocks=blocks))
    head, prompts = bench.random(CLASSES, 16), bench.random(blocks or 8, 2, 16, seed=1)
    expected = bench.oracle(oracle.vpt_forward, prompts, head, blocks=range(blocks or 8))["logits"]
    close(bench.logits(as_torch({"head": head, "deep_prompts": prompts})), expected)


def pep_tensors(bench, layers):
    """Return PEP's download; one of the client's classes and one other have no prototype."""
    width = bench.shape.width
    return {
        "head": bench.random(CLASSES, width),
        "shared_prompts": bench.random(2, width, seed=1),
        "class_prompts": bench.random(CLASSES, width, seed=2),
        "prototypes": bench.random(layers, CLASSES, width, seed=3) + 0.3,
        "has_prototype": np.array([True, True, False, False]),
    }


def pep_oracle(bench, tensors, **options):
    names = ("shared_prompts", "class_prompts", "prototypes", "has_prototype")
    arguments = (*(tensors[name] for name in names), bench.priors, tensors["head"])
    return bench.oracle(oracle.pep_forward, *arguments, **options)


@pytest.mark.parametrize("mode", ["replace", "accumulate"])
@pytest.mark.parametrize("source", ["prompted", "bare"])
@pytest.mark.parametrize(("missing", "layers"), [("neutral", (4, 5, 6)), ("zero", (0, 3))])
def test_pep(mode, source, missing, layers):
    options = {"temperature": 0.2, "score_source": source, "layers": layers}
    bench = Bench(PEPVariants(prompts=2, ccmp_mode=mode, zero_prototype=missing, **options))
    tensors = pep_tensors(bench, len(layers))
    expected = pep_oracle(bench, tensors, mode=mode, zero_proto=missing, **options)
    mine = bench.method.personal(bench.client(), as_torch(tensors))
    close(bench.logits(mine), expected["logits"])
    weights = bench.method.inspect(mine, bench.batch())["mixing_weights"]
    close(weights.transpose(0, 1), expected["scores"])


def sgpt_bench(**options):
    bench = Bench(SGPT(groups=5, prompts=2, **options))
    tensors = {
        "head": bench.random(CLASSES, 16),
        "shared_prompts": bench.random(5, 16, seed=1),
        "group_prompts": bench.random(3, 5, 16, seed=2),
        "keys": bench.random(5, 16, seed=3),
        "counts": np.array([40, 0, 3, 90, 7]),
    }
    shared = np.split(tensors["shared_prompts"], [2, 3, 4])
    return bench, tensors, shared


@pytest.mark.parametrize("block", [None, 6])
def test_sgpt_in_testing(block):
    bench, tensors, shared = sgpt_bench(query_block=block)
    queries = bench.oracle(oracle.sgpt_query, last_block=block and block - 1)
    selected = oracle.sgpt_select(queries, tensors["keys"], tensors["counts"], training=False)
    expected = bench.oracle(
        oracle.sgpt_forward, shared, tensors["group_prompts"], tensors["head"], selected=selected
    )
    close(bench.logits(as_torch(tensors)), expected["logits"])
    groups = bench.method.inspect(as_torch(tensors), bench.batch())["groups"]
    assert groups.argmax(1).tolist() == selected.tolist()


@pytest.mark.parametrize("majority", [False, True])
def test_sgpt_in_both_stages_of_training(majority):
    bench, tensors, shared = sgpt_bench(batch_majority=majority)
    mine, counts = as_torch(tensors), torch.zeros(5, dtype=torch.int64)
    first = bench.oracle(oracle.sgpt_forward, shared, tensors["group_prompts"], tensors["head"])
    found = bench.method._shared_loss()(mine, bench.batch())
    close(found, oracle.cross_entropy(first["logits"], LABELS))
    queries = bench.oracle(oracle.sgpt_query)
    selected = oracle.sgpt_select(queries, tensors["keys"], tensors["counts"], True, majority)
    second = bench.oracle(
        oracle.sgpt_forward, shared, tensors["group_prompts"], tensors["head"], selected=selected
    )
    found = bench.method._group_loss(mine, counts)(mine, bench.batch())
    key_term = oracle.sgpt_key_loss(queries, tensors["keys"], selected)
    close(found, oracle.cross_entropy(second["logits"], LABELS) + key_term)
    assert counts.tolist() == np.bincount(selected, minlength=5).tolist()


# Gradients and local training


@pytest.mark.parametrize("detach", [False, True])
def test_gradients_of_pep(detach):
    bench = Bench(PEPVariants(prompts=2, layers=(1, 2), temperature=0.3, detach_scores=detach), SMALL)
    tensors = pep_tensors(bench, 2)
    fixed = pep_oracle(bench, tensors, layers=(1, 2), temperature=0.3)["scores"] if detach else None

    def loss(name, value):
        changed = {**tensors, name: value}
        out = pep_oracle(bench, changed, layers=(1, 2), temperature=0.3, fixed_scores=fixed)
        return oracle.cross_entropy(out["logits"], LABELS)

    mine = bench.method.personal(bench.client(), as_torch(tensors))
    leaves = {name: mine[name].clone().requires_grad_() for name in TRAINED}
    bench.method.loss(mine)(leaves, bench.batch()).backward()
    held = mine["classes"].tolist()
    for name, leaf in leaves.items():
        expected = oracle.numerical_gradient(lambda value, name=name: loss(name, value), tensors[name])
        close(leaf.grad, expected[held] if name == "class_prompts" else expected, 1e-7)


OPTIONS = {"momentum": 0.9, "weight_decay": 0.05, "clip_norm": 0.2}


def test_local_training_of_fedvpt():
    bench = Bench(FedVPT(prompts=2), SMALL, lr=0.1, epochs=3, **OPTIONS)
    start = {"head": bench.random(CLASSES, 8), "shared_prompts": bench.random(2, 8, seed=1)}

    def loss(state, _):
        out = bench.oracle(oracle.vpt_forward, state["shared_prompts"], state["head"])
        return oracle.cross_entropy(out["logits"], LABELS)

    expected = oracle.local_training(loss, start, [None] * 3, learning_rate=0.1, **OPTIONS)
    update = bench.method.update(bench.client(), as_torch(start))
    for name, tensor in update.tensors.items():
        close(tensor, expected[name], 1e-7)


def test_a_visit_of_pep():
    bench = Bench(PEPVariants(prompts=2, layers=(1, 2), temperature=0.3), SMALL, lr=0.1, epochs=2, **OPTIONS)
    tensors = pep_tensors(bench, 2)
    start = {name: tensors[name] for name in TRAINED}

    def loss(state, _):
        out = pep_oracle(bench, {**tensors, **state}, layers=(1, 2), temperature=0.3)
        return oracle.cross_entropy(out["logits"], LABELS)

    mask = {"class_prompts": (bench.priors > 0)[:, None]}
    expected = oracle.local_training(
        loss, start, [None] * 2, learning_rate=0.1 * 0.998, decay_mask=mask, **OPTIONS
    )
    cls = pep_oracle(bench, tensors, layers=(1, 2), temperature=0.3)["layer_cls"]
    centroids, holds, _ = oracle.local_centroids(cls, LABELS, CLASSES)
    update = bench.method.update(bench.client(1), as_torch(tensors))
    for name, value in expected.items():
        close(update.tensors[name], value, 1e-7)
    close(update.tensors["centroids"], centroids, 1e-6)
    assert update.tensors["holds"].tolist() == holds.tolist()


def fixed_directions(width, rank, ratio):
    """Return the rows that fill up what FedPR drops, as drawn for seed 0."""
    count = oracle.fedpr_dropped(width, ratio)
    drawn = torch.randn(count, width, generator=torch_rng(0, "fedpr"), dtype=torch.float64)
    return drawn[: max(count - rank, 0)].numpy()


@pytest.mark.parametrize("ratio", [0.8, 0.3, None])
@pytest.mark.parametrize("normalise", [True, False])
def test_projector_of_fedpr(ratio, normalise):
    prompts = np.random.default_rng(0).normal(size=(3, 20))
    prompts[2] = prompts[0] - prompts[1]  # rank 2
    method = FedPR(ratio=ratio, normalise_projector=normalise)
    step = method.step_filter(torch.from_numpy(prompts), 0)
    found = step("shared_prompts", torch.eye(20, dtype=torch.float64)).numpy()
    directions = None if ratio is None else fixed_directions(20, 2, ratio)
    close(found, oracle.fedpr_projector(prompts, ratio, directions, normalise))
    assert max(oracle.fedpr_violations(found, prompts, ratio, normalise).values()) < 1e-9


def test_a_visit_of_fedpr():
    bench = Bench(FedPR(prompts=2, ratio=0.5), SMALL, lr=0.1, epochs=3, **OPTIONS)
    start = {"head": bench.random(CLASSES, 8), "shared_prompts": bench.random(2, 8, seed=1)}
    projector = oracle.fedpr_projector(start["shared_prompts"], 0.5, fixed_directions(8, 2, 0.5))

    def loss(state):
        out = bench.oracle(oracle.vpt_forward, state["shared_prompts"], state["head"])
        return oracle.cross_entropy(out["logits"], LABELS)

    state, buffers = dict(start), None
    for _ in range(3):
        slopes = {
            name: oracle.numerical_gradient(lambda x, s=state, n=name: loss({**s, n: x}), state[name])
            for name in state
        }
        moved, buffers = oracle.sgd_step(state, slopes, buffers, 0.1, **OPTIONS)
        change = (moved["shared_prompts"] - state["shared_prompts"]) @ projector
        state = {**moved, "shared_prompts": state["shared_prompts"] + change}
    update = bench.method.update(bench.client(), as_torch(start))
    for name, tensor in update.tensors.items():
        close(tensor, state[name], 1e-7)


# At the server


@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_averaging(weighting):
    states = [{"head": np.random.default_rng(i).normal(size=(4, 8))} for i in range(3)]
    sizes = [3, 10, 1]
    updates = [Update(i, sizes[i], as_torch(state)) for i, state in enumerate(states)]
    method, sizes_ = HeadTuning(weighting=weighting), Sizes(4, 8, 3, 4, 3)
    found = method.aggregate(ServerState(0, {}), added(method, sizes_, updates))
    expected = oracle.fedavg(states, sizes if weighting == "size" else None)
    close(found.tensors["head"], expected["head"], 1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "count"])
def test_prototypes_over_two_periods(weighting):
    generator = np.random.default_rng(0)
    method = PEPVariants(prompts=1, layers=(1, 2), period=2, momentum=0.3, prototype_weight=weighting)
    task = Sizes(CLASSES, 8, 3, 4, 6)
    counts = generator.integers(0, 3, size=(5, 2, CLASSES))  # warm-up and four rounds of two clients
    counts[0, :, 3] = 0  # nobody has class 3 at first
    centroids = generator.normal(size=(5, 2, 2, CLASSES, 8)) * (counts > 0)[:, :, None, :, None]

    def reply(place, client):
        own = counts[place, client]
        sums = centroids[place, client] * (own[:, None] if weighting == "count" else 1)
        holds = own if weighting == "count" else own > 0
        shared = {name: torch.zeros(1) for name in TRAINED}
        return Update(client, 9, {**shared, **as_torch({"centroids": sums, "holds": holds})})

    first = oracle.warm_start(centroids[0], counts[0], weighting=weighting)
    uploads = [list(zip(centroids[place], counts[place], strict=True)) for place in range(1, 5)]
    history = oracle.prototype_history(*first, uploads, period=2, momentum=0.3, weighting=weighting)
    state = method.start(task, 0, added(method, task, [reply(0, client) for client in range(2)]))
    for place, (prototypes, known) in enumerate(history, 1):
        close(state.tensors["prototypes"], prototypes, 1e-6)
        assert state.tensors["has_prototype"].tolist() == known.tolist()
        if place < 5:
            state = method.aggregate(
                state, added(method, task, [reply(place, client) for client in range(2)])
            )


def test_server_of_sgpt():
    generator = np.random.default_rng(0)
    names = {"head": (4, 8), "shared_prompts": (4, 8), "group_prompts": (3, 5, 8), "keys": (5, 8)}
    old = {name: generator.normal(size=size) for name, size in names.items()}
    states = [{name: generator.normal(size=size) for name, size in names.items()} for _ in range(3)]
    counts, counter = generator.integers(0, 60, size=(3, 5)), generator.integers(0, 99, size=5)
    counts[:, 1] = [20, 30, 0]  # 50 choices are still rare
    sizes = [5, 7, 1]
    renamed = [{"groups" if n == "group_prompts" else n: v for n, v in s.items()} for s in (old, *states)]
    expected, total = oracle.sgpt_aggregate(renamed[0], renamed[1:], sizes, counts, counter, 0.5, 0.2)
    method = SGPT(groups=5, weighting="size", key_momentum=0.2)
    updates = [
        Update(i, sizes[i], as_torch({**state, "counts": counts[i]})) for i, state in enumerate(states)
    ]
    start = {name: tensor.float() for name, tensor in as_torch(old).items()}
    before = ServerState(0, {**start, "counts": torch.from_numpy(counter)})
    found = method.aggregate(before, added(method, Sizes(4, 8, 8, 4, 3), updates)).tensors
    for name in names:
        close(found[name], expected["groups" if name == "group_prompts" else name], 1e-6)
    assert found["counts"].tolist() == total.tolist()


@pytest.mark.parametrize("vectors", ["one", "prompts"])
def test_generator_of_pfedpg_and_its_server_step(vectors):
    method = PFedPG(
        prompts=3, descriptor_vectors=vectors, server_optimiser="sgd", server_lr=0.1, server_weight_decay=0.0
    )
    task = Sizes(CLASSES, 8, 3, 4, 4)
    state = method.start(task, 0, added(method, task, []))
    tensors = method.admit(state.tensors, torch.tensor([7, 2, 5]))
    tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
    names = dict(zip(GENERATOR, ("basis", "query", "key", "value", "output"), strict=True))
    theirs = {other: tensors[name].numpy() for name, other in names.items()}
    descriptors = tensors["descriptors"].numpy()
    descriptors = descriptors[:, 0] if vectors == "one" else descriptors
    initial = [oracle.pfedpg_generate(theirs, descriptor) for descriptor in descriptors]
    close(generate(tensors), initial)
    close(method.download(ServerState(0, tensors), 2, task, 0)["prompts"], initial[1])

    finals = {row: initial[row] + np.random.default_rng(row).normal(size=(3, 8)) for row in (2, 0)}
    expected, of_descriptors = oracle.pfedpg_server_gradient(theirs, descriptors, finals)
    clients = {0: 7, 2: 5}
    updates = [
        Update(clients[row], 9, as_torch({"prompt_change": final - initial[row]}))
        for row, final in finals.items()
    ]
    after = method.aggregate(ServerState(0, tensors), added(method, task, updates)).tensors
    for name, other in names.items():
        close(after[name], theirs[other] - 0.1 * expected[other])
    close(after["descriptors"].numpy().reshape(descriptors.shape), descriptors - 0.1 * of_descriptors)


def test_gradients_of_pfedpg_are_those_of_finite_differences():
    generator = np.random.default_rng(0)
    values = {name: generator.normal(size=(4, 4)) for name in GENERATOR}
    values["basis"], values["descriptors"] = generator.normal(size=(3, 4)), generator.normal(size=(2, 1, 4))
    upstream = generator.normal(size=(2, 3, 4))

    def weighted(name, value):
        return float((generate(as_torch({**values, name: value})).numpy() * upstream).sum())

    for name, gradient in gradients(as_torch(values), torch.from_numpy(upstream)).items():
        expected = oracle.numerical_gradient(lambda value, name=name: weighted(name, value), values[name])
        close(gradient, expected, 1e-7)

"""The paper's propositions on random instances: quadratic bound, posterior mean, convergence.

The scores and the mixing are those of the oracle, so a wrong score or mixture fails here as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from golden import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
SOME = settings(max_examples=40, deadline=None)
FEW = settings(max_examples=5, deadline=None, derandomize=True)  # noisy runs: always the same seeds
RADIUS = 2.0  # the set of prompts is the ball of this radius: compact and convex


def in_ball(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random vectors inside the ball of prompts."""
    vectors = rng.normal(size=shape)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return RADIUS * rng.uniform(0, 1, size=lengths.shape) * vectors / lengths


def random_priors(rng: np.random.Generator, clients: int, classes: int) -> np.ndarray:
    """Label distributions ``[K, C]``; some classes are missing at some clients."""
    priors = rng.dirichlet(np.full(classes, 0.5), size=clients)
    priors[priors < 0.05] = 0.0
    return priors / priors.sum(axis=1, keepdims=True)


# Proposition 1: the prior mixture and the quadratic bound


@dataclass
class Quadratics:
    """Losses ``offset + (p - optimum)^T hessian (p - optimum) / 2`` per client and class.

    All clients share the optimum of a class (assumption 3); the curvature of class ``c`` is at most
    ``smoothness[c]`` and reaches it at the first client.
    """

    priors: np.ndarray  # [K, C]
    optima: np.ndarray  # [C, d]
    prompts: np.ndarray  # [C, d], the current class prompts
    hessians: np.ndarray  # [K, C, d, d]
    offsets: np.ndarray  # [K, C]
    smoothness: np.ndarray  # [C]

    def loss(self, client: int, c: int, prompt: np.ndarray) -> float:
        difference = prompt - self.optima[c]
        return float(self.offsets[client, c] + difference @ self.hessians[client, c] @ difference / 2)

    def objective(self, mixed: np.ndarray) -> float:
        """The global loss ``f`` at one prompt per client, ``mixed [K, d]``."""
        clients, classes = self.priors.shape
        terms = [
            self.priors[k, c] * self.loss(k, c, mixed[k]) for k in range(clients) for c in range(classes)
        ]
        return sum(terms) / clients

    def constant(self) -> float:
        """The paper's bound of the first-order terms: the diameter of the set times the sum, over the
        coordinates, of the diameter of the gradient's image (``2 * RADIUS * norm of the Hessian's row``).
        """
        clients, classes = self.priors.shape
        total = 0.0
        for k in range(clients):
            for c in range(classes):
                image = sum(2 * RADIUS * np.linalg.norm(row) for row in self.hessians[k, c])
                total += self.priors[k, c] * 2 * RADIUS * image
        return total / clients

    def bound(self, mixed: np.ndarray, prompts: np.ndarray, constant: float) -> float:
        """The upper bound of the proposition at one prompt per client."""
        clients, classes = self.priors.shape
        total = 0.0
        for k in range(clients):
            for c in range(classes):
                distance = float(np.sum((mixed[k] - prompts[c]) ** 2))
                value = self.loss(k, c, prompts[c]) + self.smoothness.max() / 2 * distance
                total += self.priors[k, c] * value
        return total / clients + constant


@st.composite
def quadratics(draw: st.DrawFn) -> tuple[Quadratics, np.random.Generator]:
    """Random losses that satisfy the assumptions of proposition 1, and a generator for more randomness."""
    rng = np.random.default_rng(draw(SEEDS))
    clients, classes, width = draw(st.integers(1, 4)), draw(st.integers(2, 5)), draw(st.integers(1, 4))
    smoothness = rng.uniform(0.5, 5, size=classes)
    hessians = np.zeros((clients, classes, width, width))
    for k in range(clients):
        for c in range(classes):
            basis, _ = np.linalg.qr(rng.normal(size=(width, width)))
            curvature = smoothness[c] * rng.uniform(0, 1, size=width)
            if k == 0:
                curvature[0] = smoothness[c]
            hessians[k, c] = basis @ np.diag(curvature) @ basis.T
    instance = Quadratics(
        priors=random_priors(rng, clients, classes),
        optima=in_ball(rng, classes, width),
        prompts=in_ball(rng, classes, width),
        hessians=hessians,
        offsets=rng.normal(size=(clients, classes)),
        smoothness=smoothness,
    )
    return instance, rng


@SOME
@given(quadratics())
def test_bound_holds_for_every_prompt(drawn):
    instance, rng = drawn
    clients, width = len(instance.priors), instance.optima.shape[1]
    mixture = oracle.mix(instance.priors, instance.prompts)
    for mixed in (mixture, *(in_ball(rng, clients, width) for _ in range(10))):
        bound = instance.bound(mixed, instance.prompts, instance.constant())
        assert instance.objective(mixed) <= bound + 1e-9


@SOME
@given(quadratics())
def test_bound_needs_no_constant_at_the_optimal_class_prompts(drawn):
    instance, rng = drawn
    clients, width = len(instance.priors), instance.optima.shape[1]
    for mixed in (oracle.mix(instance.priors, instance.optima), 10 * rng.normal(size=(clients, width))):
        assert instance.objective(mixed) <= instance.bound(mixed, instance.optima, 0.0) + 1e-9


@SOME
@given(quadratics())
def test_bound_is_attained_by_losses_of_full_curvature(drawn):
    """With the largest curvature in every direction, bound and loss agree, so the mixture minimises both."""
    instance, rng = drawn
    clients, width = len(instance.priors), instance.optima.shape[1]
    instance.hessians[:] = instance.smoothness.max() * np.eye(width)
    mixture = oracle.mix(instance.priors, instance.optima)
    for mixed in (mixture, rng.normal(size=(clients, width))):
        bound = instance.bound(mixed, instance.optima, 0.0)
        np.testing.assert_allclose(instance.objective(mixed), bound, rtol=1e-9, atol=1e-9)
        assert instance.objective(mixture) <= bound + 1e-9


@SOME
@given(quadratics())
def test_prior_mixture_minimises_the_bound(drawn):
    instance, rng = drawn
    clients, width = len(instance.priors), instance.optima.shape[1]
    constant, smoothness = instance.constant(), instance.smoothness.max()

    def bound(mixed):
        return instance.bound(mixed, instance.prompts, constant)

    mixture = oracle.mix(instance.priors, instance.prompts)
    # Any other prompts are worse, by exactly half the smoothness times the squared distance.
    for scale in (0.01, 0.1, 1.0):
        other = mixture + scale * rng.normal(size=mixture.shape)
        excess = smoothness / 2 * np.sum((other - mixture) ** 2) / clients
        np.testing.assert_allclose(bound(other) - bound(mixture), excess, rtol=1e-5, atol=1e-9)
    # The bound is stationary there, and descent from anywhere ends there.
    np.testing.assert_allclose(oracle.numerical_gradient(bound, mixture), 0, atol=1e-6)
    found = in_ball(rng, clients, width)
    for _ in range(8):
        found = found - 0.9 * clients / smoothness * oracle.numerical_gradient(bound, found)
    np.testing.assert_allclose(found, mixture, atol=1e-5)


@SOME
@given(seed=SEEDS, classes=st.integers(2, 6), power=st.floats(0, 6))
def test_scores_tend_to_the_priors(seed, classes, power):
    """Cosines differ by at most 2: scores and priors differ at most by the factor ``exp(2 / temperature)``."""
    rng = np.random.default_rng(seed)
    temperature, priors = 10.0**power, random_priors(rng, 1, classes)[0]
    cls, prototypes = rng.normal(size=(4, 5)), rng.normal(size=(classes, 5))
    got = oracle.scores(cls, prototypes, np.ones(classes, bool), priors, temperature)
    held = priors > 0
    ratio = np.log(got[:, held] / priors[held])
    assert np.abs(ratio).max() <= 2 / temperature + 1e-12
    assert (got[:, ~held] == 0).all()


# Proposition 4: the same with scores that depend on the image


@dataclass
class Images:
    """Images of one client, known by their cls tokens, with the label distribution the scores claim."""

    marginal: np.ndarray  # [N], probability of each image
    cls: np.ndarray  # [N, d]
    scores: np.ndarray  # [N, C]
    priors: np.ndarray  # [C]
    prompts: np.ndarray  # [C, d]


@st.composite
def images(draw: st.DrawFn) -> tuple[Images, np.random.Generator]:
    """A random client with its scores from random prototypes, priors and a random temperature."""
    rng = np.random.default_rng(draw(SEEDS))
    count, classes, width = draw(st.integers(1, 6)), draw(st.integers(2, 5)), draw(st.integers(2, 4))
    temperature = draw(st.sampled_from([0.05, 0.3, 1.0, 100.0]))
    known = rng.uniform(size=classes) < 0.8
    cls, prototypes = rng.normal(size=(count, width)), rng.normal(size=(classes, width))
    priors = random_priors(rng, 1, classes)[0]
    score = oracle.scores(cls, prototypes, known, priors, temperature)
    marginal = rng.dirichlet(np.ones(count))
    return Images(marginal, cls, score, priors, in_ball(rng, classes, width)), rng


@SOME
@given(images())
def test_data_dependent_mixture_minimises_the_bound(drawn):
    data, rng = drawn
    count, classes = data.scores.shape
    smoothness, losses = rng.uniform(0.5, 5), rng.normal(size=(count, classes))

    def bound(mixed):
        """``mixed [N, d]``: one prompt per image; ``losses``: the loss at the class prompts."""
        total = 0.0
        for x in range(count):
            for c in range(classes):
                distance = np.sum((mixed[x] - data.prompts[c]) ** 2)
                total += data.marginal[x] * data.scores[x, c] * (losses[x, c] + smoothness / 2 * distance)
        return float(total)

    mixture = oracle.mix(data.scores, data.prompts)
    np.testing.assert_allclose(oracle.numerical_gradient(bound, mixture), 0, atol=1e-6)
    for scale in (0.01, 0.1, 1.0):
        assert bound(mixture) < bound(mixture + scale * rng.normal(size=mixture.shape))
    # A prompt that ignores the image cannot do better, neither the prior's mixture nor any other.
    assert bound(mixture) <= bound(np.tile(data.priors @ data.prompts, (count, 1))) + 1e-9
    assert bound(mixture) <= bound(np.tile(data.marginal @ mixture, (count, 1))) + 1e-9
    found = in_ball(rng, *mixture.shape)
    for _ in range(8):
        step = 0.9 / smoothness / data.marginal[:, None]
        found = found - step * oracle.numerical_gradient(bound, found)
    np.testing.assert_allclose(found, mixture, atol=1e-4)


@SOME
@given(images())
def test_data_dependent_bound_holds_for_smooth_losses(drawn):
    """Losses ``b (sqrt(1 + |p - q|^2) - 1)``, not quadratic and ``b``-smooth, with a minimum ``q`` per image.

    The constant bounds the gradient by its largest length over the set; at the minima none is needed.
    """
    data, rng = drawn
    (count, classes), width = data.scores.shape, data.prompts.shape[1]
    smoothness, minima = rng.uniform(0.5, 5), in_ball(rng, count, classes, width)
    weights = data.marginal[:, None] * data.scores

    def loss(prompts):
        return smoothness * (np.sqrt(1 + np.sum((prompts - minima) ** 2, axis=-1)) - 1)

    largest_gradient = smoothness * 2 * RADIUS / np.sqrt(1 + (2 * RADIUS) ** 2)
    for mixed in (oracle.mix(data.scores, data.prompts), in_ball(rng, count, width)):
        objective = np.sum(weights * loss(mixed[:, None]))
        for prompts, constant in ((data.prompts[None], 2 * RADIUS * largest_gradient), (minima, 0.0)):
            distance = np.sum((mixed[:, None] - prompts) ** 2, axis=-1)
            bound = np.sum(weights * (loss(prompts) + smoothness / 2 * distance)) + constant
            assert objective <= bound + 1e-9


@SOME
@given(seed=SEEDS, width=st.integers(1, 4))
def test_printed_constant_fails_without_a_stationary_point(seed, width):
    """Proposition 4 bounds the gradient by the diameter of its image, but does not assume that the gradient
    vanishes somewhere. A linear loss has a gradient of diameter zero: the printed bound then claims that the
    loss hardly grows along its own gradient. With the length of the gradient instead, the bound holds.
    """
    rng = np.random.default_rng(seed)
    slope = rng.normal(size=width)
    slope /= np.linalg.norm(slope)
    prompt, mixed, smoothness = -slope, slope, 0.1  # a linear loss is smooth with every constant
    quadratic = smoothness / 2 * np.sum((mixed - prompt) ** 2)
    assert slope @ mixed > slope @ prompt + quadratic + 0.0
    assert slope @ mixed <= slope @ prompt + quadratic + 2 * RADIUS * np.linalg.norm(slope)


# Proposition 2: the mixture is the posterior mean


def mean_squared_error(joint: np.ndarray, prompts: np.ndarray, estimate: np.ndarray) -> float:
    """``E |p - estimate(x)|^2`` under ``joint [N, C]`` for ``estimate [N, d]``."""
    distance = np.sum((estimate[:, None] - prompts[None]) ** 2, axis=-1)
    return float(np.sum(joint * distance))


@SOME
@given(images())
def test_no_estimator_beats_the_mixture(drawn):
    data, rng = drawn
    joint = data.marginal[:, None] * data.scores
    mixture = oracle.mix(data.scores, data.prompts)
    best = mean_squared_error(joint, data.prompts, mixture)
    rivals = {
        "most probable prompt": data.prompts[data.scores.argmax(axis=1)],
        "mixture of the priors": np.tile(data.priors @ data.prompts, (len(joint), 1)),
        "uniform mixture": np.tile(data.prompts.mean(axis=0), (len(joint), 1)),
        **{f"near {scale}": mixture + scale * rng.normal(size=mixture.shape) for scale in (0.001, 0.1, 1)},
    }
    for name, rival in rivals.items():
        error = mean_squared_error(joint, data.prompts, rival)
        assert best <= error + 1e-12, name
        # What a rival loses is its mean squared distance to the mixture.
        lost = np.sum(data.marginal * np.sum((rival - mixture) ** 2, axis=1))
        np.testing.assert_allclose(error, best + lost, rtol=1e-9, atol=1e-12)


@SOME
@given(seed=SEEDS, corners=st.integers(4, 12), temperature=st.sampled_from([0.05, 0.3, 1.0, 10.0]))
def test_scores_are_the_posterior_of_a_generating_model(seed, corners, temperature):
    """From class to image: draw a class from the prior, then a direction with density ``exp(cosine / t)``.

    On the corners of a regular polygon all classes have the same normaliser, so that Bayes' rule gives the
    scores; the least-squares solution for the prompt given the direction is the mixture.
    """
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(2, corners + 1))
    angles = 2 * np.pi * np.arange(corners) / corners
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    centres = rng.choice(corners, size=classes, replace=False)
    priors, prompts = random_priors(rng, 1, classes)[0], rng.normal(size=(classes, 3))
    joint = np.zeros((corners, classes))
    for c, centre in enumerate(centres):
        likelihood = np.exp((directions @ directions[centre] - 1) / temperature)
        joint[:, c] = priors[c] * likelihood / likelihood.sum()
    score = oracle.scores(
        rng.uniform(0.1, 9, size=(corners, 1)) * directions,
        rng.uniform(0.1, 9, size=(classes, 1)) * directions[centres],
        np.ones(classes, bool),
        priors,
        temperature,
    )
    np.testing.assert_allclose(score, joint / joint.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-15)
    for x in range(corners):
        root = np.sqrt(joint[x] / joint[x].sum())[:, None]
        solution, *_ = np.linalg.lstsq(root, root * prompts, rcond=None)
        np.testing.assert_allclose(oracle.mix(score, prompts)[x], solution[0], rtol=1e-7, atol=1e-9)


# Proposition 3: convergence with frozen prototypes


@dataclass
class ToyFederation:
    """Quadratic losses in the class prompts through frozen scores: ``|scale (mix - target)|^2 / 2``."""

    scores: np.ndarray  # [K, N, C]
    targets: np.ndarray  # [K, N, d]
    scale: np.ndarray  # [d]

    def gradient(self, client: int, prompts: np.ndarray) -> np.ndarray:
        """Gradient of the client's mean loss in the class prompts ``[C, d]``."""
        error = self.scale**2 * (self.scores[client] @ prompts - self.targets[client])
        return self.scores[client].T @ error / len(error)

    def global_gradient(self, prompts: np.ndarray) -> np.ndarray:
        error = self.scale**2 * (self.scores @ prompts - self.targets)
        return np.einsum("knc,knd->cd", self.scores, error) / error[..., 0].size

    def run(
        self, rng: np.random.Generator, rounds: int, sampled: int, rate: float, decay: float, steps: int = 3
    ) -> np.ndarray:
        """Federated averaging; returns the squared norm of the global gradient before every round."""
        prompts = np.zeros((self.scores.shape[2], self.targets.shape[2]))
        norms = []
        for t in range(rounds):
            norms.append(float(np.sum(self.global_gradient(prompts) ** 2)))
            states = []
            for client in rng.choice(len(self.scores), size=sampled, replace=False):
                local = prompts
                for _ in range(steps):
                    local = local - rate / (1 + decay * t) * self.gradient(client, local)
                states.append({"prompts": local})
            prompts = oracle.fedavg(states)["prompts"]
        return np.array(norms)


def toy_federation(rng: np.random.Generator, clients: int = 6, samples: int = 8) -> ToyFederation:
    """Clients with skewed priors whose targets disagree: no prompts satisfy all of them."""
    classes, width = 4, 3
    prototypes, known = rng.normal(size=(classes, 5)), np.ones(classes, bool)
    priors = random_priors(rng, clients, classes)
    cls = rng.normal(size=(clients, samples, 5))
    score = [oracle.scores(cls[k], prototypes, known, priors[k], 0.3) for k in range(clients)]
    targets = rng.normal(size=(clients, 1, width)) + 0.3 * rng.normal(size=(clients, samples, width))
    return ToyFederation(np.array(score), targets, rng.uniform(0.7, 1.0, size=width))


@FEW
@given(seed=SEEDS)
def test_gradients_vanish_with_a_decaying_step(seed):
    rng = np.random.default_rng(seed)
    federation = toy_federation(rng)
    norms = federation.run(rng, rounds=1200, sampled=2, rate=0.3, decay=0.05)
    early, middle, late = norms[:10].mean(), norms[30:120].mean(), norms[900:].mean()
    assert middle < early
    assert late < middle / 2
    assert late < early / 10


@FEW
@given(seed=SEEDS)
def test_partial_participation_leaves_a_floor_without_decay(seed):
    """With a constant step the sampling noise stays, in proportion to the step; decay removes it."""
    rng = np.random.default_rng(seed)
    federation = toy_federation(rng)
    constant = federation.run(rng, rounds=600, sampled=2, rate=0.3, decay=0.0)[300:].mean()
    smaller = federation.run(rng, rounds=600, sampled=2, rate=0.06, decay=0.0)[300:].mean()
    decaying = federation.run(rng, rounds=600, sampled=2, rate=0.3, decay=0.05)[300:].mean()
    assert smaller < constant / 2
    assert decaying < constant / 4


@FEW
@given(seed=SEEDS)
def test_full_participation_with_one_step_is_gradient_descent(seed):
    """Then every round contracts the gradient: its norm never grows and tends to zero."""
    rng = np.random.default_rng(seed)
    norms = toy_federation(rng).run(rng, rounds=300, sampled=6, rate=1.0, decay=0.0, steps=1)
    assert (np.diff(norms) <= 1e-15).all()
    assert norms[-1] < 1e-3 * norms[0]

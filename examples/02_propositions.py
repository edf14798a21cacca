"""The paper's propositions, tried: three panels, each with what it says and by how much it holds.

Run it with ``python examples/02_propositions.py [FILE.svg]``. Scores are those of PEP-FedPT's own code.
``tests/property/test_propositions.py`` tries random instances, and shows where a text needs a correction.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray

from fedcue.methods.pep import class_scores

matplotlib.use("Agg")
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedcue"}
from matplotlib import pyplot as plt  # noqa: E402

Array = NDArray[np.float64]


def scores(cls: Array, prototypes: Array, priors: Array, temperature: float) -> Array:
    """Return PEP-FedPT's mixing weights ``[images, classes]``."""
    given = (torch.from_numpy(cls), torch.from_numpy(prototypes), torch.ones(len(priors), dtype=torch.bool))
    return class_scores(*given, torch.from_numpy(np.log(priors)), temperature).numpy()


def quadratic_bound(rng: np.random.Generator) -> tuple[Array, Array]:
    """Proposition 1: return distances from the prior's mixture of class prompts and the bound there.

    The bound of a client's loss at the prompt m is the sum over classes of prior times |m - prompt|^2 / 2.
    """
    priors, prompts = rng.dirichlet(np.full(6, 0.5)), rng.normal(size=(6, 4))
    direction = rng.normal(size=4)
    steps = np.linspace(-1, 1, 41)
    mixed = priors @ prompts + steps[:, None] * direction / np.linalg.norm(direction)
    bound = 0.5 * ((mixed[:, None] - prompts) ** 2).sum(-1) @ priors
    return steps, bound


def errors_of_estimates(rng: np.random.Generator, temperature: float = 0.3) -> dict[str, float]:
    """Proposition 2: return the mean squared error with which estimates find the class prompt of an image.

    An image has a class drawn from the prior, and a direction of the plane drawn with density
    exp(cosine to the prototype / temperature).
    """
    corners, classes, images = 360, 5, 20_000
    angles = 2 * np.pi * np.arange(corners) / corners
    plane = np.stack([np.cos(angles), np.sin(angles)], 1)
    centres = rng.choice(corners, classes, replace=False)
    priors, prompts = rng.dirichlet(np.ones(classes)), rng.normal(size=(classes, 4))
    labels = rng.choice(classes, images, p=priors)
    density = np.exp(plane @ plane[centres].T / temperature)
    density /= density.sum(0)
    seen = np.array([rng.choice(corners, p=density[:, c]) for c in labels])
    weights = scores(plane[seen], plane[centres], priors, temperature)
    estimates = {
        "mixture by scores (PEP-FedPT)": weights @ prompts,
        "prompt of the likeliest class": prompts[weights.argmax(1)],
        "mixture by priors": np.tile(priors @ prompts, (images, 1)),
        "mean of all prompts": np.tile(prompts.mean(0), (images, 1)),
    }
    return {name: float(((made - prompts[labels]) ** 2).sum(1).mean()) for name, made in estimates.items()}


def gradients_by_round(rng: np.random.Generator, rounds: int = 600) -> dict[str, Array]:
    """Proposition 3: return the squared norm of the global gradient before each round, prototypes frozen.

    Six clients with quadratic losses of their mixed prompts that no prompts satisfy all at once.
    """
    clients, images, classes = 6, 8, 4
    prototypes = rng.normal(size=(classes, 5))
    weights = np.stack(
        [
            scores(rng.normal(size=(images, 5)), prototypes, rng.dirichlet(np.ones(classes)), 0.3)
            for _ in range(clients)
        ]
    )  # [clients, images, classes]
    targets = rng.normal(size=(clients, 1, 3)) + 0.3 * rng.normal(size=(clients, images, 3))

    def slope(client: int, prompts: Array) -> Array:
        change: Array = weights[client].T @ (weights[client] @ prompts - targets[client]) / images
        return change

    def run(drawn: int, rate: float, decay: float) -> Array:
        prompts, norms = np.zeros((classes, 3)), []
        for t in range(rounds):
            norms.append(sum(slope(k, prompts) for k in range(clients)) / clients)
            local = []
            for client in rng.choice(clients, drawn, replace=False):
                own = prompts
                for _ in range(3):
                    own = own - rate / (1 + decay * t) * slope(client, own)
                local.append(own)
            prompts = np.mean(local, 0)
        squared: Array = (np.array(norms) ** 2).sum((1, 2))
        return squared

    return {
        "2 of 6 clients, constant rate": run(2, 0.3, 0.0),
        "2 of 6 clients, decaying rate": run(2, 0.3, 0.05),
    }


def main(path: Path, seed: int = 0) -> dict[str, float]:
    """Try the three propositions, draw them, and return the numbers that they are about."""
    rng = np.random.default_rng(seed)
    (steps, bound), errors, norms = quadratic_bound(rng), errors_of_estimates(rng), gradients_by_round(rng)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    left.plot(steps, bound)
    left.set(title="1: the prior's mixture minimises the bound", xlabel="distance from it", ylabel="bound")
    middle.barh(list(errors), list(errors.values()))
    middle.set(title="2: no estimate beats the mixture by scores", xlabel="mean squared error")
    for name, norm in norms.items():
        right.semilogy(norm, label=name)
    right.set(title="3: gradients vanish", xlabel="round", ylabel="squared norm of the gradient")
    right.legend()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    constant, decaying = norms.values()
    return {
        "1: lowest bound at distance": float(steps[bound.argmin()]),
        **{f"2: {name}": error for name, error in errors.items()},
        "3: first gradient": float(decaying[0]),
        "3: last 100, constant rate": float(constant[-100:].mean()),
        "3: last 100, decaying rate": float(decaying[-100:].mean()),
    }


if __name__ == "__main__":
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "propositions.svg")
    for name, value in main(file).items():
        print(f"{name:45} {value:.4g}")
    print(f"figure in {file}")

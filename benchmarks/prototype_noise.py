"""What noise leaves of the first prototypes: ``python benchmarks/prototype_noise.py RECIPE key=value ...``.

PEP-FedPT's prototypes of the warm start with each kind of privacy, beside those without noise: the signal
is how far class prototypes are from their mean, the noise how far they were moved (both squared, averaged
over classes and mixed blocks); and how many of them are still nearest, by cosine, to their own class's
prototype without noise.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedcue.clients.federation import Federation
from fedcue.config.layers import load


def prototypes(recipe: str, settings: list[str]) -> tuple[Tensor, Tensor]:
    """Return the prototypes ``[L, C, d]`` that PEP-FedPT starts with, and which classes have one ``[C]``."""
    federation = Federation(load(recipe, [*settings, "method=pep"]))
    replies = [federation.warm_up(int(client)) for client in federation.training_clients]
    combine = federation.roster.protection.combine({}, "warm up")
    config, setting = federation.config, federation.roster.setting
    state = config.method.start(setting, config.seed, filter(None, replies), combine)
    return state.tensors["prototypes"], state.tensors["has_prototype"]


def main() -> None:
    """Print a line for each kind of noise."""
    recipe, *settings = sys.argv[1:]
    clean, known = prototypes(recipe, [*settings, "privacy=none"])
    print("privacy   signal / noise   nearest to their own class   classes with a prototype")
    for privacy in ("paper", "dp"):
        noisy, left = prototypes(recipe, [*settings, f"privacy={privacy}"])
        both = (known & left).nonzero()[:, 0]
        before, after = clean[:, both], noisy[:, both]
        signal = (before - before.mean(1, keepdim=True)).square().sum(-1).mean()
        noise = (after - before).square().sum(-1).mean()
        nearest = (normalize(after, dim=-1) @ normalize(before, dim=-1).mT).argmax(-1)
        own = (nearest == torch.arange(len(both))).float().mean()
        print(f"{privacy:7} {signal / noise:17.2g} {own:28.1%} {len(both):26d}", flush=True)


if __name__ == "__main__":
    main()

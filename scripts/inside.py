"""Look inside a finished PEP-FedPT run: what its class prompts and its mixing do to a client's decisions.

python scripts/inside.py RUN
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from results import markdown
from safetensors.torch import load_file
from torch import Tensor

import fedcue
from fedcue.after.predict import Predictions
from fedcue.clients.federation import load_federation
from fedcue.config.layers import load_folder


@dataclass(frozen=True)
class Client:
    """One client's test images and what the model says of them, with its own priors and with even ones."""

    held: Tensor
    """Whether the client holds a class ``[C]``."""
    labels: Tensor
    own: Predictions
    even: Predictions

    def shift(self) -> float:
        """By how much its priors raise its own classes over the others in the mixing alone (nats)."""
        return _gap(self.own.probabilities, self.held) - _gap(self.even.probabilities, self.held)

    def picked(self, even: bool) -> list[float]:
        """At each mixed block the share of images whose own class has the greatest mixing weight."""
        weights = (self.even if even else self.own).details["mixing_weights"]  # [B, L, C]
        right = weights.argmax(-1) == self.labels[:, None]
        return [float(share) for share in right.float().mean(0)]

    def kept_to(self, even: bool) -> float:
        """Return the share of images that are given a class the client holds."""
        chosen = (self.even if even else self.own).probabilities.argmax(1)
        return float(self.held[chosen].float().mean())


def _gap(probabilities: Tensor, held: Tensor) -> float:
    """Return the mean log-probability of held classes less that of the others."""
    logs = probabilities.clamp(min=1e-30).log()
    return float(logs[:, held].mean() - logs[:, ~held].mean())


def clients_of(folder: Path, most: int | None = None) -> list[Client]:
    """Predict the test images of a run's clients."""
    federation, model = load_federation(load_folder(folder)), fedcue.load(folder)
    found = []
    for client in list(model.clients)[:most]:
        images = federation.host.test_images(client)
        pixels = federation.pixels[images]
        labels = torch.from_numpy(np.asarray(federation.host.client(client).test_labels))
        held = torch.tensor(model.clients[client]["class_priors"]) > 0
        own, even = model.predict(pixels, client=client), model.predict(pixels)
        found.append(Client(held, labels, own, even))
    return found


def moved(first: Tensor, last: Tensor) -> dict[str, float]:
    """Return how long class prompts are, how far they went, and how far apart they are."""
    apart = torch.pdist(last)
    return {
        "length at the start": float(first.norm(dim=1).mean()),
        "length at the end": float(last.norm(dim=1).mean()),
        "way from start to end": float((last - first).norm(dim=1).mean()),
        "distance of two classes at the start": float(torch.pdist(first).mean()),
        "distance of two classes at the end": float(apart.mean()),
    }


def table(clients: Sequence[Client], prompts: Mapping[str, float], layers: Sequence[int]) -> str:
    """Return what was found."""
    lines = [["", "client's priors in the mixing", "even ones"]]
    for position, block in enumerate(layers):
        shares = [100 * fmean(client.picked(even)[position] for client in clients) for even in (False, True)]
        lines.append(
            [
                f"greatest mixing weight on the image's class, layer {block + 1}",
                *(f"{s:.1f} %" for s in shares),
            ]
        )
    kept = [100 * fmean(client.kept_to(even) for client in clients) for even in (False, True)]
    lines.append(["decisions for a class that the client holds", *(f"{share:.1f} %" for share in kept)])
    shift = fmean(client.shift() for client in clients)
    lines.append(["the client's classes raised over the others, nats", f"{shift:+.2f}", "0"])
    about = [["class prompts", "mean"], *([name, f"{value:.2f}"] for name, value in prompts.items())]
    return f"{markdown(lines)}\n{markdown(about)}"


def main() -> None:
    """Print the tables of a run."""
    folder = Path(sys.argv[1])
    first = load_file(folder / "snapshots" / "round-000000.safetensors")["class_prompts"]
    last = load_file(folder / "model.safetensors")["class_prompts"]
    layers = load_folder(folder).method.layers  # type: ignore[attr-defined]
    print(table(clients_of(folder), moved(first, last), layers))


if __name__ == "__main__":
    main()

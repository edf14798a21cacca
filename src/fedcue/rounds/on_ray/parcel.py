"""What a worker needs to be any client: settings, labels, pixels and frozen weights, as plain arrays.

It lies in Ray's object store, where all workers of a machine read the same memory. A node needs no
data of its own and sees no folder of the machine that runs the rounds.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcue.clients.federation import Federation, gather, prompted, split
from fedcue.clients.host import Host
from fedcue.config.layers import dump, resolve
from fedcue.data.dataset import Dataset
from fedcue.data.image_sources import JoinedImages
from fedcue.data.pixels import PixelStore
from fedcue.model.vit import Architecture, VisionTransformer


@dataclass(frozen=True, eq=False)
class Parcel:
    """A federation without its files; the clients are shared out again, by the same streams."""

    settings: Mapping[str, Any]
    dataset: Dataset
    images: NDArray[np.uint8]
    rows: NDArray[np.int64]
    bad: NDArray[np.int64]
    architecture: Architecture
    weights: Mapping[str, NDArray[np.float32]]
    paths: tuple[str, ...]
    """Where modules of the user's are imported from, on machines that see these folders."""

    @classmethod
    def of(cls, federation: Federation) -> Parcel:
        """Return what others need to do this federation's work."""
        settled = federation.config.model_copy(update={"privacy": federation.roster.budget.privacy})
        weights = federation.model.backbone.state_dict()
        return cls(
            dump(settled),
            replace(federation.dataset, images=JoinedImages([])),
            federation.pixels.images.numpy(),
            federation.pixels.rows.numpy(),
            federation.pixels.bad,
            federation.model.architecture,
            {name: tensor.float().cpu().numpy() for name, tensor in weights.items()},
            tuple(os.path.abspath(path) for path in sys.path),
        )

    def host(self) -> Host:
        """Return the clients at work on this machine."""
        sys.path += [path for path in self.paths if path not in sys.path and os.path.exists(path)]
        config = resolve(self.settings, name=self.settings["recipe"])
        backbone = VisionTransformer(self.architecture)
        backbone.load_state_dict({name: torch.tensor(array) for name, array in self.weights.items()})
        model = prompted(config, backbone.eval().requires_grad_(False), config.device)
        with warnings.catch_warnings():  # shared pixels cannot be written, and never are
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            pixels = PixelStore(torch.from_numpy(self.images), torch.from_numpy(self.rows), self.bad)
        clients = split(config, self.dataset).without(self.bad)
        return gather(config, self.dataset, clients, pixels, model).host

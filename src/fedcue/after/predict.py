"""Use a finished run: load its folder and predict."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedcue.after.hub import found
from fedcue.after.images import OnePass, Picture, read_images
from fedcue.after.trained import check_sizes, load_memories, load_state
from fedcue.clients.priors import UNKNOWN, as_counts, as_priors, estimate_priors
from fedcue.config.sections import EvaluationOptions
from fedcue.errors import ConfigError, FedcueError, RunFolderError, unknown
from fedcue.machine import network
from fedcue.methods.base import Method
from fedcue.methods.client import Client
from fedcue.model.backbone import load_backbone
from fedcue.model.prompted import Precision, PromptedViT
from fedcue.record.files import read_json
from fedcue.registry import METHODS
from fedcue.rng import torch_rng
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.types import ClientMemory, ServerState, Sizes, Tensors

_FORMAT = "fedcue-model-1"
BESIDE = "./backbone"
"""The name of a backbone that lies beside the model, as in a repository of the hub."""


@dataclass(frozen=True)
class Predictions:
    """For each image: class probabilities ``[B, C]`` and what the method shows, such as mixing weights."""

    classes: tuple[str, ...]
    probabilities: Tensor
    details: Mapping[str, Tensor]

    @property
    def labels(self) -> list[str]:
        """The most probable class of each image."""
        return [self.classes[index] for index in self.probabilities.argmax(1).tolist()]


@dataclass(frozen=True)
class Model:
    """A trained model: the frozen backbone, the method and its tensors."""

    model: PromptedViT = field(repr=False)
    method: Method
    state: ServerState = field(repr=False)
    sizes: Sizes
    seed: int
    classes: tuple[str, ...]
    clients: Mapping[int, Mapping[str, Any]] = field(repr=False)
    memories: Mapping[int, ClientMemory] = field(repr=False)
    unlabelled: tuple[float, float]
    """Concentration of the clients' class mixes, and the temperature of the scores that estimate one."""

    @torch.no_grad()
    def predict(
        self,
        images: Picture | Sequence[Picture],
        priors: ArrayLike | Literal["em"] | None = None,
        client: int | str | None = None,
        *,
        labelled: ArrayLike | None = None,
        details: bool = True,
    ) -> Predictions:
        """Classify images for a client (number or name), or under priors (``em``: the images' own).

        ``labelled`` says for ``em`` how many further images of each class are known from the same place.

        Images are PIL images, paths, or ``uint8`` arrays and tensors of any size, one or several; they are
        resized as in training. Without client and priors, every class counts as equally likely. Without
        ``details``, which may cost a pass of their own, only probabilities are computed.
        """
        who = self.client_called(client) if isinstance(client, str) else client
        pixels = read_images(images, self.model.architecture.image_size)
        if isinstance(priors, str) and priors == "em":
            log_priors = self.log_priors(self.estimated(self._scores(pixels, who), labelled), None)
        else:
            log_priors = self.log_priors(priors, who)
        tensors = self.tensors(log_priors, who)
        logits, seen = [], []
        for batch in self._samples(pixels, log_priors).batches(100):
            logits.append(self.method.predict(tensors, batch))
            seen.append(self.method.inspect(tensors, batch) if details else {})
        shown = {name: torch.cat([part[name] for part in seen]) for name in seen[0]}
        return Predictions(self.classes, torch.cat(logits).softmax(1), shown)

    @torch.no_grad()
    def scores(self, images: Picture | Sequence[Picture], client: int | None = None) -> Tensor:
        """Return log probabilities ``[n, C]`` as if all classes were equally frequent.

        They are what ``estimated``, and ``contradiction`` of ``fedcue.clients.priors``, take.
        """
        return self._scores(read_images(images, self.model.architecture.image_size), client)

    def estimated(self, scores: Tensor, labelled: ArrayLike | None = None) -> list[float]:
        """Return the class priors that images have, from their scores and from counts of labelled ones."""
        known = 0 if labelled is None else as_counts(labelled, len(self.classes))
        priors: list[float] = estimate_priors(scores.double(), *self.unlabelled, known).tolist()
        return priors

    def _scores(self, pixels: Tensor, client: int | None) -> Tensor:
        even = self.log_priors(None, None)
        tensors, batches = self.tensors(even, client), self._samples(pixels, even).batches(100)
        return torch.cat([self.method.predict(tensors, batch) for batch in batches]).log_softmax(1)

    def _samples(self, pixels: Tensor, log_priors: Tensor) -> Samples:
        return Samples(self.one_pass(pixels), torch.zeros(len(pixels), dtype=torch.int64), log_priors)

    def one_pass(self, pixels: Tensor) -> OnePass:
        """Return what the method asks of the frozen backbone for images ``[n, 3, S, S]``."""
        first, bare = self.method.first_block(self.sizes), self.method.bare_blocks(self.sizes)
        return OnePass(self.model, pixels, first, bare)

    def tensors(self, log_priors: Tensor, client: int | None) -> Tensors:
        """Return the tensors that a client predicts with; without one, those of an unknown client."""
        memory = self.memories.get(-1 if client is None else client, ClientMemory())
        if not (self.method.supports_heldout or memory.tensors):
            raise ConfigError(
                f"{self.method.name} serves only clients that have trained, each with a head of its own. "
                + self.trained_clients()
            )
        at_work = Client(
            client or 0,
            self._samples(torch.zeros(0, 3, 0, 0, dtype=torch.uint8), log_priors),
            log_priors,
            self.method.table(self.sizes),
            self.sizes,
            Training(),
            torch_rng(self.seed, "predict"),
            self.seed,
            self.state.round,
            memory.tensors,
        )
        sent = self.method.download(self.state, client or 0, self.sizes, self.seed)
        return self.method.personal(at_work, sent)

    def client_called(self, given: str | None) -> int | None:
        """Return the number of a client, given by its name as tables show it, or by its number."""
        if given is None:
            return None
        names = {str(about.get("name", number)): number for number, about in self.clients.items()}
        numbers = {str(number): number for number in self.clients}
        if given not in (known := numbers | names):
            raise ConfigError(unknown("client", given, names) + " Give a name or a number.")
        return known[given]

    def trained_clients(self) -> str:
        """Say which clients have something of their own."""
        trained = ", ".join(map(str, sorted(self.memories)[:20]))
        return f"Give one of these clients: {trained}." if trained else "Here none has: train longer."

    def log_priors(self, priors: ArrayLike | None, client: int | None) -> Tensor:
        """Return the log of given priors, of a client's or of even ones, smoothed as the method asks."""
        if client is not None:
            if client not in self.clients:
                raise ConfigError(unknown("client", str(client), map(str, self.clients)))
            priors = self.clients[client].get("class_priors")
            if priors is None:
                raise ConfigError(
                    f"Client {client} keeps its class priors to itself. Give the priors with the images, or "
                    "predict without a client."
                )
        if priors is None:
            priors = [1 / len(self.classes)] * len(self.classes)
        return self.smoothed(torch.from_numpy(as_priors(priors, self.classes))).log().float()

    def smoothed(self, priors: Tensor) -> Tensor:
        """Return priors ``[C]`` that sum to 1, a share of them spread over all classes if the method asks."""
        share = self.method.prior_smoothing
        return (1 - share) * priors / priors.sum() + share / len(self.classes)


def load(
    folder: str | Path,
    trusted: Collection[str] = (),
    *,
    fetch: bool | None = None,
    precision: Precision | None = None,
) -> Model:
    """Load the model of a finished run, whoever made it: its folder, or a repository of the hub.

    A class that it names by import path must be one of ``trusted``. A folder's backbone that is not here is
    downloaded only with ``fetch``. To name a repository, as in ``load("user/repo")``, is to ask for it and
    for the backbone that it names; ``fetch=False`` looks in the local cache only. ``precision`` is the run's
    own unless it is given.
    """
    folder, fetch = found(folder, fetch)
    description = _description(folder)
    if precision is not None:
        description["precision"] = precision
    try:
        with network(fetch):
            model = _model(folder, description, trusted)
        _try_out(model)
    except FedcueError:
        raise
    except Exception as error:  # a stranger's files may fail to fit together in any way
        reason = f"{type(error).__name__}: {error}"[:300]
        raise RunFolderError(f"{folder} does not hold a usable model: {reason}. Repeat the run.") from error
    return model


def _model(folder: Path, description: Mapping[str, Any], trusted: Collection[str]) -> Model:
    options = {key: value for key, value in description["method"].items() if key != "name"}
    method = METHODS.get(description["method"]["name"], trusted).model_validate(options)
    assert isinstance(method, Method)
    sizes = Sizes(**description["setting"])
    tensors, memories = load_state(folder), load_memories(folder)
    check_sizes(method.table(sizes), tensors, *(memory.tensors for memory in memories.values()))
    clients = {int(client): dict(about) for client, about in description["clients"].items()}
    for about in clients.values():
        if "class_priors" in about:
            about["class_priors"] = [float(prior) for prior in about["class_priors"]]
    backbone = load_backbone(backbone_of(folder, description), description["image_size"])
    state = ServerState(description["rounds"], tensors)
    classes, seed = tuple(map(str, description["classes"])), int(description["seed"])
    feature_norm = description["backbone"].get("feature_norm")
    model = PromptedViT(backbone, description.get("precision", "float32"), feature_norm)
    unlabelled = _unlabelled(description)
    return Model(model, method, state, sizes, seed, classes, clients, memories, unlabelled)


def _unlabelled(description: Mapping[str, Any]) -> tuple[float, float]:
    """Return what priors of images without labels are estimated with; runs of before do not say it."""
    chosen = EvaluationOptions().temperature
    found = {"concentration": UNKNOWN, "temperature": chosen, **description.get("unlabelled", {})}
    numbers = float(found["concentration"]), float(found["temperature"])
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"its concentration and temperature are {numbers}")
    return numbers


def backbone_of(folder: Path, description: Mapping[str, Any]) -> str:
    """Return the backbone's name; ``./backbone`` lies in the model's own folder."""
    name = str(description["backbone"]["name"])
    beside = folder / "backbone"
    return str(beside) if name == BESIDE and beside.is_dir() else name


def _try_out(model: Model) -> None:
    """Predict one black image, without a client and for one with a memory, to check that all tensors fit."""
    shape, found = model.model.architecture, model.sizes
    if (found.width, found.depth, found.classes) != (shape.width, shape.depth, len(model.classes)):
        raise ValueError("model.json describes another backbone or other classes")
    size = shape.image_size
    known = [client for client in model.memories if "class_priors" in model.clients.get(client, {})]
    clients: list[int | None] = list(known[:1])
    if model.method.supports_heldout:
        clients.insert(0, None)
    for client in clients:
        seen = model.predict(torch.zeros(1, 3, size, size, dtype=torch.uint8), client=client)
        if seen.probabilities.shape != (1, len(model.classes)) or not seen.probabilities.isfinite().all():
            raise ValueError("its predictions are no probabilities")
    shapes = [{name: t.shape for name, t in memory.tensors.items()} for memory in model.memories.values()]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError("clients.safetensors holds tensors of different shapes")


def _description(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no model.json: give the folder of a finished run.")
    description = read_json(path)
    if not isinstance(description, dict) or description.get("format") != _FORMAT:
        raise RunFolderError(f"{path} is not of format {_FORMAT}, which this fedcue reads. Repeat the run.")
    return description

"""Whole runs in plain numpy (float64): rounds, local training, server steps, tests, numbers of the tables.

Like ``oracle`` it is written from the paper and the method descriptions alone and imports nothing of
``fedcue``. First values and the order of images in a visit are given; who takes part is drawn here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import oracle
from numpy.typing import NDArray
from oracle import Array, State

Rows = Sequence[NDArray[np.int64]]
"""The rows of a client's images in each batch of a training, in the order trained."""


@dataclass(frozen=True)
class Task:
    """The backbone, every client's images and labels, and who never trains."""

    weights: Mapping[str, Array]
    heads: int
    train: Sequence[Array] | Mapping[int, Array]
    train_labels: Sequence[NDArray[np.int64]] | Mapping[int, NDArray[np.int64]]
    test: Sequence[Array]
    test_labels: Sequence[NDArray[np.int64]]
    heldout: Sequence[int]
    classes: int

    def priors(self, client: int) -> Array:
        """Return the client's label distribution."""
        return oracle.class_priors(self.train_labels[client], self.classes)

    @property
    def training(self) -> list[int]:
        """The clients that train."""
        return [client for client in range(len(self.train)) if client not in self.heldout]


@dataclass(frozen=True)
class Rates:
    """How clients train: SGD with momentum, decay, clipping and a rate that falls with the rounds."""

    head: float
    prompts: float
    decay: float
    momentum: float
    weight_decay: float
    clip_norm: float

    def step(
        self,
        state: State,
        slopes: State,
        buffers: State | None,
        round_: int,
        mask: Mapping[str, Array] | None,
    ) -> tuple[State, State]:
        """Do one step of SGD in a round (counted from 0)."""
        rates = {name: (self.head if "head" in name else self.prompts) * self.decay**round_ for name in state}
        return oracle.sgd_step(
            state, slopes, buffers, rates, self.momentum, self.weight_decay, self.clip_norm, mask
        )


@dataclass
class Method:
    """Head-Tuning, and what the other methods change of it."""

    task: Task
    rates: Rates
    first: Mapping[str, Array]
    """First values, by name."""
    sent: tuple[str, ...] = ("head",)
    kept: tuple[str, ...] = ()
    serves_heldout: bool = True
    by_size: bool = False
    exact: bool = False
    """Whether replies travel in float64."""
    travels: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    # At a client

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        """Return what the head reads ``[B, d]``."""
        nothing = np.zeros((0, tensors["head"].shape[1]))
        return self.forward(oracle.vpt_forward, pixels, nothing, tensors["head"])["cls"]

    def forward(self, function: Callable[..., Any], pixels: Array, *rest: Any, **options: Any) -> Any:
        return function(self.task.weights, self.task.heads, pixels, *rest, **options)

    def logits(self, tensors: State, pixels: Array, client: int) -> Array:
        """Return what a client decides with."""
        features = self.features(tensors, pixels, self.task.priors(client))
        return oracle.classify(features, tensors["head"], tensors.get("head_bias"))

    def warm_up(self, client: int) -> State:
        """Return the client's reply before round 0."""
        return {}

    def fit(
        self,
        trained: State,
        fixed: State,
        client: int,
        rows: Rows,
        round_: int,
        mask: Mapping[str, Array] | None = None,
        features: Callable[[State, NDArray[np.int64]], Array] | None = None,
        extra: Callable[[State, NDArray[np.int64]], State] | None = None,
        change: Callable[[str, Array], Array] | None = None,
    ) -> State:
        """Train some tensors on batches of the client's images.

        The head's gradient is exact, the others' are differences; ``extra`` gives further gradients.
        """
        images, labels, priors = (
            self.task.train[client],
            self.task.train_labels[client],
            self.task.priors(client),
        )
        state: State = {name: np.array(value, dtype=np.float64) for name, value in trained.items()}
        buffers: State | None = None
        for batch in rows:

            def read(now: State, batch: NDArray[np.int64] = batch) -> Array:
                if features is not None:
                    return features({**fixed, **now}, batch)
                return self.features({**fixed, **now}, images[batch], priors)

            slopes = slopes_of(read, {**fixed, **state}, state, labels[batch])
            for name, more in (extra(state, batch) if extra else {}).items():
                slopes[name] = slopes[name] + more
            moved, buffers = self.rates.step(state, slopes, buffers, round_, mask)
            if change is not None:
                moved = {name: state[name] + change(name, moved[name] - state[name]) for name in state}
            state = moved
        return state

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        """Train at a client; return what it sends back and what it keeps."""
        tensors = {**{name: self.first[name] for name in self.kept}, **sent, **memory}
        after = self.fit(tensors, tensors, client, next(batches), round_)
        return {n: after[n] for n in self.sent}, {n: after[n] for n in self.kept}

    def for_test(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int, last: bool
    ) -> State:
        """Return what a client is tested with."""
        return {**{name: self.first[name] for name in self.kept}, **sent, **memory}

    # At the server

    def start(self, replies: Mapping[int, State]) -> State:
        """Return the state before round 0."""
        return {name: self.first[name] for name in self.sent}

    def download(self, state: State, client: int) -> State:
        """Return what a client is sent."""
        return {name: state[name] for name in self.sent}

    def aggregate(self, state: State, updates: Mapping[int, State], round_: int) -> State:
        """Return the state after a round."""
        sizes = [len(self.task.train[client]) for client in updates] if self.by_size else None
        return {**state, **oracle.fedavg(list(updates.values()), sizes)}


def slopes_of(
    read: Callable[[State], Array], tensors: State, trained: State, labels: NDArray[np.int64]
) -> State:
    """Return the gradients of the mean cross-entropy in the trained tensors."""
    features = read(trained)
    head, bias = tensors["head"], tensors.get("head_bias")
    error = oracle.softmax(oracle.classify(features, head, bias)) - np.eye(len(head))[labels]
    exact = {"head": error.T @ features / len(labels), "head_bias": error.mean(axis=0)}

    def loss(name: str, value: Array) -> float:
        return oracle.cross_entropy(oracle.classify(read({**trained, name: value}), head, bias), labels)

    return {
        name: exact[name]
        if name in exact
        else oracle.numerical_gradient(lambda value, name=name: loss(name, value), trained[name])
        for name in trained
    }


class Shallow(Method):
    """FedVPT, FedPR and P-PT: prompts behind cls at block 0; of P-PT they never leave the client."""

    @property
    def prompts(self) -> str:
        return "private_prompts" if self.kept else "shared_prompts"

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        return self.forward(oracle.vpt_forward, pixels, tensors[self.prompts], tensors["head"])["cls"]

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        directions = self.options.get("directions")
        if directions is None:
            return super().visit(sent, memory, client, batches, round_)
        prompts = sent["shared_prompts"]  # FedPR: what was broadcast says which changes are left
        projector = oracle.fedpr_projector(prompts, self.options["ratio"], directions)

        def change(name: str, step: Array) -> Array:
            return step @ projector if name == "shared_prompts" else step

        return self.fit(sent, sent, client, next(batches), round_, change=change), {}


class Deep(Method):
    """FedVPT-D."""

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        return self.forward(oracle.vpt_forward, pixels, tensors["deep_prompts"], tensors["head"])["cls"]


class Plain(Method):
    """Prompts at block 0 and a head: each client's own (local), or trained on everybody's images (central).

    Of central, ``options["pools"]`` has the images and labels of every round.
    """

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        return self.forward(oracle.vpt_forward, pixels, tensors["prompts"], tensors["head"])["cls"]

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        if "pools" not in self.options:
            return super().visit(sent, memory, client, batches, round_)
        images, labels = self.options["pools"][round_]
        everybody = replace(self.task, train={client: images}, train_labels={client: labels})
        return replace(self, task=everybody).fit(sent, sent, client, next(batches), round_), {}

    def for_test(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int, last: bool
    ) -> State:
        tensors = super().for_test(sent, memory, client, batches, round_, last)
        late = last and not self.sent and not memory
        return self.fit(tensors, tensors, client, next(batches), round_) if late else tensors


class FedROD(Plain):
    """FedROD: balanced softmax for prompts and shared head, cross-entropy for the personal one."""

    def logits(self, tensors: State, pixels: Array, client: int) -> Array:
        features = self.features(tensors, pixels, self.task.priors(client))
        return features @ (tensors["head"] + tensors["personal_head"]).T

    def balanced(self, tensors: State, pixels: Array, client: int) -> Array:
        """Return the shared head's logits of the classes that the client has; the others are far below."""
        counts = np.bincount(self.task.train_labels[client], minlength=self.task.classes)
        shift = np.array([math.log(count) if count else -1e9 for count in counts])
        return self.features(tensors, pixels, counts) @ tensors["head"].T + shift

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        start = {**{name: self.first[name] for name in self.kept}, **sent, **memory}
        state: State = {name: np.array(value, dtype=np.float64) for name, value in start.items()}
        buffers: State | None = None
        for rows in next(batches):
            images, labels = self.task.train[client][rows], self.task.train_labels[client][rows]

            def shared(prompts: Array, state: State = state, images=images, labels=labels) -> float:
                logits = self.balanced({**state, "prompts": prompts}, images, client)
                return oracle.cross_entropy(logits, labels)

            slopes = {"prompts": oracle.numerical_gradient(shared, state["prompts"])}
            features, right = self.features(state, images, labels), np.eye(self.task.classes)[labels]
            for name, logits in (("head", self.balanced), ("personal_head", self.logits)):
                error = oracle.softmax(logits(state, images, client)) - right
                slopes[name] = error.T @ features / len(labels)
            state, buffers = self.rates.step(state, slopes, buffers, round_, None)
        return {name: state[name] for name in self.sent}, {name: state[name] for name in self.kept}


class LoRA(Method):
    """FFA-LoRA: B is trained and averaged, A is what was drawn; the change is merged into the weights."""

    def start(self, replies: Mapping[int, State]) -> State:
        return {**super().start(replies), "lora_a": self.first["lora_a"]}

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        a, b, scale = self.first["lora_a"], tensors["lora_b"], self.options["alpha"] / self.options["rank"]
        weights = oracle.lora_merged(self.task.weights, a, b, self.options["layers"], scale)
        return oracle.final_norm(weights, bare_tokens(weights, self.task.heads, pixels))[:, 0]


def bare_tokens(weights: Mapping[str, Array], heads: int, pixels: Array) -> Array:
    """Return the tokens after the last block, without prompts and before the final norm."""
    x = oracle.embed(weights, pixels)
    for block in range(oracle.depth(weights)):
        x = oracle.run_block(weights, block, heads, x)
    return x


class PEP(Method):
    """PEP-FedPT: class prompts mixed by prototypes and priors."""

    def passed(self, tensors: State, pixels: Array, priors: Array) -> dict[str, Any]:
        names = ("shared_prompts", "class_prompts", "prototypes", "has_prototype")
        arguments = [tensors[name] for name in names]
        layers, temperature = self.options["layers"], self.options["temperature"]
        return self.forward(
            oracle.pep_forward,
            pixels,
            *arguments,
            priors,
            tensors["head"],
            layers=layers,
            temperature=temperature,
        )

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        return self.passed(tensors, pixels, priors)["cls"]

    def centroids(self, layer_cls: Array, client: int) -> State:
        centroids, holds, _ = oracle.local_centroids(
            layer_cls, self.task.train_labels[client], self.task.classes
        )
        return {"centroids": centroids, "holds": holds}

    def warm_up(self, client: int) -> State:
        bare = oracle.bare_cls(self.task.weights, self.task.heads, self.task.train[client])
        return self.centroids(bare[list(self.options["layers"])], client)

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        priors = self.task.priors(client)
        told = self.centroids(self.passed(sent, self.task.train[client], priors)["layer_cls"], client)
        trained = {name: sent[name] for name in ("head", "shared_prompts", "class_prompts")}
        mask = {"class_prompts": (priors > 0)[:, None]}
        return {**self.fit(trained, sent, client, next(batches), round_, mask), **told}, {}

    def start(self, replies: Mapping[int, State]) -> State:
        told = [np.array([reply[name] for reply in replies.values()]) for name in ("centroids", "holds")]
        prototypes, known = oracle.warm_start(told[0], told[1].astype(np.int64))
        trained = {name: self.first[name] for name in ("head", "shared_prompts", "class_prompts")}
        nothing = {"centroid_sums": 0 * prototypes, "centroid_weights": np.zeros(self.task.classes)}
        return {**trained, "prototypes": prototypes, "has_prototype": known, **nothing}

    def aggregate(self, state: State, updates: Mapping[int, State], round_: int) -> State:
        trained = ("head", "shared_prompts", "class_prompts")
        after = {**state, **oracle.fedavg([{n: own[n] for n in trained} for own in updates.values()])}
        sums, weights = state["centroid_sums"], state["centroid_weights"]
        for own in updates.values():
            sums, weights = sums + own["centroids"], weights + own["holds"]
        if oracle.is_period_end(round_, self.options["period"]):
            mean, momentum = np.array(sums), self.options["momentum"]
            new, known = np.array(state["prototypes"]), np.array(state["has_prototype"])
            for c in np.flatnonzero(weights):
                mean[:, c] = sums[:, c] / weights[c]
                new[:, c] = momentum * new[:, c] + (1 - momentum) * mean[:, c] if known[c] else mean[:, c]
                known[c] = True
            after |= {"prototypes": new, "has_prototype": known}
            sums, weights = 0 * sums, 0 * weights
        return {**after, "centroid_sums": sums, "centroid_weights": weights}


class SGPT(Method):
    """SGPT: two stages a visit, groups chosen by keys."""

    def parts(self, tensors: State) -> list[Array]:
        """Return the shared prompts of each of the first blocks."""
        count = self.options["shared_blocks"]
        first = len(tensors["shared_prompts"]) - count + 1
        return [tensors["shared_prompts"][:first], *tensors["shared_prompts"][first:, None]]

    def read(self, tensors: State, pixels: Array, selected: NDArray[np.int64] | None) -> Array:
        groups, block = tensors["group_prompts"], self.options["shared_blocks"]
        return self.forward(
            oracle.sgpt_forward,
            pixels,
            self.parts(tensors),
            groups,
            tensors["head"],
            selected=selected,
            first_group_block=block,
        )["features"]

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        queries = self.forward(oracle.sgpt_query, pixels)
        return self.read(tensors, pixels, oracle.sgpt_select(queries, tensors["keys"]))

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        images = self.task.train[client]
        queries, counts = self.forward(oracle.sgpt_query, images), np.zeros(len(sent["keys"]), dtype=np.int64)
        start = {name: sent[name] for name in ("head", "shared_prompts")}
        first = self.fit(
            start,
            sent,
            client,
            next(batches),
            round_,
            features=lambda tensors, rows: self.read(tensors, images[rows], None),
        )
        chosen: dict[bytes, NDArray[np.int64]] = {}

        def grouped(tensors: State, rows: NDArray[np.int64]) -> Array:
            return self.read(tensors, images[rows], chosen[rows.tobytes()])

        def towards_keys(state: State, rows: NDArray[np.int64]) -> State:
            own, groups = queries[rows], chosen[rows.tobytes()]
            return {
                "keys": oracle.numerical_gradient(
                    lambda keys: oracle.sgpt_key_loss(own, keys, groups), state["keys"]
                )
            }

        state = {name: {**sent, **first}[name] for name in ("head", "group_prompts", "keys")}
        buffers: State | None = None
        for rows in next(batches):
            selected = oracle.sgpt_select(queries[rows], state["keys"], sent["counts"], training=True)
            chosen[rows.tobytes()] = selected
            counts = counts + np.bincount(selected, minlength=len(counts))
            fixed = {**sent, **first, **state}
            labels = self.task.train_labels[client][rows]
            without = {name: state[name] for name in ("head", "group_prompts")}
            slopes = slopes_of(lambda now, f=fixed, r=rows: grouped({**f, **now}, r), fixed, without, labels)
            slopes |= towards_keys(state, rows)
            state, buffers = self.rates.step(state, slopes, buffers, round_, None)
        return {**first, **state, "counts": counts}, {}

    def aggregate(self, state: State, updates: Mapping[int, State], round_: int) -> State:
        names = {"group_prompts": "groups"}
        old, *states = [
            {names.get(name, name): own[name] for name in own if name != "counts"}
            for own in ({name: state[name] for name in self.sent}, *updates.values())
        ]
        counts = np.array([own["counts"] for own in updates.values()])
        sizes = [1.0] * len(states)
        new, counter = oracle.sgpt_aggregate(old, states, sizes, counts, state["counts"])
        new["group_prompts"] = new.pop("groups")
        return {**new, "counts": counter}


class PFedPG(Method):
    """pFedPG: generated prompts, a head that stays; a server that learns by AdamW."""

    NAMES = ("basis", "query_weight", "key_weight", "value_weight", "output_weight")

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        return self.forward(oracle.vpt_forward, pixels, tensors["prompts"], tensors["head"])["cls"]

    def generator(self, state: State) -> State:
        return {name.removesuffix("_weight"): state[name] for name in self.NAMES}

    def descriptor(self, state: State, client: int) -> Array:
        ids = list(state["descriptor_ids"])
        return (
            state["descriptors"][ids.index(client), 0]
            if client in ids
            else self.options["descriptors"][client]
        )

    def start(self, replies: Mapping[int, State]) -> State:
        return {name: np.array(value) for name, value in self.first.items() if name != "head"}

    def download(self, state: State, client: int) -> State:
        return {"prompts": oracle.pfedpg_generate(self.generator(state), self.descriptor(state, client))}

    def adapted(self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int) -> State:
        tensors = {"head": self.first["head"], **sent, **memory}
        return self.fit(tensors, tensors, client, next(batches), round_)

    def visit(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int
    ) -> tuple[State, State]:
        after = self.adapted(sent, memory, client, batches, round_)
        return {"prompt_change": after["prompts"] - sent["prompts"]}, {"head": after["head"]}

    def for_test(
        self, sent: State, memory: State, client: int, batches: Iterator[Rows], round_: int, last: bool
    ) -> State:
        if last:
            return self.adapted(sent, memory, client, batches, round_)
        return {"head": self.first["head"], **sent, **memory}

    def aggregate(self, state: State, updates: Mapping[int, State], round_: int) -> State:
        state, clients = dict(state), list(updates)
        for client in clients:
            if client not in state["descriptor_ids"]:
                state["descriptor_ids"] = np.append(state["descriptor_ids"], client)
                fresh = self.options["descriptors"][client][None, None]
                for name, value in (("", fresh), ("_mean", 0 * fresh), ("_square", 0 * fresh)):
                    state["descriptors" + name] = np.concatenate([state["descriptors" + name], value])
                state["descriptors_steps"] = np.append(state["descriptors_steps"], 0)
        places = [list(state["descriptor_ids"]).index(client) for client in clients]
        descriptors = state["descriptors"][places, 0]
        finals = {
            number: self.download(state, client)["prompts"] + updates[client]["prompt_change"]
            for number, client in enumerate(clients)
        }
        slopes, of_descriptors = oracle.pfedpg_server_gradient(self.generator(state), descriptors, finals)
        for name in self.NAMES:
            state |= self.adamw(state, name, slopes[name.removesuffix("_weight")], None)
        return state | self.adamw(state, "descriptors", of_descriptors[:, None], places)

    def adamw(self, state: State, name: str, slope: Array, places: list[int] | None) -> State:
        """Return a tensor and its moments after a step, of some rows only if given."""
        rate, decay = self.options["server_lr"], self.options["server_weight_decay"]
        parts = [np.array(state[name + part]) for part in ("", "_mean", "_square", "_steps")]
        chosen = slice(None) if places is None else places
        value, mean, square, steps = (part[chosen] for part in parts)
        mean, square, steps = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2, steps + 1
        taken = steps.reshape(-1, *[1] * (value.ndim - 1))
        size = np.sqrt(square / (1 - 0.999**taken)) + 1e-8
        value = value * (1 - rate * decay) - rate * mean / (1 - 0.9**taken) / size
        for part, new in zip(parts, (value, mean, square, steps), strict=True):
            part[chosen] = new
        return dict(zip((name + part for part in ("", "_mean", "_square", "_steps")), parts, strict=True))


class ClassMeans(Method):
    """NCM and cue: a head made of class means; cue's prompts are differences from cls in every block."""

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        x, deep = oracle.embed(self.task.weights, pixels), tensors.get("prompts")
        for block in range(oracle.depth(self.task.weights)):
            if deep is not None:
                tokens = x[:, :1] + deep[block]
                x = np.concatenate([x[:, :1], tokens, x[:, 1 + (len(deep[block]) if block else 0) :]], axis=1)
            x = oracle.run_block(self.task.weights, block, self.task.heads, x)
        return oracle.final_norm(self.task.weights, x)[:, 0]

    def logits(self, tensors: State, pixels: Array, client: int) -> Array:
        logits = super().logits(tensors, pixels, client)
        if not self.options["prior"]:
            return logits
        with np.errstate(divide="ignore"):
            return logits + np.log(self.task.priors(client))

    def warm_up(self, client: int) -> State:
        features = self.features(self.first, self.task.train[client], self.task.priors(client))
        labels = self.task.train_labels[client]
        one_hot = np.eye(self.task.classes)[labels]
        reply = {"centroids": (one_hot.T @ features)[None], "holds": one_hot.sum(axis=0).astype(np.int64)}
        if self.options["whiten"]:
            moments = features.T @ features
            lower = np.tril_indices(len(moments))
            reply["moments"] = moments[lower] * np.where(lower[0] == lower[1], 1.0, np.sqrt(2.0))
        return reply

    def start(self, replies: Mapping[int, State]) -> State:
        """Make the head of all images' class means, after whitening if asked for."""
        total = {
            name: sum(reply[name] for reply in replies.values()) for name in next(iter(replies.values()))
        }
        total, counts = single(total), total["holds"]
        known = counts > 0
        means = single({"": total["centroids"][0] / np.maximum(counts, 1)[:, None]})[""]
        transform = np.eye(means.shape[1])
        if self.options["whiten"]:
            width = len(transform)
            whole = np.zeros((width, width))
            whole[np.tril_indices(width)] = total["moments"] / np.sqrt(2.0)
            whole = whole + whole.T + (np.sqrt(2.0) - 2.0) * np.diag(np.diag(whole))
            spread = (whole - (means.T * counts) @ means) / (counts.sum() - known.sum())
            even = np.trace(spread) / width * np.eye(width)
            transform = np.linalg.inv(np.linalg.cholesky(0.9 * spread + 0.1 * even))
        centre = means[known].mean(axis=0)
        rows = (means - centre) @ transform.T
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        head = self.options["scale"] / lengths[known].mean() * (rows / lengths) @ transform
        head[~known] = 0.0
        prompts = {"prompts": self.first["prompts"]} if "prompts" in self.sent else {}
        return {"head": head, "head_bias": -head @ centre, **prompts}


class Ridge(ClassMeans):
    """Fed3R: ridge regression on all images in one place, through an orthogonal basis of the features."""

    def features(self, tensors: State, pixels: Array, priors: Array) -> Array:
        features = super().features({}, pixels, priors)
        drawn = self.options.get("projection")
        return features if drawn is None else np.maximum(features @ drawn, 0.0)

    def start(self, replies: Mapping[int, State]) -> State:
        """Solve on the images themselves, of which the replies are statistics."""
        images = [self.features({}, self.task.train[client], self.task.priors(client)) for client in replies]
        x = np.concatenate(images)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        labels = np.eye(self.task.classes)[np.concatenate([self.task.train_labels[c] for c in replies])]
        left, values, right = np.linalg.svd(x, full_matrices=False)
        weights = right.T @ ((values / (values**2 + self.options["ridge"]))[:, None] * (left.T @ labels))
        lengths = np.linalg.norm(weights[:-1], axis=0)
        lengths[lengths == 0] = 1e-6
        return {"head": (weights[:-1] / lengths).T, "head_bias": weights[-1] / lengths}


class MeansAlone(ClassMeans):
    """FedCOF: covariances from the clients' class means, one class and one client at a time."""

    def start(self, replies: Mapping[int, State]) -> State:
        classes, width = self.task.classes, next(iter(replies.values()))["centroids"].shape[2]
        gram, class_sums, images = np.zeros((width, width)), np.zeros((classes, width)), 0
        for c in range(classes):
            holders = [reply for reply in replies.values() if reply["holds"][c] > 0]
            if not holders:
                continue
            number = sum(reply["holds"][c] for reply in holders)
            class_sums[c] = sum(reply["centroids"][0, c] for reply in holders)
            covariance = np.zeros((width, width))
            for reply in holders:
                apart = reply["centroids"][0, c] / reply["holds"][c] - class_sums[c] / number
                covariance += reply["holds"][c] * np.outer(apart, apart)
            covariance = covariance / max(len(holders) - 1, 1) + self.options["gamma"] * np.eye(width)
            gram, images = gram + (number - 1) * covariance, images + number
        mean = class_sums.sum(axis=0) / images
        head = class_sums @ np.linalg.pinv(gram + images * np.outer(mean, mean))
        lengths = np.linalg.norm(head, axis=1, keepdims=True)
        return {"head": head / np.where(lengths == 0, 1e-6, lengths)}


# The run


@dataclass
class Outcome:
    """What a run leaves."""

    state: State
    memories: dict[int, State]
    tests: list[dict[int, float]]
    """Accuracies by client, for every test."""
    floats: list[dict[str, int]]
    """Floats sent up and down in each round, and before the first."""
    unadapted: dict[int, float]
    """Accuracies by client after the last round, without what clients train for the last test alone."""


def sampled(seed: int, rounds: int, training: Sequence[int], count: int) -> list[list[int]]:
    """Draw the distinct clients of each round, from a stream that seed and round name."""
    drawn = []
    for round_ in range(rounds):
        digest = hashlib.sha256(repr((seed, "sampling", round_)).encode()).digest()
        words = np.random.SeedSequence(np.frombuffer(digest, dtype=np.uint32).tolist())
        chosen = np.random.Generator(np.random.PCG64(words)).choice(len(training), count, replace=False)
        drawn.append([training[place] for place in chosen])
    return drawn


def run(
    method: Method, drawn: Sequence[Sequence[int]], batches: Iterator[Rows], tested_after: Sequence[int]
) -> Outcome:
    """Do a whole run with these clients in the rounds; test after some numbers of rounds."""
    told = {client: reply for client in method.task.training if (reply := method.warm_up(client))}
    replies = told if method.exact else {client: single(reply) for client, reply in told.items()}
    state, memories = method.start(replies), dict[int, State]()
    floats = [{"up": sum(count_floats(reply) for reply in replies.values()), "down": 0}]
    tests = []
    for round_, clients in enumerate(drawn):
        updates, down = {}, 0
        for client in clients:
            sent = method.download(state, client)
            down += count_floats(sent) if method.travels else 0
            updates[client], kept = method.visit(sent, memories.get(client, {}), client, batches, round_)
            memories |= {client: kept} if kept else {}
        up = sum(map(count_floats, updates.values())) if method.travels else 0
        floats.append({"up": up, "down": down})
        state = method.aggregate(state, updates, round_)
        if round_ + 1 in tested_after:
            tests.append(test(method, state, memories, batches, round_ + 1, round_ + 1 == len(drawn)))
    if not drawn:
        tests.append(test(method, state, memories, batches, 0, True))
    plain = test(method, state, memories, batches, len(drawn), False)
    return Outcome(state, memories, tests, floats, plain)


def test(
    method: Method,
    state: State,
    memories: Mapping[int, State],
    batches: Iterator[Rows],
    round_: int,
    last: bool,
) -> dict[int, float]:
    """Return the accuracy of every client that can be served."""
    task, accuracies = method.task, {}
    for client in range(len(task.test)):
        if client in task.heldout and not method.serves_heldout:
            continue
        sent, memory = method.download(state, client), memories.get(client, {})
        tensors = method.for_test(sent, memory, client, batches, round_, last)
        predicted = method.logits(tensors, task.test[client], client).argmax(axis=1)
        accuracies[client] = float(np.mean(predicted == task.test_labels[client]))
    return accuracies


test.__test__ = False  # type: ignore[attr-defined]


def single(tensors: Mapping[str, Array]) -> State:
    """Return numbers as they are in float32: what travels, and sums and means at the server.

    A covariance is a small difference of large numbers: what is rounded before it shows.
    """
    return {
        name: value.astype(np.float32).astype(np.float64) if value.dtype.kind == "f" else value
        for name, value in tensors.items()
    }


def count_floats(tensors: Mapping[str, Array]) -> int:
    """Count the numbers that are neither whole nor truth values."""
    return sum(np.size(value) for value in tensors.values() if np.asarray(value).dtype.kind == "f")


def summary(accuracies: Mapping[int, float], heldout: Sequence[int]) -> dict[str, float | None]:
    """Return mean, worst and low percentiles over the clients that train, and of those held out."""
    result: dict[str, float | None] = {"heldout_mean_accuracy": None, "heldout_worst_accuracy": None}
    for prefix, wanted in (("", False), ("heldout_", True)):
        values = sorted(value for client, value in accuracies.items() if (client in heldout) is wanted)
        if not values:
            continue
        result[f"{prefix}mean_accuracy"] = sum(values) / len(values)
        result[f"{prefix}worst_accuracy"] = values[0]
        for percent in (5, 10, 15):
            place = percent / 100 * (len(values) - 1)
            low, high = values[math.floor(place)], values[math.ceil(place)]
            result[f"{prefix}percentile_{percent}_accuracy"] = low + (place - math.floor(place)) * (
                high - low
            )
    return result


def domain_summary(
    accuracies: Mapping[int, float], sizes: Sequence[int], domains: Sequence[str], heldout: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Return each domain's accuracy, a mean over its clients that train and one over their images."""
    found: dict[str, dict[str, float]] = {}
    for name in domains:
        clients = [c for c in accuracies if domains[c] == name and c not in heldout]
        if clients:
            images = sum(sizes[c] for c in clients)
            found[name] = {
                "client_mean_accuracy": sum(accuracies[c] for c in clients) / len(clients),
                "pooled_accuracy": sum(accuracies[c] * sizes[c] for c in clients) / images,
            }
    return found

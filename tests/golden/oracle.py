"""An independent oracle: every method in plain numpy (float64), simple and slow.

It is written from the paper and the method descriptions alone and imports nothing of ``fedcue``, so that an
agreement between the two is evidence. Numpy arrays go in and come out; nothing is changed in place.

Symbols in the shape comments: ``B`` images of a batch, ``T`` tokens, ``d`` width, ``C`` classes, ``L`` mixed
layers, ``K`` clients (in the SGPT part: groups; in the pFedPG part: prompts). Blocks are counted from 0; the
paper's layer ``l`` is block ``l - 1``. ``weights`` is always a dictionary of arrays with timm's names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]
State = dict[str, Array]

# ------------------------------------------------------------------------------------------------------------
# Small mathematics
# ------------------------------------------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    """Softmax over the last axis; ``-inf`` entries come out as exact zeros."""
    x = np.asarray(x, dtype=np.float64)
    exponential = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponential / exponential.sum(axis=-1, keepdims=True)


def gelu(x: Array) -> Array:
    """The exact GELU: ``x`` times the standard normal distribution function."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float = 1e-6) -> Array:
    """Layer norm over the last axis with the biased variance."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def cosine(a: Array, b: Array) -> Array:
    """Cosines of all pairs of rows, ``[n, d], [m, d] -> [n, m]``; zero where a row has length zero."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    lengths = np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return np.divide(a @ b.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def cross_entropy(logits: Array, labels: NDArray[Any]) -> float:
    """Mean cross-entropy of ``logits [B, C]`` and integer ``labels [B]``."""
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return float(np.mean(log_sum - logits[np.arange(len(labels)), labels]))


def numerical_gradient(function: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """Gradient of a scalar ``function`` at ``x`` by central differences, one coordinate at a time."""
    x = np.array(x, dtype=np.float64)
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


# ------------------------------------------------------------------------------------------------------------
# The Vision Transformer
# ------------------------------------------------------------------------------------------------------------


def depth(weights: Weights) -> int:
    """Number of blocks."""
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))


def embed(weights: Weights, pixels: Array) -> Array:
    """Tokens at the input of block 0: normalised pixels ``[B, 3, H, W] -> [B, T, d]``, cls first.

    The position embedding covers the prefix (cls and registers) when it is long enough for it.
    """
    kernel, bias = weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"]
    size = kernel.shape[-1]
    images = []
    for image in pixels:
        rows, columns = image.shape[1] // size, image.shape[2] // size
        patches = []
        for row in range(rows):
            for column in range(columns):
                patch = image[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
                patches.append((kernel * patch).sum(axis=(1, 2, 3)) + bias)
        prefix = [weights["cls_token"][0]]
        if "reg_token" in weights:
            prefix.append(weights["reg_token"][0])
        positions = weights["pos_embed"][0]
        if len(positions) == len(patches):
            tokens = np.concatenate([*prefix, np.array(patches) + positions])
        else:
            tokens = np.concatenate([*prefix, np.array(patches)]) + positions
        images.append(tokens)
    return np.array(images)


def attention(weights: Weights, block: int, heads: int, x: Array) -> Array:
    """Multi-head self-attention of block ``block`` over normalised tokens, ``[B, T, d] -> [B, T, d]``."""
    name = f"blocks.{block}.attn."
    batch, tokens, width = x.shape
    size = width // heads
    qkv = x @ weights[name + "qkv.weight"].T + weights[name + "qkv.bias"]
    by_head = qkv.reshape(batch, tokens, 3, heads, size).transpose(2, 0, 3, 1, 4)  # [3, B, heads, T, size]
    query, key, value = by_head
    attended = softmax(query @ key.swapaxes(-1, -2) / math.sqrt(size)) @ value
    joined = attended.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    return joined @ weights[name + "proj.weight"].T + weights[name + "proj.bias"]


def run_block(weights: Weights, block: int, heads: int, x: Array) -> Array:
    """One pre-norm block, ``[B, T, d] -> [B, T, d]``; layer scale is applied where its weights exist."""
    name = f"blocks.{block}."
    normed = layer_norm(x, weights[name + "norm1.weight"], weights[name + "norm1.bias"])
    x = x + attention(weights, block, heads, normed) * weights.get(name + "ls1.gamma", np.float64(1))
    normed = layer_norm(x, weights[name + "norm2.weight"], weights[name + "norm2.bias"])
    hidden = gelu(normed @ weights[name + "mlp.fc1.weight"].T + weights[name + "mlp.fc1.bias"])
    out = hidden @ weights[name + "mlp.fc2.weight"].T + weights[name + "mlp.fc2.bias"]
    return x + out * weights.get(name + "ls2.gamma", np.float64(1))


def final_norm(weights: Weights, x: Array) -> Array:
    """The layer norm after the last block."""
    return layer_norm(x, weights["norm.weight"], weights["norm.bias"])


def insert(x: Array, prompts: Array) -> Array:
    """Insert prompts right after cls: ``[B, T, d]`` and ``[n, d]`` or ``[B, n, d] -> [B, n + T, d]``."""
    prompts = np.asarray(prompts, dtype=np.float64)
    if prompts.ndim == 2:
        prompts = np.stack([prompts] * len(x))
    return np.concatenate([x[:, :1], prompts, x[:, 1:]], axis=1)


def classify(features: Array, head: Array, head_bias: Array | None = None) -> Array:
    """Linear head: ``[B, d]`` and ``head [C, d] -> [B, C]``."""
    return features @ head.T + (0.0 if head_bias is None else head_bias)


def bare_cls(weights: Weights, heads: int, pixels: Array) -> Array:
    """The cls token at the input of every block and, last, after the last block, without prompts, before
    the final norm: ``[depth + 1, B, d]``.
    """
    x = embed(weights, pixels)
    cls = [x[:, 0]]
    for block in range(depth(weights)):
        x = run_block(weights, block, heads, x)
        cls.append(x[:, 0])
    return np.array(cls)


# ------------------------------------------------------------------------------------------------------------
# PEP-FedPT: scores, mixing, forward
# ------------------------------------------------------------------------------------------------------------


def class_priors(labels: NDArray[Any], classes: int) -> Array:
    """The label distribution of a client: ``[N] -> [C]``."""
    return np.bincount(labels, minlength=classes) / len(labels)


def scores(
    cls: Array,
    prototypes: Array,
    has_prototype: NDArray[np.bool_],
    priors: Array,
    temperature: float,
    zero_proto: str = "neutral",
) -> Array:
    """Mixing scores of one layer: ``softmax(cosine(cls, prototype) / temperature + log prior)``.

    Shapes: ``cls [B, d]``, ``prototypes [C, d]``, ``has_prototype [C]``, ``priors [C] -> [B, C]``.

    A class without a prototype has no cosine. ``zero_proto="neutral"`` gives it the mean cosine over the
    client's classes (prior above zero) that have one, and the scores are the priors if there is none;
    ``"zero"`` gives it the cosine 0. A class with prior zero has score zero, exactly.
    """
    if zero_proto not in ("neutral", "zero"):
        raise ValueError(f"zero_proto is {zero_proto!r}; allowed: neutral, zero")
    has_prototype = np.asarray(has_prototype, dtype=bool)
    priors = np.asarray(priors, dtype=np.float64)
    similarity = cosine(cls, prototypes)
    known = [c for c in range(len(priors)) if has_prototype[c] and priors[c] > 0]
    result = np.zeros_like(similarity)
    for sample in range(len(similarity)):
        logits = np.full(len(priors), -np.inf)
        for c in range(len(priors)):
            if priors[c] <= 0:
                continue
            if has_prototype[c]:
                value = similarity[sample, c]
            elif zero_proto == "neutral" and known:
                value = similarity[sample, known].mean()
            else:
                value = 0.0
            logits[c] = value / temperature + math.log(priors[c])
        result[sample] = softmax(logits)
    return result


def mix(score: Array, class_prompts: Array) -> Array:
    """The mixed prompt of every sample (eq:pr_mix): ``score [B, C]``, ``class_prompts [C, d] -> [B, d]``."""
    mixed = np.zeros((len(score), class_prompts.shape[1]))
    for sample, row in enumerate(score):
        for c, share in enumerate(row):
            mixed[sample] += share * class_prompts[c]
    return mixed


def pep_forward(
    weights: Weights,
    heads: int,
    pixels: Array,
    shared_prompts: Array,
    class_prompts: Array,
    prototypes: Array,
    has_prototype: NDArray[np.bool_],
    priors: Array,
    head: Array,
    *,
    head_bias: Array | None = None,
    temperature: float = 0.05,
    layers: Sequence[int] = (4, 5, 6),
    mode: str = "replace",
    score_source: str = "prompted",
    zero_proto: str = "neutral",
    fixed_scores: Array | None = None,
) -> dict[str, Any]:
    """The forward pass of PEP-FedPT for one client.

    Shapes: ``pixels [B, 3, H, W]``, ``shared_prompts [n, d]``, ``class_prompts [C, d]``,
    ``prototypes [L, C, d]``, ``has_prototype [C]`` or ``[L, C]``, ``priors [C]``, ``head [C, d]``.

    ``mode``: the mixed prompt has one slot that is overwritten at every mixed layer (``replace``) or takes a
    new slot at each (``accumulate``); in both, the slots stay until the last block. ``score_source``: the
    scores read the cls token at the block's input of this pass (``prompted``) or of a pass without any
    prompt (``bare``). ``fixed_scores [L, B, C]`` replaces the computed scores: differences of the loss are
    then the gradient with detached scores. With ``layers=()`` the method is FedVPT.

    Returns ``logits [B, C]``, ``cls [B, d]`` (after the final norm), ``scores [L, B, C]``,
    ``mixed [L, B, d]``, ``layer_cls [L, B, d]`` (cls of this pass at the input of the mixed blocks),
    ``score_cls [L, B, d]`` (the cls tokens the scores were read from) and ``tokens``, the sequence length
    inside every block.
    """
    if mode not in ("replace", "accumulate"):
        raise ValueError(f"mode is {mode!r}; allowed: replace, accumulate")
    if score_source not in ("prompted", "bare"):
        raise ValueError(f"score_source is {score_source!r}; allowed: prompted, bare")
    layers = sorted(layers)
    has_prototype = np.broadcast_to(has_prototype, (len(layers), len(priors)))
    bare = bare_cls(weights, heads, pixels) if score_source == "bare" else None
    x = insert(embed(weights, pixels), shared_prompts)
    names = ("scores", "mixed", "layer_cls", "score_cls")
    found: dict[str, list[Array]] = {name: [] for name in names}
    tokens = []
    for block in range(depth(weights)):
        if block in layers:
            index = layers.index(block)
            source = x[:, 0] if bare is None else bare[block]
            score = scores(source, prototypes[index], has_prototype[index], priors, temperature, zero_proto)
            if fixed_scores is not None:
                score = fixed_scores[index]
            mixed = mix(score, class_prompts)
            found["scores"].append(score)
            found["mixed"].append(mixed)
            found["layer_cls"].append(x[:, 0].copy())
            found["score_cls"].append(source.copy())
            if mode == "replace" and index > 0:
                x = np.concatenate([x[:, :1], mixed[:, None], x[:, 2:]], axis=1)
            else:
                x = insert(x, mixed[:, None])
        tokens.append(x.shape[1])
        x = run_block(weights, block, heads, x)
    cls = final_norm(weights, x)[:, 0]
    arrays = {name: np.array(value) for name, value in found.items()}
    return {"logits": classify(cls, head, head_bias), "cls": cls, "tokens": tokens, **arrays}


# ------------------------------------------------------------------------------------------------------------
# PEP-FedPT: prototypes
# ------------------------------------------------------------------------------------------------------------


def local_centroids(
    layer_cls: Array, labels: NDArray[Any], classes: int
) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64]]:
    """Class means of a client's cls tokens (eq:centroid_eq_client).

    ``layer_cls [L, N, d]`` and ``labels [N]`` of the whole training set of the client give
    ``centroids [L, C, d]`` (zero for absent classes), ``mask [C]`` (class is held) and ``counts [C]``.
    """
    layers, _, width = layer_cls.shape
    centroids = np.zeros((layers, classes, width))
    counts = np.zeros(classes, dtype=np.int64)
    for c in range(classes):
        members = [i for i, label in enumerate(labels) if label == c]
        counts[c] = len(members)
        if members:
            centroids[:, c] = layer_cls[:, members].mean(axis=1)
    return centroids, counts > 0, counts


def centroid_mean(
    centroids: Array, counts: NDArray[np.int64], weighting: str = "uniform"
) -> tuple[Array, NDArray[np.bool_]]:
    """Mean over the uploads that hold a class (eq:centroid_eq): ``[K, L, C, d], [K, C] -> [L, C, d], [C]``.

    One entry per (round, client) pair: a client sampled twice counts twice. ``weighting="uniform"`` gives
    every holder the same weight, ``"count"`` its number of images of the class.
    """
    if weighting not in ("uniform", "count"):
        raise ValueError(f"weighting is {weighting!r}; allowed: uniform, count")
    _, layers, classes, width = centroids.shape
    mean, present = np.zeros((layers, classes, width)), np.zeros(classes, dtype=bool)
    for c in range(classes):
        total, weight = np.zeros((layers, width)), 0.0
        for upload, count in zip(centroids, counts, strict=True):
            if count[c] > 0:
                share = float(count[c]) if weighting == "count" else 1.0
                total, weight = total + share * upload[:, c], weight + share
        if weight > 0:
            mean[:, c], present[c] = total / weight, True
    return mean, present


def warm_start(
    centroids: Array, counts: NDArray[np.int64], init_mean: str = "nonzero", weighting: str = "uniform"
) -> tuple[Array, NDArray[np.bool_]]:
    """Prototypes before round 0: ``[K, L, C, d], [K, C] -> prototypes [L, C, d], has_prototype [C]``.

    ``init_mean="nonzero"`` averages over the clients that hold the class; ``"literal"`` divides by the number
    of all clients, absent ones counting as zero vectors, as the paper prints it (uniform weighting only).
    """
    if init_mean == "nonzero":
        return centroid_mean(centroids, counts, weighting)
    if init_mean != "literal" or weighting != "uniform":
        raise ValueError("allowed: init_mean=nonzero with any weighting, init_mean=literal with uniform")
    return centroids.sum(axis=0) / len(centroids), counts.sum(axis=0) > 0


def momentum_update(
    prototypes: Array,
    has_prototype: NDArray[np.bool_],
    centroids: Array,
    counts: NDArray[np.int64],
    momentum: float = 0.5,
    weighting: str = "uniform",
) -> tuple[Array, NDArray[np.bool_]]:
    """The server's prototype step at the end of a period (eq:mometum_update).

    ``prototypes [L, C, d]``, ``has_prototype [C]`` and the buffer of the period, ``centroids [K, L, C, d]``
    and ``counts [K, C]`` (``K`` may be 0), give the new prototypes and mask. A class nobody held keeps its
    prototype; a class that had none takes the mean as it is.
    """
    mean, present = centroid_mean(centroids, counts, weighting)
    new = np.array(prototypes, dtype=np.float64)
    for c in range(len(has_prototype)):
        if present[c] and has_prototype[c]:
            new[:, c] = momentum * prototypes[:, c] + (1 - momentum) * mean[:, c]
        elif present[c]:
            new[:, c] = mean[:, c]
    return new, np.asarray(has_prototype, dtype=bool) | present


def is_period_end(round_index: int, period: int = 10) -> bool:
    """Whether the prototypes are updated after round ``round_index`` (counted from 0)."""
    return (round_index + 1) % period == 0


def prototype_history(
    prototypes: Array,
    has_prototype: NDArray[np.bool_],
    uploads: Sequence[Sequence[tuple[Array, NDArray[np.int64]]]],
    period: int = 10,
    momentum: float = 0.5,
    weighting: str = "uniform",
) -> list[tuple[Array, NDArray[np.bool_]]]:
    """The prototypes broadcast in every round, and last those after the final round.

    ``uploads[t]`` holds the ``(centroids [L, C, d], counts [C])`` of the clients of round ``t``. The server
    collects them, updates after every ``period`` rounds, empties the buffer, and broadcasts from the next
    round on. The list has one entry more than there are rounds.
    """
    buffer: list[tuple[Array, NDArray[np.int64]]] = []
    history = [(prototypes, has_prototype)]
    for round_index, uploaded in enumerate(uploads):
        buffer.extend(uploaded)
        if is_period_end(round_index, period) and buffer:
            centroids, counts = (np.array([entry[i] for entry in buffer]) for i in range(2))
            prototypes, has_prototype = momentum_update(
                prototypes, has_prototype, centroids, counts, momentum, weighting
            )
            buffer = []
        history.append((prototypes, has_prototype))
    return history


# ------------------------------------------------------------------------------------------------------------
# Federated averaging and local SGD
# ------------------------------------------------------------------------------------------------------------


def fedavg(states: Sequence[Mapping[str, Array]], sizes: Sequence[float] | None = None) -> State:
    """Average named arrays over clients: uniformly, or in proportion to ``sizes``."""
    shares = [1.0] * len(states) if sizes is None else [float(size) for size in sizes]
    average: State = {}
    for name in states[0]:
        total = np.zeros(np.shape(states[0][name]))
        for share, state in zip(shares, states, strict=True):
            total = total + share * state[name]
        average[name] = total / sum(shares)
    return average


def clip_gradients(gradients: Mapping[str, Array], maximum: float) -> State:
    """Scale all gradients by ``min(1, maximum / (global norm + 1e-6))``, as torch does."""
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    factor = min(1.0, maximum / (norm + 1e-6))
    return {name: gradient * factor for name, gradient in gradients.items()}


def sgd_step(
    parameters: Mapping[str, Array],
    gradients: Mapping[str, Array],
    buffers: Mapping[str, Array] | None,
    learning_rate: float | Mapping[str, float],
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    decay_mask: Mapping[str, Array] | None = None,
) -> tuple[State, State]:
    """One step of torch's SGD: clip, add the decay, update the momentum buffer, move.

    ``learning_rate`` is one for all parameters, or one for each name.
    ``buffers=None`` is a fresh optimiser: the first buffer is the gradient itself. ``decay_mask`` holds, for
    some names, an array that broadcasts to the parameter and multiplies its decay (0: no decay there).
    Returns the new parameters and the new buffers.
    """
    if clip_norm is not None:
        gradients = clip_gradients(gradients, clip_norm)
    new_parameters, new_buffers = {}, {}
    for name, value in parameters.items():
        mask = 1.0 if decay_mask is None else decay_mask.get(name, np.float64(1))
        gradient = gradients[name] + weight_decay * mask * value
        new_buffers[name] = gradient if buffers is None else momentum * buffers[name] + gradient
        rate = learning_rate[name] if isinstance(learning_rate, Mapping) else learning_rate
        new_parameters[name] = value - rate * new_buffers[name]
    return new_parameters, new_buffers


def local_training(
    loss: Callable[[State, Any], float],
    parameters: Mapping[str, Array],
    batches: Sequence[Any],
    **options: Any,
) -> State:
    """Train ``parameters`` on ``batches`` in order with a fresh optimiser and numerical gradients.

    ``loss(parameters, batch)`` is the scalar to reduce; ``options`` are those of :func:`sgd_step`.
    """
    current: State = {name: np.array(value, dtype=np.float64) for name, value in parameters.items()}
    buffers: State | None = None
    for batch in batches:
        gradients = {}
        for name, value in current.items():

            def along(
                candidate: Array, fixed: State = current, name: str = name, batch: Any = batch
            ) -> float:
                return loss({**fixed, name: candidate}, batch)

            gradients[name] = numerical_gradient(along, value)
        current, buffers = sgd_step(current, gradients, buffers, **options)
    return current


# ------------------------------------------------------------------------------------------------------------
# FedVPT, FedVPT-deep
# ------------------------------------------------------------------------------------------------------------


def vpt_forward(
    weights: Weights,
    heads: int,
    pixels: Array,
    prompts: Array,
    head: Array,
    *,
    head_bias: Array | None = None,
    blocks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The forward pass of visual prompt tuning.

    ``prompts [n, d]`` is the shallow form: inserted before block 0 and carried to the end. ``prompts
    [depth, n, d]`` is the deep form: inserted before the first block and overwritten before every later one.
    ``blocks`` names the blocks that own a set in the deep form (all of them by default). ``n`` may be 0:
    Head-Tuning. Returns ``logits [B, C]``, ``cls [B, d]`` after the final norm, and ``tokens`` per block.
    """
    deep = np.ndim(prompts) == 3
    owners = list(range(depth(weights))) if blocks is None else list(blocks)
    owners = owners if deep else [0]
    sets = prompts if deep else [prompts]
    x, tokens = embed(weights, pixels), []
    for block in range(depth(weights)):
        if block in owners:
            index = owners.index(block)
            if index > 0:
                x = np.concatenate([x[:, :1], x[:, 1 + len(sets[index]) :]], axis=1)
            x = insert(x, sets[index])
        tokens.append(x.shape[1])
        x = run_block(weights, block, heads, x)
    cls = final_norm(weights, x)[:, 0]
    return {"logits": classify(cls, head, head_bias), "cls": cls, "tokens": tokens}


# ------------------------------------------------------------------------------------------------------------
# SGPT (K: groups)
# ------------------------------------------------------------------------------------------------------------


def sgpt_query(weights: Weights, heads: int, pixels: Array, last_block: int | None = None) -> Array:
    """Queries ``[B, d]``: cls of the bare ViT, final norm, ReLU, length 1.

    ``last_block`` stops after that block (5 for domain-shift data) instead of the last one.
    """
    cls = bare_cls(weights, heads, pixels)[-1 if last_block is None else last_block + 1]
    positive = np.maximum(final_norm(weights, cls), 0.0)
    return positive / np.linalg.norm(positive, axis=1, keepdims=True)


def sgpt_distances(queries: Array, keys: Array, counter: Array | None = None) -> Array:
    """Distances of ``queries [B, d]`` to ``keys [K, d]``: ``[B, K]``.

    ``1 - cosine``, times ``frequency + 5e-4`` when a non-empty selection ``counter [K]`` is given.
    """
    distance = 1.0 - cosine(queries, keys)
    if counter is not None and np.sum(counter) > 0:
        distance = distance * (np.asarray(counter) / np.sum(counter) + 5e-4)
    return distance


def sgpt_select(
    queries: Array, keys: Array, counter: Array | None = None, training: bool = False, majority: bool = False
) -> NDArray[np.int64]:
    """The group of every sample ``[B]``: the nearest key; ties take the lowest index.

    Only training looks at the ``counter`` and, with ``majority``, gives the whole batch its commonest group.
    """
    chosen = sgpt_distances(queries, keys, counter if training else None).argmin(axis=1)
    if training and majority:
        chosen[:] = np.bincount(chosen, minlength=len(keys)).argmax()
    return chosen


def sgpt_forward(
    weights: Weights,
    heads: int,
    pixels: Array,
    shared: Sequence[Array],
    groups: Array,
    head: Array,
    *,
    selected: NDArray[Any] | None = None,
    head_bias: Array | None = None,
    first_group_block: int = 4,
) -> dict[str, Any]:
    """The forward pass of SGPT; prompts are inserted after cls and accumulate.

    ``shared[b] [n_b, d]`` enters before block ``b``. With ``selected [B]`` (stage 2 and test), the token
    ``groups[j, selected]`` of ``groups [blocks, K, d]`` enters before block ``first_group_block + j``, and
    the head reads the mean of cls and the group tokens after the final norm. Without (stage 1), the group
    path is off and the head reads cls. Returns ``logits``, ``features [B, d]`` and ``tokens`` per block.
    """
    x, tokens = embed(weights, pixels), []
    for block in range(depth(weights)):
        if block < len(shared):
            x = insert(x, shared[block])
        group_block = block - first_group_block
        if selected is not None and 0 <= group_block < len(groups):
            x = insert(x, groups[group_block, selected][:, None])
        tokens.append(x.shape[1])
        x = run_block(weights, block, heads, x)
    # The group tokens were inserted last, so they stand directly after cls.
    read = 1 if selected is None else 1 + len(groups)
    features = final_norm(weights, x)[:, :read].mean(axis=1)
    return {"logits": classify(features, head, head_bias), "features": features, "tokens": tokens}


def sgpt_key_loss(queries: Array, keys: Array, selected: NDArray[Any]) -> float:
    """The term that stage 2 adds to the cross-entropy: minus the mean cosine to the selected key."""
    similarity = cosine(queries, keys)
    return -float(np.mean([similarity[sample, group] for sample, group in enumerate(selected)]))


def sgpt_key_mean(keys: Array, counts: Array, threshold: int = 50) -> Array:
    """Average the clients' ``keys [n, K, d]`` weighted by their ``counts [n, K]`` of each group: ``[K, d]``.

    A group selected at most ``threshold`` times in the round by all clients together is averaged uniformly.
    """
    mean = np.zeros(keys.shape[1:])
    for group in range(keys.shape[1]):
        total = counts[:, group].sum()
        for client in range(len(keys)):
            share = counts[client, group] / total if total > threshold else 1 / len(keys)
            mean[group] += share * keys[client, group]
    return mean


def sgpt_aggregate(
    old: Mapping[str, Array],
    states: Sequence[Mapping[str, Array]],
    sizes: Sequence[float],
    counts: Array,
    counter: Array,
    momentum: float = 0.5,
    key_momentum: float = 0.5,
) -> tuple[State, Array]:
    """The server step of SGPT; returns the new state and the new selection counter ``[K]``.

    The states hold ``keys [K, d]``, ``groups`` and anything else (shared prompts, head): ``sizes``-weighted
    means, except the keys (:func:`sgpt_key_mean` with ``counts [n, K]``); groups and keys then keep a share
    ``momentum`` (``key_momentum``) of their ``old`` value.
    """
    new = fedavg(states, sizes)
    keys = sgpt_key_mean(np.array([state["keys"] for state in states]), counts)
    new["groups"] = momentum * old["groups"] + (1 - momentum) * new["groups"]
    new["keys"] = key_momentum * old["keys"] + (1 - key_momentum) * keys
    return new, np.asarray(counter) + np.asarray(counts).sum(axis=0)


# ------------------------------------------------------------------------------------------------------------
# FedPR
# ------------------------------------------------------------------------------------------------------------


def fedpr_dropped(width: int, ratio: float) -> int:
    """``floor(width * (1 - ratio))`` in exact arithmetic: floats alone would turn 10 * (1 - 0.8) into 1."""
    return math.floor(width * (1 - ratio) + 1e-9)


def fedpr_projector(
    prompts: Array, ratio: float | None = 0.8, directions: Array | None = None, normalise: bool = True
) -> Array:
    """The projector ``[d, d]`` that a prompt update is multiplied with from the right.

    It removes the row space of the broadcast ``prompts [n, d]`` (leading singular directions first) and then
    ``directions [m, d]``, made orthogonal to what is already removed, until ``floor(d * (1 - ratio))``
    directions are gone; ``ratio=None`` removes the row space only. ``normalise`` divides by the
    Frobenius norm.
    """
    width = prompts.shape[1]
    _, singular, right = np.linalg.svd(prompts, full_matrices=False)
    row_space = right[singular > 1e-10 * max(singular.max(), 1e-300)]
    target = len(row_space) if ratio is None else fedpr_dropped(width, ratio)
    removed: list[Array] = []
    for vector in [*row_space, *(() if directions is None else directions)]:
        if len(removed) == target:
            break
        rest = np.array(vector, dtype=np.float64)
        for _ in range(2):  # the second pass removes the rounding error of the first
            for basis in removed:
                rest = rest - (rest @ basis) * basis
        if np.linalg.norm(rest) > 1e-9 * np.linalg.norm(vector):
            removed.append(rest / np.linalg.norm(rest))
    if len(removed) < target:
        raise ValueError(f"{target} directions to remove, only {len(removed)} given")
    projector = np.eye(width)
    for basis in removed:
        projector -= np.outer(basis, basis)
    return projector / np.linalg.norm(projector) if normalise else projector


def fedpr_violations(
    projector: Array, prompts: Array, ratio: float | None = 0.8, normalise: bool = True
) -> dict[str, float]:
    """How far a projector, whatever its extra directions, is from the rules: all values about 0 if right.

    ``symmetry``, ``idempotence`` (after undoing the normalisation), ``rank`` (number of kept directions),
    ``norm`` (Frobenius norm 1 if normalised, else the root of the kept number) and ``row_space`` (the part of
    the prompts that survives; only meaningful if the rank of the prompts is at most the number removed).
    """
    width = projector.shape[0]
    dropped = np.linalg.matrix_rank(prompts) if ratio is None else fedpr_dropped(width, ratio)
    kept = width - int(dropped)
    plain = projector * math.sqrt(kept) if normalise else projector
    return {
        "symmetry": float(np.abs(plain - plain.T).max()),
        "idempotence": float(np.abs(plain @ plain - plain).max()),
        "rank": abs(float(np.trace(plain)) - kept),
        "norm": abs(float(np.linalg.norm(projector)) - (1.0 if normalise else math.sqrt(kept))),
        "row_space": float(np.abs(prompts @ plain).max()),
    }


# ------------------------------------------------------------------------------------------------------------
# LoRA
# ------------------------------------------------------------------------------------------------------------


def lora_merged(weights: Weights, a: Array, b: Array, blocks: Sequence[int], scale: float) -> State:
    """The weights with ``scale * B A`` added to some blocks' query and value projections.

    ``a [blocks, 2, r, d]``, ``b [blocks, 2, d, r]``; 0 is the query's, 1 the value's.
    """
    merged = {name: np.array(value) for name, value in weights.items()}
    for place, block in enumerate(blocks):
        query, key, value = np.split(merged[f"blocks.{block}.attn.qkv.weight"], 3)
        query = query + scale * b[place, 0] @ a[place, 0]
        value = value + scale * b[place, 1] @ a[place, 1]
        merged[f"blocks.{block}.attn.qkv.weight"] = np.concatenate([query, key, value])
    return merged


# ------------------------------------------------------------------------------------------------------------
# pFedPG (K: prompts)
# ------------------------------------------------------------------------------------------------------------


def pfedpg_generate(generator: Mapping[str, Array], descriptor: Array) -> Array:
    """The prompts ``[K, d]`` of a client: the basis plus one cross-attention of the descriptor over it.

    ``generator`` holds ``basis [K, d]``, ``query [d, l_k]``, ``key [d, l_k]``, ``value [d, l_v]`` and
    ``output [l_v, d]``. ``descriptor`` is ``[d]``, added to all prompts alike, or ``[K, d]``, one row each.
    """
    basis = generator["basis"]
    query = np.atleast_2d(descriptor) @ generator["query"]
    logits = query @ (basis @ generator["key"]).T / math.sqrt(query.shape[1])
    return basis + softmax(logits) @ (basis @ generator["value"]) @ generator["output"]


def pfedpg_gradient(generator: Mapping[str, Array], descriptor: Array, upstream: Array) -> State:
    """Gradient of ``sum(upstream * pfedpg_generate(...))`` in the generator's tensors and ``descriptor``.

    ``upstream [K, d]`` is the gradient in the generated prompts; for a client that moved its prompts from
    ``initial`` to ``final`` it is ``initial - final``.
    """
    basis, rows = generator["basis"], np.atleast_2d(descriptor)
    query, key, value = rows @ generator["query"], basis @ generator["key"], basis @ generator["value"]
    scale = math.sqrt(query.shape[1])
    attended = softmax(query @ key.T / scale)
    d_residual = upstream.sum(axis=0, keepdims=True) if len(rows) == 1 else upstream
    d_heads = d_residual @ generator["output"].T
    d_attended = d_heads @ value.T
    d_logits = attended * (d_attended - (d_attended * attended).sum(axis=1, keepdims=True))
    d_query, d_key, d_value = d_logits @ key / scale, d_logits.T @ query / scale, attended.T @ d_heads
    return {
        "basis": upstream + d_key @ generator["key"].T + d_value @ generator["value"].T,
        "query": rows.T @ d_query,
        "key": basis.T @ d_key,
        "value": basis.T @ d_value,
        "output": (attended @ value).T @ d_residual,
        "descriptor": (d_query @ generator["query"].T).reshape(np.shape(descriptor)),
    }


def pfedpg_server_gradient(
    generator: Mapping[str, Array], descriptors: Array, finals: Mapping[int, Array]
) -> tuple[State, Array]:
    """The server's gradient after a round: the mean over the sampled clients.

    ``descriptors [n, d]`` or ``[n, K, d]`` of all clients; ``finals`` maps a sampled client to its prompts
    ``[K, d]`` after training. Returns the gradients of the generator's tensors and of the descriptors, which
    are exactly zero for absent clients.
    """
    total: State = {name: np.zeros_like(value) for name, value in generator.items()}
    d_descriptors = np.zeros_like(descriptors)
    for client, final in finals.items():
        initial = pfedpg_generate(generator, descriptors[client])
        gradient = pfedpg_gradient(generator, descriptors[client], initial - final)
        d_descriptors[client] = gradient["descriptor"] / len(finals)
        for name in total:
            total[name] = total[name] + gradient[name] / len(finals)
    return total, d_descriptors


# ------------------------------------------------------------------------------------------------------------
# Communication
# ------------------------------------------------------------------------------------------------------------


def communication(
    method: str,
    classes: int = 100,
    width: int = 768,
    *,
    prompts: int | None = None,
    depth: int = 12,
    shared: int = 4,
    groups: int = 20,
    group_blocks: int = 3,
    mixed_layers: int = 3,
    held_classes: int | None = None,
    sparse_prompts: bool = False,
    head_bias: bool = False,
) -> dict[str, int]:
    """Numbers that travel per client and round, ``{"down", "up", "down_counts", "up_counts"}``.

    ``method`` is one of head, fedvpt, fedvpt_deep, fedpr, sgpt, pfedpg, ppt, pep. ``prompts`` defaults to 1
    (10 for fedpr and pfedpg). For pep, ``held_classes`` makes the centroids sparse (only classes the client
    holds), and ``sparse_prompts`` the uploaded class prompts too. The counts are integers, sent by sgpt only
    and listed separately.
    """
    count = (10 if method in ("fedpr", "pfedpg") else 1) if prompts is None else prompts
    head = classes * width + (classes if head_bias else 0)
    vectors = {
        "head": 0,
        "fedvpt": count,
        "fedvpt_deep": depth * count,
        "fedpr": count,
        "sgpt": shared + group_blocks * groups + groups,
        "ppt": 0,
    }
    if method == "pfedpg":
        down = up = count * width
    elif method == "pep":
        held = classes if held_classes is None else held_classes
        down = head + (count + classes + mixed_layers * classes) * width
        up = head + (count + (held if sparse_prompts else classes) + mixed_layers * held) * width
    else:
        down = up = head + vectors[method] * width
    counts = groups if method == "sgpt" else 0
    return {"down": down, "up": up, "down_counts": counts, "up_counts": counts}

"""Pre-train the embedded backbone: compress a real ViT-Ti into a ViT of width 128 on natural images.

The student starts from the teacher itself, cut down to the principal directions of its residual stream,
and is then trained to give the teacher's features of larger images and the images' classes.

``train`` goes through three resumable stages kept as safetensors and JSON below ``--work``: decode the
images, cache the teacher's features, train the student. ``export`` writes the weights as the package
ships them and ``report`` prints the tables of the model card.

    python scripts/pretrain_backbone.py train --data ../shared/data --work /tmp/pretrain
    python scripts/pretrain_backbone.py export --work /tmp/pretrain --out src/fedcue/assets/backbone
    python scripts/pretrain_backbone.py report --work /tmp/pretrain --out src/fedcue/assets/backbone

Every random choice depends on the seed and the step alone, so a run that was stopped and resumed ends
with the weights of one that was not. Only training splits are read, and never the digits, which appear
in the report alone.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedcue.model.backbone import load_backbone
from fedcue.model.vit import Architecture, Block, VisionTransformer

ARCHITECTURE = Architecture(width=128, depth=12, heads=4, patch=8, image_size=32, hidden=512)
TEACHER = "vit_tiny_patch16_224"
TEACHER_SIZE = 128
TEACHER_WIDTH = 192
TEACHER_CHUNK = 1000
TEACHER_BATCH = 50
CALIBRATION = 300
HELD_OUT = 0.05
CIFAR_CLASSES = 100
CLASSES = 300

MIDDLE = (4, 5, 6)
TAPS = (*MIDDLE, 8, 10, 12)
FINAL = 12
THUMBNAIL = 8

BATCH = 128
LEARNING_RATE = 5e-4
WEIGHT_DECAY = 0.05
WARMUP = 200
LABEL_SMOOTHING = 0.1
CLIP = 1.0
LOG_EVERY = 50
SAVE_EVERY = 200


@dataclass(frozen=True)
class Corpus:
    """The training images at 32 px, their labels over both data sets, and the held-out images."""

    images: Tensor
    labels: Tensor
    held_images: Tensor
    held_labels: Tensor
    originals: tuple[Tensor, ...]


def decode(path: Path, image: str, label: str) -> dict[str, Tensor]:
    """Decode a parquet file into ``uint8`` images ``[N, 3, H, W]`` and integer labels."""
    table = pq.read_table(path, columns=[image, label])
    pictures = (Image.open(io.BytesIO(cell["bytes"])).convert("RGB") for cell in table[image].to_pylist())
    images = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    return {
        "images": images.permute(0, 3, 1, 2).contiguous(),
        "labels": torch.tensor(table[label].to_pylist()),
    }


def decoded(data: Path, work: Path, name: str, image: str, label: str) -> dict[str, Tensor]:
    """Return the decoded training split of ``name``, decoding it only once."""
    cache = work / f"{name}.safetensors"
    if not cache.exists():
        save(decode(data / name / "train.parquet", image, label), cache)
    return load_file(cache)


def save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors so that an interrupted run never leaves half a file behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def resize(images: Tensor, size: int) -> Tensor:
    """Resample ``uint8`` images to ``size`` pixels, bicubic with antialiasing, still ``uint8``."""
    if images.shape[-1] == size:
        return images
    parts = [
        F.interpolate(part.float(), (size, size), mode="bicubic", antialias=True).round().clamp(0, 255).byte()
        for part in torch.split(images, 500)
    ]
    return torch.cat(parts)


def load_corpus(data: Path, work: Path, seed: int) -> Corpus:
    """Read both training splits and hold out a random 5 % of CIFAR-100's."""
    cifar = decoded(data, work, "cifar100", "img", "fine_label")
    tiny = decoded(data, work, "tiny-imagenet", "image", "label")
    order = torch.randperm(len(cifar["labels"]), generator=torch.Generator().manual_seed(seed))
    count = int(HELD_OUT * len(order))
    held, kept = order[:count], order[count:]
    return Corpus(
        images=torch.cat([cifar["images"][kept], resize(tiny["images"], ARCHITECTURE.image_size)]),
        labels=torch.cat([cifar["labels"][kept], tiny["labels"] + CIFAR_CLASSES]),
        held_images=cifar["images"][held],
        held_labels=cifar["labels"][held],
        originals=(cifar["images"][kept], tiny["images"]),
    )


def load_teacher(data: Path, image_size: int) -> VisionTransformer:
    """Load the frozen teacher for images of ``image_size`` pixels."""
    return load_backbone(str(data / "backbones" / TEACHER), image_size)


@torch.inference_mode()
def teacher_features(corpus: Corpus, data: Path, work: Path) -> Tensor:
    """Return the teacher's final normalised cls token of every training image, cached in chunks."""
    chunks = [chunk for source in corpus.originals for chunk in torch.split(source, TEACHER_CHUNK)]
    paths = [work / "teacher" / f"{index:03d}.safetensors" for index in range(len(chunks))]
    teacher = load_teacher(data, TEACHER_SIZE)
    for path, chunk in zip(paths, chunks, strict=True):
        if not path.exists():
            tokens = [
                teacher(teacher.normalise(resize(images, TEACHER_SIZE)))[:, 0].clone()
                for images in torch.split(chunk, TEACHER_BATCH)
            ]
            save({"features": torch.cat(tokens)}, path)
            print(f"teacher: {path.stem} of {len(paths)}", flush=True)
    return torch.cat([load_file(path)["features"] for path in paths])


class Student(nn.Module):
    """The backbone with the auxiliary heads that are thrown away after training."""

    def __init__(self) -> None:
        super().__init__()
        width = ARCHITECTURE.width
        self.backbone = VisionTransformer(ARCHITECTURE)
        self.classifier = nn.Linear(width, CLASSES)
        self.projections = nn.ModuleDict({str(tap): nn.Linear(width, TEACHER_WIDTH) for tap in TAPS})
        self.thumbnails = nn.ModuleDict({str(tap): nn.Linear(width, THUMBNAIL**2) for tap in MIDDLE})

    def forward(self, pixels: Tensor) -> dict[int, Tensor]:
        """Return the cls token at every tap: the input of a block, or the final normalised one."""
        return {tap: token for tap, token in enumerate(cls_tokens(self.backbone, pixels)) if tap in TAPS}


def blocks_of(backbone: VisionTransformer) -> list[Block]:
    """Return the blocks under their own type."""
    return [block for block in backbone.blocks if isinstance(block, Block)]


def cls_tokens(backbone: VisionTransformer, pixels: Tensor) -> list[Tensor]:
    """Return the cls token at the input of each block and, last, after the final norm."""
    x = backbone.embed(pixels)
    tokens = []
    for index, block in enumerate(backbone.blocks):
        tokens.append(x[:, 0])
        x = block(x, read=1 if index == len(backbone.blocks) - 1 else None)
    return [*tokens, backbone.norm(x)[:, 0]]


def initialise(module: nn.Module, seed: int) -> None:
    """Draw Xavier weights, zero biases and small random cls and position embeddings."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("cls_token", "pos_embed")):
                nn.init.trunc_normal_(parameter, std=0.02, generator=generator)
            elif parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter.flatten(1), generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def zero_mean_basis(width: int) -> Tensor:
    """Return an orthonormal basis ``[width, width - 1]`` of the vectors whose entries sum to zero."""
    vectors = torch.cat([torch.ones(width, 1), torch.eye(width)[:, : width - 1]], 1).double()
    basis: Tensor = torch.linalg.qr(vectors).Q
    return basis[:, 1:]


@torch.inference_mode()
def calibrate(teacher: VisionTransformer, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the covariance of the centred residual stream and the hidden activations of each block."""
    covariance = torch.zeros(TEACHER_WIDTH, TEACHER_WIDTH).double()
    hidden = []
    x = teacher.embed(teacher.normalise(images))
    for block in blocks_of(teacher):
        middle = x + block.attn(block.project(x))
        for stream in (x, middle):
            even = F.layer_norm(stream, stream.shape[-1:]).flatten(0, 1).double()
            covariance += even.T @ even
        hidden.append(F.gelu(block.mlp.fc1(block.norm2(middle))).flatten(0, 1))
        x = block(x)
    return covariance, hidden


def reader(linear: nn.Linear, norm: nn.LayerNorm, lift: Tensor) -> Tensor:
    """Fold a norm's affine part into the layer that reads it: ``[out, width + 1]``, bias last."""
    weight = linear.weight.double() * norm.weight.double()
    bias = linear.bias.double() + linear.weight.double() @ norm.bias.double()
    scale = math.sqrt(TEACHER_WIDTH / ARCHITECTURE.width)
    return torch.cat([weight @ lift * scale, bias[:, None]], 1)


def low_rank(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Factor a matrix into two by its singular values, largest first: ``left @ right``."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left * values.sqrt(), values.sqrt()[:, None] * right, values


def slice_attention(block: Block, source: Block, lift: Tensor) -> None:
    """Compress three heads of 64 dimensions into four of 32: the strongest of the six halves."""
    heads, size = source.attn.heads, ARCHITECTURE.width // ARCHITECTURE.heads
    queries, keys, values = reader(source.attn.qkv, source.norm1, lift).unflatten(0, (3, heads, -1))
    outputs = (lift.T @ source.attn.proj.weight.double()).unflatten(1, (heads, -1))
    ratio = math.sqrt(size / queries.shape[1])
    pieces = []
    for head in range(heads):
        left, right, _ = low_rank(queries[head].T @ keys[head] * ratio)
        out, value, strength = low_rank(outputs[:, head] @ values[head])
        for start in (0, size):
            part = slice(start, start + size)
            weights = (left[:, :size].T, right[:size], value[part], out[:, part])
            pieces.append((float(strength[part].square().sum()), weights))
    pieces.sort(key=lambda piece: -piece[0])
    chosen = [weights for _, weights in pieces[: ARCHITECTURE.heads]]
    projected = torch.cat([torch.cat([weights[kind] for weights in chosen]) for kind in range(3)])
    write(block.attn.qkv, projected[:, :-1], projected[:, -1])
    write(block.attn.proj, torch.cat([w[3] for w in chosen], 1), lift.T @ source.attn.proj.bias.double())


def slice_mlp(block: Block, source: Block, hidden: Tensor, lift: Tensor) -> None:
    """Keep the hidden units that move the stream most; the others leave their mean in the bias."""
    out = lift.T @ source.mlp.fc2.weight.double()
    order = (hidden.double().std(0) * out.norm(dim=0)).argsort(descending=True)
    kept, dropped = order[: ARCHITECTURE.hidden], order[ARCHITECTURE.hidden :]
    rows = reader(source.mlp.fc1, source.norm2, lift)[kept]
    write(block.mlp.fc1, rows[:, :-1], rows[:, -1])
    bias = lift.T @ source.mlp.fc2.bias.double() + out[:, dropped] @ hidden[:, dropped].double().mean(0)
    write(block.mlp.fc2, out[:, kept], bias)


def write(layer: nn.Linear | nn.Conv2d, weight: Tensor, bias: Tensor) -> None:
    """Set the parameters of a layer."""
    layer.weight.copy_(weight.view_as(layer.weight))
    assert layer.bias is not None
    layer.bias.copy_(bias)


@torch.no_grad()
def slice_teacher(backbone: VisionTransformer, teacher: VisionTransformer, images: Tensor) -> None:
    """Start from the teacher: keep the principal directions of its residual stream and its best units.

    The teacher sees images at twice the student's size, so that both have the same grid of patches.
    Affine norms are folded into the layers that read them, which makes a rotation of the centred
    stream exact; the loss is in the dropped directions alone.
    """
    covariance, hidden = calibrate(teacher, images)
    centre = zero_mean_basis(TEACHER_WIDTH)
    directions = torch.linalg.eigh(centre.T @ covariance @ centre).eigenvectors
    kept = ARCHITECTURE.width - 1
    lift = centre @ directions[:, -kept:] @ zero_mean_basis(ARCHITECTURE.width).T
    side = ARCHITECTURE.patch
    enlarge = F.interpolate(torch.eye(side**2).view(-1, 1, side, side), scale_factor=2, mode="bicubic")
    kernel = teacher.patch_embed.proj.weight.flatten(2).double() @ enlarge.flatten(1).double().T
    bias = teacher.patch_embed.proj.bias
    assert bias is not None
    write(backbone.patch_embed.proj, lift.T @ kernel.flatten(1), lift.T @ bias.double())
    backbone.cls_token.copy_(teacher.cls_token.double() @ lift)
    backbone.pos_embed.copy_(teacher.pos_embed.double() @ lift)
    for block, source, activations in zip(blocks_of(backbone), blocks_of(teacher), hidden, strict=True):
        slice_attention(block, source, lift)
        slice_mlp(block, source, activations, lift)


class Augmentation:
    """Batched augmentation of images in [0, 1], every draw from one generator."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, images: Tensor) -> Tensor:
        """Return augmented images of the same shape; 40 % of them keep their colours and details."""
        warped = self._warp(images)
        changed = self._contrast(self._coarsen(self._colours(warped)))
        changed = torch.where(self._chance(len(images), 0.2), 1 - changed, changed)
        return torch.where(self._chance(len(images), 0.4), warped, changed)

    def _uniform(self, count: int, low: float, high: float) -> Tensor:
        return torch.rand(count, generator=self.generator) * (high - low) + low

    def _chance(self, count: int, probability: float) -> Tensor:
        return (self._uniform(count, 0, 1) < probability).view(-1, 1, 1, 1)

    def _warp(self, images: Tensor) -> Tensor:
        """Flip, zoom, shift and slightly rotate, reflecting at the border."""
        count = len(images)
        mirror = torch.where(self._chance(count, 0.5).flatten(), -1.0, 1.0)
        zoom, angle = self._uniform(count, 0.65, 1.15), self._uniform(count, -0.2, 0.2)
        shifts = [self._uniform(count, -0.2, 0.2) for _ in range(2)]
        cosine, sine = zoom * angle.cos(), zoom * angle.sin()
        rows = [
            torch.stack([mirror * cosine, -sine, shifts[0]], 1),
            torch.stack([mirror * sine, cosine, shifts[1]], 1),
        ]
        grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)

    def _colours(self, images: Tensor) -> Tensor:
        """Turn 40 % of the images grey and change the saturation of the others."""
        count = len(images)
        grey = images.mean(1, keepdim=True)
        keep = self._uniform(count, 0.6, 1.3).view(-1, 1, 1, 1)
        keep = torch.where(self._chance(count, 0.4), torch.zeros_like(keep), keep)
        return grey + keep * (images - grey)

    def _coarsen(self, images: Tensor) -> Tensor:
        """Sample a third of the images down to 8 or 16 pixels and up again."""
        images = images.clone()
        size = images.shape[-1]
        for small, share in ((8, 0.15), (16, 0.2)):
            chosen = self._chance(len(images), share).flatten()
            if chosen.any():
                coarse = F.interpolate(images[chosen], (small, small), mode="area")
                images[chosen] = F.interpolate(coarse, (size, size), mode="bicubic")
        return images

    def _contrast(self, images: Tensor) -> Tensor:
        """Change brightness and contrast, 20 % of the images strongly enough to saturate."""
        count = len(images)
        centre = images.mean((1, 2, 3), keepdim=True)
        gain = self._uniform(count, 0.6, 1.6).view(-1, 1, 1, 1)
        gain = torch.where(self._chance(count, 0.2), gain + 3, gain)
        shift = self._uniform(count, -0.2, 0.2).view(-1, 1, 1, 1)
        return ((images - centre) * gain + centre + shift).clamp(0, 1)


def losses(student: Student, images: Tensor, labels: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the weighted terms of the training loss for augmented images in [0, 1]."""
    tokens = student(images * 2 - 1)
    towards = F.normalize(targets, dim=1)
    kinship = towards @ towards.T
    terms = {
        "classes": F.cross_entropy(student.classifier(tokens[FINAL]), labels, label_smoothing=LABEL_SMOOTHING)
    }
    for tap, token in tokens.items():
        even = F.layer_norm(token, token.shape[-1:])
        distance = 1 - F.cosine_similarity(student.projections[str(tap)](even), targets)
        terms[f"teacher{tap}"] = (2.0 if tap == FINAL else 0.5) * distance.mean()
        direction = F.normalize(token, dim=1)
        terms[f"kinship{tap}"] = 0.5 * F.mse_loss(direction @ direction.T, kinship)
    grey = F.interpolate(images.mean(1, keepdim=True), (THUMBNAIL, THUMBNAIL), mode="area").flatten(1)
    for tap in MIDDLE:
        even = F.layer_norm(tokens[tap], tokens[tap].shape[-1:])
        terms[f"thumbnail{tap}"] = 2.0 * F.mse_loss(student.thumbnails[str(tap)](even), grey)
    return terms


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero at ``steps``."""
    if step < WARMUP:
        return LEARNING_RATE * (step + 1) / WARMUP
    progress = min(1.0, (step - WARMUP) / max(1, steps - WARMUP))
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * progress))


def make_optimiser(student: Student) -> torch.optim.AdamW:
    """AdamW that decays matrices but neither biases, norms nor embeddings."""
    named = list(student.named_parameters())
    decayed = [p for name, p in named if p.dim() > 1 and not name.endswith(("cls_token", "pos_embed"))]
    chosen = {id(p) for p in decayed}
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": [p for _, p in named if id(p) not in chosen], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))


def save_checkpoint(student: Student, optimiser: torch.optim.AdamW, step: int, path: Path) -> None:
    """Write weights, optimiser moments and the step into one safetensors file."""
    tensors = {f"model/{name}": tensor for name, tensor in student.state_dict().items()}
    for name, parameter in student.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    save({**tensors, "progress": torch.tensor(step)}, path)


def load_checkpoint(student: Student, optimiser: torch.optim.AdamW | None, path: Path) -> int:
    """Restore what ``save_checkpoint`` wrote and return the number of steps done."""
    tensors = load_file(path)
    student.load_state_dict({name: tensors[f"model/{name}"] for name in student.state_dict()})
    if optimiser is not None:
        for name, parameter in student.named_parameters():
            moments = ("step", "exp_avg", "exp_avg_sq")
            optimiser.state[parameter] = {key: tensors[f"{key}/{name}"].clone() for key in moments}
    return int(tensors["progress"])


def standardise(features: Tensor) -> Tensor:
    """Shift and scale every feature to mean 0 and deviation 1 over the training images."""
    return (features - features.mean(0)) / features.std(0)


def batch_indices(count: int, step: int, seed: int) -> Tensor:
    """Return the images of a step: consecutive slices of a fresh permutation per epoch."""
    epoch, position = divmod(step, count // BATCH)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)[position * BATCH : (position + 1) * BATCH]


@torch.inference_mode()
def held_out_accuracy(student: Student, corpus: Corpus) -> float:
    """Accuracy of the auxiliary classifier over CIFAR-100's classes on the held-out images."""
    correct = 0
    batches = torch.split(corpus.held_images, 250), torch.split(corpus.held_labels, 250)
    for images, labels in zip(*batches, strict=True):
        token = student(student.backbone.normalise(images))[FINAL]
        correct += int((student.classifier(token)[:, :CIFAR_CLASSES].argmax(1) == labels).sum())
    return correct / len(corpus.held_labels)


def update(
    student: Student, optimiser: torch.optim.AdamW, corpus: Corpus, targets: Tensor, step: int, seed: int
) -> dict[str, float]:
    """Take one optimiser step and return the terms of its loss."""
    chosen = batch_indices(len(corpus.labels), step, seed)
    augment = Augmentation(torch.Generator().manual_seed(seed * 1_000_003 + 500_000 + step))
    terms = losses(
        student, augment(corpus.images[chosen].float() / 255), corpus.labels[chosen], targets[chosen]
    )
    optimiser.zero_grad()
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call,unused-ignore]
    nn.utils.clip_grad_norm_(student.parameters(), CLIP)
    optimiser.step()
    return {name: round(term.item(), 4) for name, term in terms.items()}


def start(student: Student, corpus: Corpus, data: Path, seed: int) -> None:
    """Set the weights that training starts from: the cut-down teacher and random auxiliary heads."""
    initialise(student, seed)
    size = 2 * ARCHITECTURE.image_size
    slice_teacher(student.backbone, load_teacher(data, size), resize(corpus.images[:CALIBRATION], size))


def train(options: argparse.Namespace) -> None:
    """Train until the schedule ends or this invocation's minutes are over; resume where it stopped."""
    corpus = load_corpus(options.data, options.work, options.seed)
    targets = standardise(teacher_features(corpus, options.data, options.work))
    checkpoint, log = options.work / "checkpoint.safetensors", options.work / "log.jsonl"
    student = Student()
    optimiser = make_optimiser(student)
    step = 0
    if checkpoint.exists():
        step = load_checkpoint(student, optimiser, checkpoint)
    else:
        start(student, corpus, options.data, options.seed)
    steps = int(options.epochs * (len(corpus.labels) // BATCH))
    began = time.monotonic()
    first = step
    while step < steps and time.monotonic() - began < 60 * options.minutes:
        rate = learning_rate(step, steps)
        for group in optimiser.param_groups:
            group["lr"] = rate
        terms = update(student, optimiser, corpus, targets, step, options.seed)
        step += 1
        if step % LOG_EVERY == 0:
            speed = BATCH * (step - first) / (time.monotonic() - began)
            write_line(log, {"step": step, "of": steps, "rate": rate, "images_per_second": speed, **terms})
        if step % SAVE_EVERY == 0:
            save_checkpoint(student, optimiser, step, checkpoint)
        if step % (5 * SAVE_EVERY) == 0:
            write_line(log, {"step": step, "held_out": held_out_accuracy(student, corpus)})
    save_checkpoint(student, optimiser, step, checkpoint)
    seconds = round(time.monotonic() - began)
    accuracy = held_out_accuracy(student, corpus)
    write_line(log, {"step": step, "of": steps, "seconds": seconds, "held_out": accuracy})


def write_line(log: Path, entry: dict[str, float | int]) -> None:
    """Append one JSON object to the log and show it."""
    line = json.dumps({name: float(f"{value:.5g}") for name, value in entry.items()})
    print(line, flush=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def export(options: argparse.Namespace) -> None:
    """Write the backbone alone, in float16, with the configuration that the loader reads."""
    student = Student()
    load_checkpoint(student, None, options.work / "checkpoint.safetensors")
    options.out.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.half() for name, tensor in student.backbone.state_dict().items()}
    save(weights, options.out / "model.safetensors")
    (options.out / "model.safetensors").chmod(0o644)
    config = {
        "architecture": "vit_fedcue_patch8_32",
        "num_classes": 0,
        "num_features": ARCHITECTURE.width,
        "global_pool": "token",
        "model_args": {
            "img_size": ARCHITECTURE.image_size,
            "patch_size": ARCHITECTURE.patch,
            "embed_dim": ARCHITECTURE.width,
            "depth": ARCHITECTURE.depth,
            "num_heads": ARCHITECTURE.heads,
        },
        "pretrained_cfg": {
            "input_size": [3, ARCHITECTURE.image_size, ARCHITECTURE.image_size],
            "interpolation": "bicubic",
            "mean": list(ARCHITECTURE.mean),
            "std": list(ARCHITECTURE.std),
        },
    }
    (options.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@torch.inference_mode()
def tokens_of(backbone: VisionTransformer, images: Tensor) -> list[Tensor]:
    """Return ``cls_tokens`` of ``uint8`` images, in batches."""
    parts = [cls_tokens(backbone, backbone.normalise(part)) for part in torch.split(images, 250)]
    return [torch.cat(tokens) for tokens in zip(*parts, strict=True)]


def prototype_accuracy(known: Tensor, labels: Tensor, queries: Tensor, truth: Tensor) -> float:
    """Accuracy of the nearest class mean by cosine similarity."""
    means = torch.stack([known[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    scores = F.normalize(queries, dim=1) @ F.normalize(means, dim=1).T
    return float((scores.argmax(1) == truth).float().mean())


def load_digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits as ``uint8`` colour images of 32 pixels in a random order."""
    from sklearn import datasets  # type: ignore[import-untyped,unused-ignore]

    digits = datasets.load_digits()
    small = torch.tensor(digits.images * (255 / 16)).float()[:, None]
    size = ARCHITECTURE.image_size
    images = F.interpolate(small, (size, size), mode="bicubic").round().clamp(0, 255).byte()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images.expand(-1, 3, -1, -1)[order], torch.tensor(digits.target)[order]


def digits_row(backbone: VisionTransformer) -> list[float]:
    """Prototype accuracy on the digits by tap: means from one half, tested on the other."""
    images, labels = load_digits()
    half = len(labels) // 2
    return [
        prototype_accuracy(tokens[:half], labels[:half], tokens[half:], labels[half:])
        for tokens in tokens_of(backbone, images)
    ]


def cifar_row(backbone: VisionTransformer, corpus: Corpus) -> list[float]:
    """Prototype accuracy on the held-out CIFAR-100 images by tap, means from 5,000 training images."""
    known = tokens_of(backbone, corpus.images[:5000])
    held = tokens_of(backbone, corpus.held_images)
    return [
        prototype_accuracy(tokens, corpus.labels[:5000], queries, corpus.held_labels)
        for tokens, queries in zip(known, held, strict=True)
    ]


def random_backbone(seed: int) -> VisionTransformer:
    """Return a backbone of the same shape with random weights."""
    backbone = VisionTransformer(ARCHITECTURE)
    initialise(backbone, seed)
    return backbone.eval()


def mean_row(rows: list[list[float]]) -> list[float]:
    """Average several rows entry by entry."""
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def report(options: argparse.Namespace) -> None:
    """Print the held-out accuracy and the prototype accuracy per block of the exported weights."""
    corpus = load_corpus(options.data, options.work, options.seed)
    backbone = load_backbone(str(options.out))
    untrained = [random_backbone(seed) for seed in range(3)]
    student = Student()
    load_checkpoint(student, None, options.work / "checkpoint.safetensors")
    student.backbone.load_state_dict(backbone.state_dict())
    print(f"Held-out CIFAR-100 accuracy, auxiliary classifier: {held_out_accuracy(student, corpus):.1%}\n")
    start(student, corpus, options.data, options.seed)
    columns = [
        digits_row(backbone),
        digits_row(student.backbone),
        mean_row([digits_row(model) for model in untrained]),
        cifar_row(backbone, corpus),
        cifar_row(student.backbone, corpus),
        mean_row([cifar_row(model, corpus) for model in untrained]),
    ]
    print("| | digits | | | CIFAR-100, held out | | |")
    print("|---|---|---|---|---|---|---|")
    print("| cls token | embedded | before training | random | embedded | before training | random |")
    for tap, cells in enumerate(zip(*columns, strict=True)):
        name = "final, normalised" if tap == FINAL else f"input of block {tap}"
        print(f"| {name} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Pre-train the embedded backbone.")
    parser.add_argument("action", choices=("train", "export", "report"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for caches and the checkpoint")
    parser.add_argument("--out", type=Path, default=Path("src/fedcue/assets/backbone"))
    parser.add_argument("--epochs", type=float, default=6, help="length of the schedule")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop this invocation earlier")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    """Run one action on one thread."""
    torch.set_num_threads(1)
    options = parse()
    options.work.mkdir(parents=True, exist_ok=True)
    {"train": train, "export": export, "report": report}[options.action](options)


if __name__ == "__main__":
    main()

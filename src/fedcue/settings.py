"""Everything that can be set, section by section, with the paper's values as defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from fedcue.registry import Options


class Backbone(Options):
    """Which frozen ViT."""

    name: str = Field(default="embedded", description="'embedded', a folder, or a hub id")
    image_size: int | None = Field(
        default=None, ge=1, le=4096, description="pixels (default: the checkpoint's)"
    )


class Training(Options):
    """How a client trains: the paper's values are the defaults."""

    epochs: int = Field(default=5, ge=1, description="passes over the client's images per visit")
    batch_size: int = Field(default=50, ge=1)
    lr: float = Field(default=0.1, ge=0, description="learning rate of head and prompts")
    head_lr: float | None = Field(default=None, ge=0, description="of the head alone (default: lr)")
    prompt_lr: float | None = Field(default=None, ge=0, description="of the prompts alone (default: lr)")
    lr_decay: float = Field(default=0.998, gt=0, le=1, description="factor per round")
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-3, ge=0)
    clip_norm: float = Field(default=10.0, gt=0, description="global norm of the gradient")


class Evaluation(Options):
    """When and on what clients are tested."""

    every: int = Field(default=1, ge=0, description="rounds between evaluations; 0: only after the last")
    on: Literal["test", "validation"] = "test"
    validation_share: float = Field(
        default=0.1, gt=0, lt=1, description="of each client's training images, where on=validation"
    )
    priors: Literal["labels", "uniform", "em"] = Field(
        default="labels",
        description="class priors at test: of training labels, all equal, or estimated from the test images",
    )
    clients: Literal["all"] | PositiveInt = Field(
        default="all", description="clients tested and described in the results: all, or a seeded sample"
    )
    chunk: int = Field(default=100, ge=1, description="images per batch without gradients")
    cls_sample: int = Field(
        default=200, ge=0, description="test images whose cls tokens are kept for figures"
    )
    prototype_sample: int = Field(
        default=1000, ge=0, description="training and test images for prototype accuracy by block; 0: none"
    )


class Cache(Options):
    """What of the frozen backbone is kept instead of computed again."""

    limit_mb: int = Field(default=4096, ge=0, description="room for values computed once per image")
    folder: Path | None = Field(default=None, description="keep them on disk here instead of in memory")


class Transport(Options):
    """What is put on the wire."""

    name: Literal["dense", "sparse"] = Field(
        default="dense", description="sparse: of class rows only those a client holds; same result"
    )
    dtype: Literal["float32", "float16"] = Field(default="float32", description="of the numbers sent")


class CheckpointOptions(Options):
    """How often a run can be resumed from."""

    every: int = Field(default=1, ge=0, description="rounds between checkpoints; 0: none")
    keep: int = Field(default=2, ge=1, description="newest checkpoints kept")


def _listed(value: Any) -> Any:
    """Let ``log=mlflow`` and ``log=mlflow,tensorboard`` stand for lists."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


Trackers = Annotated[
    tuple[Literal["tensorboard", "mlflow", "wandb"], ...],
    BeforeValidator(_listed),
    Field(description="trackers that are told every round; each needs the extra of its name"),
]


class RunConfig(Options):
    """Everything that determines a run."""

    recipe: str = "custom"
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=100, ge=0, le=100_000)
    clients_per_round: int = Field(default=5, ge=1)
    heldout: float | int | tuple[int, ...] = Field(
        default=0, description="clients that never train: a share, a number or a list of ids"
    )
    warm_start: Literal["all"] | PositiveInt = Field("all", description="clients asked before round 0")
    snapshots: tuple[int, ...] = Field(default=(), description="rounds whose prompts are kept")
    min_updates: int = Field(default=1, ge=1, description="a round with fewer updates is drawn again")
    client_timeout: float | None = Field(default=None, gt=0, description="seconds a client may take")
    workers: int = Field(default=0, ge=0, description="processes of one thread each; 0: one per core")
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the frozen blocks; bfloat16 pays where the hardware has it"
    )
    log: Trackers = ()
    backbone: Backbone = Backbone()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    cache: Cache = Cache()
    checkpoint: CheckpointOptions = CheckpointOptions()
    transport: Transport = Transport()
    method: Any
    data: Any
    partition: Any
    aggregate: Any
    privacy: Any

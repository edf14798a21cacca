"""Everything that can be set beside method, data and protection, section by section.

Each field says once what it matters to (``scope``, see ``config.scope``); without one it shapes the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.config import JsonDict

from fedcue.options import Options
from fedcue.train.settings import Training

_COURSE: JsonDict = {"scope": "course"}
TEST: JsonDict = {"scope": "test"}
_VIEW: JsonDict = {"scope": "view"}
MACHINE: JsonDict = {"scope": "machine"}
WEIGHTS: JsonDict = {"scope": "weights"}
SEED: JsonDict = {"scope": "seed"}


class BackboneOptions(Options):
    """Which frozen ViT."""

    name: str = Field(
        default="embedded",
        description="'embedded', a folder, a .safetensors file, or a hub id",
        json_schema_extra=WEIGHTS,
    )
    image_size: int | None = Field(
        default=None, ge=1, le=4096, description="pixels (default: the checkpoint's)"
    )
    feature_norm: float | None = Field(
        default=None, gt=0, description="length of the final features (default: as the backbone has them)"
    )


class EvaluationOptions(Options):
    """When and on what clients are tested."""

    every: int = Field(
        default=1,
        ge=0,
        description="rounds between evaluations; 0: only after the last",
        json_schema_extra=_COURSE,
    )
    on: Literal["test", "validation"] = Field(default="test", description="which images count")
    validation_share: float = Field(
        default=0.1, gt=0, lt=1, description="of each client's training images, where on=validation"
    )
    priors: Literal["labels", "uniform", "em"] = Field(
        default="labels",
        description="class priors at test: of training labels, all equal, or estimated from the test images",
        json_schema_extra=TEST,
    )
    temperature: float = Field(
        default=1.25,
        gt=0,
        description="of the scores from which priors=em estimates; above 1 each image counts for less",
        json_schema_extra=TEST,
    )
    labelled: int = Field(
        default=0,
        ge=0,
        description="training images of each class whose labels priors=em knows beside the test images",
        json_schema_extra=TEST,
    )
    patience: PositiveInt | None = Field(
        default=None,
        description="end the run after so many evaluated rounds without a better mean accuracy on validation "
        "images (needs on=validation); default: never",
        json_schema_extra=_COURSE,
    )
    clients: Literal["all"] | PositiveInt = Field(
        default="all",
        description="clients tested and described in the results: all, or a seeded sample",
        json_schema_extra=_COURSE,
    )
    chunk: int = Field(
        default=100, ge=1, description="images per batch without gradients", json_schema_extra=_VIEW
    )
    cls_sample: int = Field(
        default=200,
        ge=0,
        description="test images whose cls tokens figures show",
        json_schema_extra=_VIEW,
    )
    prototype_sample: Literal["all"] | NonNegativeInt = Field(
        default=1000,
        description="training and test images for prototype accuracy by block: all, so many, or 0",
        json_schema_extra=_VIEW,
    )

    @model_validator(mode="after")
    def _test_images_decide_nothing(self) -> EvaluationOptions:
        """Refuse to end a run by what its test images say."""
        if self.patience is not None and self.on != "validation":
            raise ValueError(
                "patience ends a run by validation images, not by test images: give evaluation.on=validation"
            )
        return self


class CacheOptions(Options):
    """Which values of the frozen backbone are kept instead of computed again."""

    limit_mb: int = Field(
        default=4096, ge=0, description="room for values computed once per image", json_schema_extra=MACHINE
    )
    folder: Path | None = Field(
        default=None, description="keep them on disk here instead of in memory", json_schema_extra=MACHINE
    )


class TransportOptions(Options):
    """What is put on the wire."""

    name: Literal["dense", "sparse"] = Field(
        default="dense", description="sparse: of class rows only those a client holds; same result"
    )
    dtype: Literal["float32", "float16"] = Field(default="float32", description="of the numbers sent")


def _share_or_whole(number: float) -> float:
    """Refuse what no scheduler can give: more than one, and not a whole number."""
    if number > 1 and number != int(number):
        raise ValueError("must be a share up to 1 or a whole number")
    return number


_Resource = Annotated[float, AfterValidator(_share_or_whole)]


class EngineOptions(Options):
    """Where clients work, and what a worker on a Ray cluster takes; ``workers`` says how many there are."""

    name: Literal["local", "ray"] = Field(
        default="local", description="processes of this machine, or workers on a Ray cluster"
    )
    cpus_per_worker: _Resource = Field(default=1, gt=0, description="cores of a Ray worker, and its threads")
    gpus_per_worker: _Resource | None = Field(
        default=None,
        ge=0,
        description="GPUs of a Ray worker, or a share of one (default: 1 on device=cuda)",
    )
    address: str | None = Field(
        default=None, description="of a Ray cluster (default: RAY_ADDRESS, or one is started here)"
    )
    together: int = Field(
        default=0,
        ge=0,
        description="clients of a round that train in one batch; 0: one, or on a GPU by its memory",
    )
    timeout: float = Field(
        default=600, gt=0, description="seconds a run waits for a Ray worker when there is none"
    )


class CheckpointOptions(Options):
    """How often a run can be resumed from."""

    every: int = Field(
        default=1, ge=0, description="rounds between checkpoints; 0: none", json_schema_extra=MACHINE
    )
    keep: int = Field(default=2, ge=1, description="newest checkpoints kept", json_schema_extra=MACHINE)


def _listed(value: Any) -> Any:
    """Let ``log=mlflow`` and ``log=mlflow,tensorboard`` stand for lists."""
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


Trackers = Annotated[tuple[Literal["tensorboard", "mlflow", "wandb"], ...], BeforeValidator(_listed)]


class CommonSettings(Options):
    """Everything that determines a run beside method, data, partition, aggregate and privacy."""

    recipe: str = Field(default="custom", description="name of the recipe", json_schema_extra=MACHINE)
    seed: int = Field(default=0, ge=0, description="of every random stream", json_schema_extra=SEED)
    rounds: int = Field(
        default=100, ge=0, le=100_000, description="communication rounds (T)", json_schema_extra=_COURSE
    )
    clients_per_round: int = Field(default=5, ge=1, description="clients drawn in a round")
    heldout: float | int | tuple[int, ...] = Field(
        default=0, description="clients that never train: a share, a number or a list of ids"
    )
    pooled: bool = Field(
        default=False,
        description="train one model on all training clients' images together: a bound, not a federation",
    )
    warm_start: Literal["all"] | PositiveInt = Field("all", description="clients asked before round 0")
    snapshots: tuple[int, ...] = Field(
        default=(), description="rounds whose prompts are kept", json_schema_extra=_VIEW
    )
    min_updates: int = Field(
        default=1, ge=1, description="a round with fewer updates is drawn again", json_schema_extra=_COURSE
    )
    client_timeout: float | None = Field(
        default=None, gt=0, description="seconds a client may take", json_schema_extra=MACHINE
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="processes of one thread each; 0: one per core, or all that a Ray cluster has room for",
        json_schema_extra=MACHINE,
    )
    device: str = Field(default="cpu", description="where the model runs", json_schema_extra=MACHINE)
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the frozen blocks; auto: bfloat16 where the hardware multiplies it, else float32",
    )
    log: Trackers = Field(
        default=(),
        description="trackers that are told every round; each needs the extra of its name",
        json_schema_extra=MACHINE,
    )
    backbone: BackboneOptions = BackboneOptions()
    training: Training = Field(default=Training(), json_schema_extra=_COURSE)
    evaluation: EvaluationOptions = EvaluationOptions()
    cache: CacheOptions = CacheOptions()
    engine: EngineOptions = Field(default=EngineOptions(), json_schema_extra=MACHINE)
    checkpoint: CheckpointOptions = CheckpointOptions()
    transport: TransportOptions = TransportOptions()

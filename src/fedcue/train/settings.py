"""How a client trains; the defaults are the paper's values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedcue.options import Options


class Training(Options):
    """How a client trains: the paper's values are the defaults."""

    epochs: int = Field(default=5, ge=1, description="passes over the client's images per visit")
    batch_size: int = Field(default=50, ge=1, description="images per step")
    lr: float = Field(default=0.1, ge=0, description="learning rate of head and prompts")
    head_lr: float | None = Field(default=None, ge=0, description="of the head alone (default: lr)")
    prompt_lr: float | None = Field(default=None, ge=0, description="of the prompts alone (default: lr)")
    class_prompt_lr: float | None = Field(
        default=None, ge=0, description="of the class prompts alone (default: the prompts')"
    )
    lr_decay: float = Field(default=0.998, gt=0, le=1, description="factor per round")
    optimiser: Literal["sgd", "adam"] = Field(
        default="sgd", description="new at every visit unless a method keeps it"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of sgd")
    weight_decay: float = Field(default=1e-3, ge=0, description="of everything that is trained")
    clip_norm: float | None = Field(default=10.0, gt=0, description="global norm of the gradient (none: any)")

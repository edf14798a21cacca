"""Federated prompt-tuning methods, one file each, and all that the author of one imports."""

from pydantic import Field

from fedcue.aggregate.class_means import Prototypes
from fedcue.aggregate.mean import Sums
from fedcue.errors import ConfigError
from fedcue.methods.base import (
    LOGIT_PRIOR,
    PAPER,
    STEADY,
    Blocks,
    LogitPrior,
    Method,
    check_blocks,
    check_layers,
    classify,
    cosines,
)
from fedcue.methods.client import Client
from fedcue.methods.tensors import (
    PromptInit,
    kept,
    kept_as,
    kept_moments,
    linear_head,
    prompt,
    prompt_start,
    reply,
    server,
    statistic,
    trained,
    uniform,
    zeros,
)
from fedcue.model.prompted import (
    Insertion,
    Prompter,
    deep,
    inserted,
    mixed,
    no_prompts,
    query_and_value,
    shallow,
)
from fedcue.model.vit import LowRank
from fedcue.rng import torch_rng
from fedcue.train.batches import Batch
from fedcue.train.sgd import Loss, StepFilter
from fedcue.types import ServerState, Sizes, Tensors, TensorSpec, Update

__all__ = [
    "LOGIT_PRIOR",
    "PAPER",
    "STEADY",
    "Batch",
    "Blocks",
    "Client",
    "ConfigError",
    "Field",
    "Insertion",
    "LogitPrior",
    "Loss",
    "LowRank",
    "Method",
    "PromptInit",
    "Prompter",
    "Prototypes",
    "ServerState",
    "Sizes",
    "StepFilter",
    "Sums",
    "TensorSpec",
    "Tensors",
    "Update",
    "check_blocks",
    "check_layers",
    "classify",
    "cosines",
    "deep",
    "inserted",
    "kept",
    "kept_as",
    "kept_moments",
    "linear_head",
    "mixed",
    "no_prompts",
    "prompt",
    "prompt_start",
    "query_and_value",
    "reply",
    "server",
    "shallow",
    "statistic",
    "torch_rng",
    "trained",
    "uniform",
    "zeros",
]

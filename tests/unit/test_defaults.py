"""Defaults are data: every hyper-parameter of every method, and where its value comes from.

A changed default fails with the place that would have to say so. ``OURS`` marks what no publication states:
decided in ``docs/decisions``.
"""

from __future__ import annotations

import pytest

from fedcue.config.layers import dump, load
from fedcue.methods.base import PAPER
from fedcue.registry import METHODS
from fedcue.train.settings import Training

DETAILS = "PEP-FedPT, appendix, HyperParameter Details"
TABLE = f"{DETAILS}, table of dataset-specific settings"
FEDDYN = "FedDyn's public example, which PEP-FedPT cites for clipping"
FFA_LORA = "FFA-LoRA (ICLR 2024): rank 8, alpha 16, query and value"
VPT = "VPT's public code: uniform within the bound of Xavier for the patch embedding"
SGPT = "SGPT (CVPR 2024), its public code and scripts"
FEDPR = "FedPR (CVPR 2023), its public code"
PFEDPG = "pFedPG (ICCV 2023), implementation details"
COSTS = "PEP-FedPT, table of communication and computation"
METHOD = "PEP-FedPT, section Proposed Method"
FED3R = "Fed3R (ICML 2024), its public code"
FEDCOF = "FedCOF (NeurIPS 2025)"
OURS = "not in any publication"

TRAINING = {
    "optimiser": ("sgd", DETAILS),
    "lr": (0.1, DETAILS),
    "head_lr": (None, f"{DETAILS}: one rate for all"),
    "prompt_lr": (None, f"{DETAILS}: one rate for all"),
    "class_prompt_lr": (None, f"{DETAILS}: one rate for all"),
    "momentum": (0.9, DETAILS),
    "lr_decay": (0.998, f"{DETAILS} ('exponential decay', no number): the value of FedDyn's descendants"),
    "weight_decay": (1e-3, f"not stated by PEP-FedPT; {FEDDYN}"),
    "batch_size": (50, f"not stated by PEP-FedPT; {FEDDYN}"),
    "clip_norm": (10.0, DETAILS),
    "epochs": (5, f"{TABLE} (iNaturalist: 2, in its recipe)"),
}
"""The paper's training, which every method gets under ``profile=paper``."""

COMMON = {
    "head_bias": (False, f"{METHOD}: y = H cls, counted as 100 x 768 in {COSTS}"),
    "weighting": ("uniform", f"{METHOD}, Algorithm 2: the mean over the clients of a round"),
    "logit_prior": ("none", f"{METHOD}: priors enter the mixing alone"),
    "prior_smoothing": (0.0, f"{METHOD}: the empirical label distribution as it is"),
}
"""What every method has."""

METHODS_TABLE = {
    "head": {},
    "fedvpt": {
        "prompts": (1, f"{COSTS}: 77,568 floats"),
        "prompt_init": ("vpt", VPT),
    },
    "fedvpt_deep": {
        "prompts": (1, COSTS),
        "blocks": (
            None,
            "pFedPG (ICCV 2023), its table of parameters: 12 x 768; PEP-FedPT's table implies 11",
        ),
        "prompt_init": ("vpt", VPT),
    },
    "fedpr": {
        "prompts": (10, f"{COSTS}: more than 8.4 M floats in 100 rounds"),
        "prompt_init": ("vpt", f"{VPT}; FedPR's own start is uniform on (0, 1)"),
        "project_first_round": (True, f"{OURS}: prompts of others are there from round 1 on"),
        "keep_optimiser": (False, f"{METHOD}: clients keep nothing"),
        "ratio": (0.8, f"{FEDPR}: the share of directions kept"),
        "normalise_projector": (True, f"{FEDPR}: the projector divided by its Frobenius norm"),
    },
    "sgpt": {
        "groups": (20, f"{SGPT}: CIFAR-100"),
        "shared_blocks": (4, f"{SGPT}: CIFAR-100, ten classes a client"),
        "group_blocks": (3, f"{SGPT}: CIFAR-100, ten classes a client"),
        "prompts": (1, f"{SGPT}: one prompt in each shared block"),
        "prompt_init": ("zeros", f"{SGPT}: shared prompts start with zeros"),
        "query_block": (None, f"{SGPT}: the output; block 6 for domain shift"),
        "batch_majority": (False, f"{SGPT}: for domain shift only"),
        "momentum": (0.5, f"{SGPT}: of the group prompts at the server"),
        "key_momentum": (0.5, f"{SGPT}: of the keys at the server"),
    },
    "pfedpg": {
        "prompts": (10, f"{PFEDPG}: K"),
        "descriptor_vectors": ("one", f"{PFEDPG}: a descriptor is a vector"),
        "descriptor_scale": (1.0, f"{OURS}: {PFEDPG} says nothing of how descriptors start"),
        "server_optimiser": ("adamw", f"{PFEDPG} names none; public ports use AdamW"),
        "server_lr": (1e-3, PFEDPG),
        "server_weight_decay": (1e-6, f"{PFEDPG} gives none; public ports"),
        "evaluation": ("adapt", f"{OURS}: an untrained head could not reach PEP-FedPT's worst client"),
    },
    "ppt": {
        "prompts": (1, "PEP-FedPT, section Experiments: personal prompts under a shared head"),
        "prompt_init": ("vpt", VPT),
        "alternate": (False, f"{OURS}; pFedPT trains one after the other"),
    },
    "pep": {
        "prompts": (1, f"{DETAILS}: n_S (Tiny-ImageNet Dirichlet: 5, in its recipe)"),
        "layers": ([4, 5, 6], f"{DETAILS}: layers 5, 6 and 7, counted from 1"),
        "temperature": (0.05, f"{DETAILS}: tau"),
        "period": (10, f"{TABLE}: centroid update interval"),
        "momentum": (0.5, f"PEP-FedPT gives no rho; {SGPT}: server momentum"),
        "prior": ("client", f"{METHOD}, Estimation of Soft Weights: delta_k"),
        "prompt_init": ("vpt", VPT),
        "ccmp_mode": ("replace", f"{METHOD}, Prompt Design: one slot m in the layer equation"),
        "score_source": ("prompted", f"{METHOD}, Estimation of Soft Weights: cls at the layer's own input"),
        "detach_scores": (False, f"{METHOD}: the mixture is differentiable"),
        "zero_prototype": ("neutral", f"{OURS}: the cosine with a missing prototype is undefined"),
        "initial_mean": ("nonzero", f"{OURS}: the first mean as the later ones (eq:centroid_eq)"),
        "prototype_weight": ("uniform", f"{METHOD}, eq:centroid_eq: holders count alike"),
        "class_average": ("all", f"{METHOD}, Algorithm 2: the mean over the clients of a round"),
    },
    "ncm": {
        "head_bias": (True, f"{OURS}: docs/cue.md"),
        "scale": (10.0, f"{OURS}: docs/cue.md"),
        "whiten": (False, f"{OURS}: docs/cue.md"),
        "covariance": ("moments", f"{OURS}: docs/cue.md"),
    },
    "fed3r": {
        "head_bias": (True, f"{FED3R}: a 1 is appended to the features"),
        "ridge": (0.01, f"{FED3R}: lambda"),
        "features": ("cls", f"{FED3R}: random features are its variant"),
        "width": (2000, f"{OURS}; RanPAC has 10,000"),
    },
    "fedcof": {
        "head_bias": (False, f"{FEDCOF}: no bias"),
        "parts": (1, f"{FEDCOF}: a mean of each class; two are its remedy for few clients"),
        "shrinkage": (1.0, f"{FEDCOF}: gamma for ViT-B/16"),
    },
    "fedrod": {
        "prompts": (0, f"{OURS}: docs/decisions/0019"),
        "prompt_init": ("vpt", VPT),
    },
    "lora": {
        "rank": (8, FFA_LORA),
        "alpha": (16.0, FFA_LORA),
        "train_a": (False, f"{FFA_LORA}: A is drawn and frozen"),
        "layers": (None, f"{FFA_LORA}: every block"),
    },
    "local": {
        "prompts": (1, f"{OURS}: what FedVPT trains, docs/decisions/0019"),
        "prompt_init": ("vpt", VPT),
    },
    "central": {
        "prompts": (1, f"{OURS}: what FedVPT trains, docs/decisions/0019"),
        "prompt_init": ("vpt", VPT),
    },
    "cue": {
        "head_bias": (True, f"{OURS}: docs/cue.md"),
        "logit_prior": ("test", f"{OURS}: docs/cue.md"),
        "scale": (10.0, f"{OURS}: docs/cue.md"),
        "whiten": (True, f"{OURS}: docs/cue.md"),
        "covariance": ("moments", f"{OURS}: docs/cue.md"),
        "prompts": (1, f"{OURS}: docs/cue.md"),
        "blocks": (None, f"{OURS}: docs/cue.md"),
        "head_init": ("prototypes", f"{OURS}: docs/cue.md"),
    },
}
"""What each method has of its own, or otherwise than most."""

NATIVE = {
    "fedpr": {
        "training.optimiser": ("adam", FEDPR),
        "training.lr_decay": (1.0, f"{FEDPR}: a constant rate"),
        "training.clip_norm": (None, f"{FEDPR}: gradients are not clipped"),
        "method.prompt_init": ("unit", f"{FEDPR}: prompts start uniform on (0, 1)"),
        "method.project_first_round": (False, f"{FEDPR}: projectors are made after the first aggregation"),
        "method.keep_optimiser": (True, f"{FEDPR}: each client's optimiser lives as long as the run"),
        "training.lr": (0.1, FEDPR),
        "training.weight_decay": (0.0, FEDPR),
        "training.epochs": (10, FEDPR),
        "method.weighting": ("size", FEDPR),
    },
    "sgpt": {
        "training.lr": (0.01, SGPT),
        "training.lr_decay": (1.0, f"{SGPT}: a constant rate"),
        "training.clip_norm": (None, f"{SGPT}: gradients are not clipped"),
        "training.weight_decay": (1e-5, SGPT),
        "training.batch_size": (40, SGPT),
        "method.head_bias": (True, SGPT),
        "method.weighting": ("size", SGPT),
    },
    "pfedpg": {
        "training.lr": (0.25, PFEDPG),
        "training.weight_decay": (1e-3, PFEDPG),
        "training.batch_size": (64, PFEDPG),
    },
}
"""Where a method's own publication differs from the paper, or says the same."""


def expected(name: str, profile: str) -> dict[str, tuple[object, str]]:
    """Return every hyper-parameter of a method under a profile with its place."""
    table = {f"method.{key}": value for key, value in {**COMMON, **METHODS_TABLE[name]}.items()}
    table |= {f"training.{key}": value for key, value in TRAINING.items()}
    return table | (NATIVE.get(name, {}) if profile == "native" else {})


def found(name: str, *settings: str) -> dict[str, object]:
    """Return what a run of a method would have, under a recipe that says nothing of training."""
    config = load("default", [f"method={name}", *settings])
    plain = dump(config)
    return {
        f"{section}.{key}": plain[section].get(key)
        for section, options in (("method", config.method), ("training", config.training))
        for key in type(options).model_fields
    }


CASES = [(name, profile) for name in METHODS.builtin for profile in ("paper", "native")]


@pytest.mark.parametrize(("name", "profile"), CASES, ids=[f"{n}-{p}" for n, p in CASES])
def test_every_hyper_parameter_is_that_of_its_source(name, profile):
    epochs = [] if "training.epochs" in METHODS.get(name).profiles[profile] else ["training.epochs=5"]
    values, sources = found(name, f"profile={profile}", *epochs), expected(name, profile)
    for key, value in values.items():
        assert key in sources, f"{name}: {key}={value} is in no table: say where it comes from"
        wanted, place = sources[key]
        assert value == wanted, f"{name}, profile={profile}: {key}={value}, but {wanted} is from: {place}"
    assert sources.keys() == values.keys(), f"{name} has no {sources.keys() - values.keys()} any more"


def test_every_method_is_in_the_table():
    assert METHODS_TABLE.keys() == METHODS.builtin.keys()
    assert NATIVE.keys() <= METHODS_TABLE.keys()


def test_the_paper_profile_sets_all_of_the_training_but_the_epochs():
    """Epochs belong to the recipe: the paper has 5, and 2 on iNaturalist."""
    assert {key.removeprefix("training.") for key in PAPER} == set(Training.model_fields) - {"epochs"}
    for name in METHODS.builtin:
        assert METHODS.get(name).profiles["paper"] is PAPER


def test_a_profile_that_is_asked_for_wins_over_a_recipes_training_and_leaves_its_epochs():
    config = load("default", ["method=pep", "profile=paper", "training.epochs=3"])
    assert (config.training.head_lr, config.training.batch_size, config.training.epochs) == (None, 50, 3)


@pytest.mark.parametrize("key", sorted(TRAINING))
def test_training_that_nothing_is_said_of_is_the_papers(key):
    wanted, place = TRAINING[key]
    value = getattr(Training(), key)
    assert value == wanted, f"training.{key}={value} by default, but {wanted} is from: {place}"


def test_the_only_settings_that_methods_fix_are_no_rounds_without_training_and_that_central_pools():
    assert {name: METHODS.get(name).fixed for name in METHODS.builtin if METHODS.get(name).fixed} == {
        **{name: {"rounds": 0} for name in ("ncm", "fed3r", "fedcof")},
        "central": {"pooled": True},
    }

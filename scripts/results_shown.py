"""What docs/results shows: which tables, under which headings, and which runs of them.

A run is named as on the command line, ``METHOD: key=value``; ``+ log prior`` is its test with the client's
log prior added to the logits.
"""

from __future__ import annotations

from pathlib import Path

SPLITS = {
    "cifar100-pathological": "CIFAR-100, 10 classes a client",
    "cifar100-dirichlet": "CIFAR-100, Dir(0.3)",
    "tinyimagenet-pathological": "Tiny-ImageNet, 10 classes a client",
    "tinyimagenet-dirichlet": "Tiny-ImageNet, Dir(0.3)",
    "pacs": "PACS, by domain",
    "cifar100-iid": "CIFAR-100, iid",
}
PATHOLOGICAL, IID = "cifar100-pathological", "cifar100-iid"
ALL_IMAGES = {"cifar100-all-images": "CIFAR-100, 10 classes a client, all images"}
FEW = {"cifar100-30-classes": "30 classes, 5 a client, 60 training images a client"}
TRIALS = {
    "cue-variants": "CIFAR-100, 10 classes a client, validation images",
    "cue-variants-pacs": "PACS, validation images",
}
RATES = {"cue-rates": "CIFAR-100, 10 classes a client", "cue-rates-pacs": "PACS, by domain"}
TUNING, TUNING_ALL_IMAGES = Path("tuning", "trials.json"), Path("tuning", "all-images.json")
WITH_PRIOR = " + log prior"
EVEN = "evaluation.priors=uniform"
CUE_EVEN = f"cue: {EVEN}"
NONE = "–"

ABLATIONS = {
    "PEP-FedPT": "pep",
    "without class prompts (FedVPT)": "fedvpt",
    "priors off in the mixing": "pep: method.prior=uniform",
    "priors only in the mixing (temperature 100)": "pep: method.temperature=100",
    "layers 1-3 instead of 5-7": "pep: method.layers=[0, 1, 2]",
    "layers 8-10": "pep: method.layers=[7, 8, 9]",
    "5 shared prompts instead of 1": "pep: method.prompts=5",
    "mixed prompts accumulate": "pep: method.ccmp_mode=accumulate",
    "scores from a pass without prompts": "pep: method.score_source=bare",
    "no momentum of prototypes": "pep: method.momentum=0",
}
LONG = ": training.epochs=5 training.head_lr=0.005 training.prompt_lr=0.5"
RIVALS = {
    "FedVPT": "fedvpt{}",
    "FedVPT + log prior": "fedvpt{} + log prior",
    "PEP-FedPT": "pep{}",
    "PEP-FedPT + log prior": "pep{} + log prior",
}
PEP_EVEN = "pep: method.prior=uniform"
MIXED_EVENLY = {"PEP-FedPT, mixing without priors, + log prior": PEP_EVEN + WITH_PRIOR}
SHORTER = {
    "PEP-FedPT, mixing without priors, 50 rounds": PEP_EVEN,
    "PEP-FedPT, mixing without priors, 50 rounds + log prior": PEP_EVEN + WITH_PRIOR,
}
WHITENED = "ncm: method.whiten=true + log prior"
DIFFERENCES = [  # table, one run, the other, what is compared
    (PATHOLOGICAL, "cue", "fedvpt_deep + log prior", "cue − FedVPT-D + log prior"),
    (PATHOLOGICAL, CUE_EVEN, "fedvpt_deep", "cue without the prior − FedVPT-D"),
    ("cifar100-dirichlet", "cue", "fedvpt_deep + log prior", "cue − FedVPT-D + log prior"),
    ("tinyimagenet-pathological", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    ("pacs", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    (PATHOLOGICAL, "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    (PATHOLOGICAL, "pep + log prior", "fedvpt + log prior", "PEP-FedPT + log prior − FedVPT + log prior"),
    *(
        (table, PEP_EVEN + WITH_PRIOR, other + WITH_PRIOR, f"mixed without priors − {name}, + log prior")
        for table in (PATHOLOGICAL, "cifar100-30-classes")
        for other, name in (("fedvpt", "FedVPT"), ("pep", "PEP-FedPT"))
    ),
    (PATHOLOGICAL, f"pep{LONG}", f"fedvpt{LONG}", "PEP-FedPT − FedVPT, five epochs"),
    ("cifar100-dirichlet", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("tinyimagenet-pathological", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("pacs", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("cifar100-iid", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("cifar100-iid", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    *(
        (table, *pair)
        for table in ("cifar100-30-classes", "cifar100-all-images")
        for pair in (
            ("pep", "fedvpt", "PEP-FedPT − FedVPT"),
            ("pep + log prior", "fedvpt + log prior", "PEP-FedPT + log prior − FedVPT + log prior"),
            ("pep: method.temperature=100", "pep", "mixing by priors only − PEP-FedPT"),
            ("pep: method.layers=[7, 8, 9]", "pep", "layers 8-10 − 5-7"),
            ("cue", "pep + log prior", "cue − PEP-FedPT + log prior"),
            ("cue", WHITENED, "cue − ncm, whitened + log prior"),
        )
    ),
]
NOISE = {
    "none": "pep",
    "`paper`, its epsilon of 0.2": "pep: privacy=paper",
    "`dp`, epsilon 8, delta 1e-5": "pep: privacy=dp",
    "no prototypes at all: priors only in the mixing": "pep: method.temperature=100",
}
PRIORS = {
    "PEP-FedPT, from labels": "pep",
    "PEP-FedPT, by EM": "pep: evaluation.priors=em",
    "PEP-FedPT, uniform": f"pep: {EVEN}",
    "Cue, from labels": "cue",
    "Cue, by EM": "cue: evaluation.priors=em",
    "Cue, uniform": CUE_EVEN,
}
STEPS = {
    "class means, no training (`ncm`)": "ncm",
    "+ the client's log prior": "ncm + log prior",
    "+ whitened": WHITENED,
    "+ prompts and head tuned (`cue`)": "cue",
}
VARIANTS = {
    "no training: whitened class means with the prior": WHITENED,
    "`cue`, but with the prior in the loss, too": "cue",
    "prior at test only: `cue`": "cue: method.logit_prior=test",
    "prompt rate 5 instead of 1.5": "cue: training.prompt_lr=5",
    "prompt rate 0.5": "cue: training.prompt_lr=0.5",
    "head rate 0.005 instead of 0.0005": "cue: training.head_lr=0.005",
    "class means not whitened": "cue: method.whiten=false",
    "random head instead of class means (head rate 0.02)": (
        "cue: method.head_init=random training.head_lr=0.02"
    ),
    "prompts in the first block only": "cue: method.blocks=1",
    "four prompts a block": "cue: method.prompts=4",
    "PEP-FedPT's mixed class prompts on top": "cue_variants:Mixed",
    "the same, class prompts of their own in each layer": "cue_variants:MixedByLayer",
    "head made anew from refreshed class means, not trained": "cue_variants:Tied: training.head_lr=0",
    "server momentum 0.5": "cue_variants:Momentum",
    "learned temperature": "cue_variants:Scaled",
}

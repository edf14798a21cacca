"""What docs/results shows: which tables, under which headings, and which runs of them.

A run is named as on the command line, ``METHOD: key=value``; ``+ log prior`` is its test with the client's
log prior added to the logits.
"""

from __future__ import annotations

from typing import NamedTuple

MAIN = "cifar100-pathological"
SPLITS = {
    MAIN: "CIFAR-100, 3 of 30 classes a client",
    "cifar100-dirichlet": "CIFAR-100, Dir(0.3)",
    "tinyimagenet-pathological": "Tiny-ImageNet, 3 of 50 classes a client",
    "pacs": "PACS, by domain",
    "cifar100-iid": "CIFAR-100, iid",
}
MIXING = "mixing"
"""The table of PEP-FedPT and FedVPT over classes, classes of a client and images."""
VALIDATION = "validation"
"""The table of runs tested on validation images, which choose rates."""

WITH_PRIOR = " + log prior"
EVEN = "evaluation.priors=uniform"
CUE_EVEN = f"cue: {EVEN}"
PEP_EVEN = "pep: method.prior=uniform"
WHITENED = "ncm: method.whiten=true"
ONE_RATE = "backbone.feature_norm=10 training.head_lr=0.1 training.prompt_lr=0.1"
"""Features of length 10, with which the paper's single rate serves head and prompts."""
HEADLINE = {
    "FedVPT": "fedvpt",
    "PEP-FedPT": "pep",
    "PEP-FedPT, no priors in the mixing": PEP_EVEN,
    "class means, whitened (`ncm`)": WHITENED,
    "`cue` (ours)": "cue",
}
"""The rows of README, by label."""

VARIANTS = {"": "", "method.whiten=true": ", whitened", EVEN: ", without the prior"}
"""The variants that stand in the table of all methods, and what is added to the method's name."""

DIFFERENCES = [  # one run, the other, what is compared
    ("pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("pep", PEP_EVEN, "PEP-FedPT − the same without priors in the mixing"),
    ("pep", "fedvpt_deep", "PEP-FedPT − FedVPT-D"),
    (f"pep: {ONE_RATE}", f"fedvpt: {ONE_RATE}", "PEP-FedPT − FedVPT, the paper's one rate for both"),
    ("fedvpt" + WITH_PRIOR, "pep", "FedVPT + log prior − PEP-FedPT"),
    ("pep" + WITH_PRIOR, "fedvpt" + WITH_PRIOR, "PEP-FedPT − FedVPT, log prior on both"),
    ("cue", "pep" + WITH_PRIOR, "cue − PEP-FedPT + log prior"),
    ("cue", "fedvpt" + WITH_PRIOR, "cue − FedVPT + log prior"),
    ("cue", WHITENED + WITH_PRIOR, "cue − whitened class means + log prior"),
]


class Claim(NamedTuple):
    """What the paper says, the two runs whose difference shows it, and where the paper prints theirs."""

    text: str
    table: str
    one: str
    other: str
    printed: tuple[str, str] = ("", "")
    """Recipe and variant of the first; the table's recipe if none is given."""
    printed_other: tuple[str, str] = ("", "")


PRIORS, LAYERS, NOISE = f"{MAIN}-priors", "cifar100-layers", f"{MAIN}-noise"
PROMPTS, FEDVPT_PROMPTS = "cifar100-prompts", "cifar100-fedvpt-prompts"
DIRICHLET, TINY = "cifar100-dirichlet", "tinyimagenet-pathological"
EARLY, MIDDLE, LATE = "method.layers=[0, 1, 2]", "method.layers=[4, 5, 6]", "method.layers=[7, 8, 9]"
ONE, FIVE, TEN = "method.prompts=1", "method.prompts=5", "method.prompts=10"
FIFTY, HUNDRED = "method.prompts=50", "method.prompts=100"

CLAIMS = [
    Claim("class prompts help", MAIN, "pep", "fedvpt"),
    Claim(
        "priors in the mixing help",
        MAIN,
        "pep",
        PEP_EVEN,
        (PRIORS, "method.prior=client"),
        (PRIORS, "method.prior=uniform"),
    ),
    Claim("layers 5-7 beat 1-3", MAIN, "pep", f"pep: {EARLY}", (LAYERS, MIDDLE), (LAYERS, EARLY)),
    Claim("layers 5-7 beat 8-10", MAIN, "pep", f"pep: {LATE}", (LAYERS, MIDDLE), (LAYERS, LATE)),
    Claim(
        "its noise on centroids costs two points",
        MAIN,
        "pep: privacy=paper",
        "pep",
        (NOISE, "privacy=paper"),
        (NOISE, "privacy=none"),
    ),
    *(
        Claim(
            f"FedVPT gains from {count.rpartition('=')[2]} prompts",
            MAIN,
            f"fedvpt: {count}",
            "fedvpt",
            (FEDVPT_PROMPTS, count),
            (FEDVPT_PROMPTS, ONE),
        )
        for count in (FIFTY, HUNDRED)
    ),
    *(
        Claim(
            f"{count.rpartition('=')[2]} shared prompts beat one",
            DIRICHLET,
            f"pep: {count}",
            "pep",
            (PROMPTS, count),
            (PROMPTS, ONE),
        )
        for count in (FIVE, TEN)
    ),
    Claim("class prompts help under Dir(0.3)", DIRICHLET, "pep", "fedvpt"),
    Claim("class prompts help on Tiny-ImageNet", TINY, "pep", "fedvpt"),
]

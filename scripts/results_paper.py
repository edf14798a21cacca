"""Tables of what the paper prints, from the ``[paper]`` tables of the recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from results import markdown, printed

from fedcue.config.recipes import DOMAIN, NOT_REACHED
from fedcue.report.labels import method_label

METHODS = ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "pfedpg", "ppt", "pep")
LABEL_SKEW = (
    "cifar100-pathological",
    "cifar100-dirichlet",
    "tinyimagenet-pathological",
    "tinyimagenet-dirichlet",
)
HELD_OUT = ("cifar100-heldout", "tinyimagenet-heldout", "inaturalist-heldout", "domainnet-heldout")
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CONCENTRATIONS = ("partition.alpha=0.1", "partition.alpha=0.5")
COST = {  # what is sent to one client in one round, counted from the tensors (test_methods_costs.py)
    "fedvpt": ("FedVPT", 77_568),
    "fedvpt_deep": ("FedVPT-D (11 prompts)", 85_248),
    "sgpt": ("SGPT (88 vectors)", 144_384),
    "fedpr": ("FedPR", 84_480),
    "pep": ("PEP-FedPT", 384_768),
}


def numbers(found: Mapping[str, float], keys: Sequence[str]) -> str:
    """Return numbers side by side."""
    return " / ".join(f"{found[key]:.2f}" if key in found else "–" for key in keys)


def table(columns: Mapping[str, tuple[str, str, Sequence[str]]]) -> str:
    """Return a line for each method; a column is a recipe, a variant and the keys it shows."""
    lines = [["method", *columns]]
    for method in METHODS:
        cells = [
            numbers(printed(recipe, method, variant), keys) for recipe, variant, keys in columns.values()
        ]
        lines.append([method_label(method), *cells])
    return markdown(lines)


def cost() -> str:
    """Return what it takes to reach 83 %: the paper's rounds, floats and seconds, and our floats a round."""
    lines = [
        [
            "method", "rounds to 83 % (paper)", "floats received by one client (paper)", "seconds (paper)",
            "floats per round here",
        ]
    ]  # fmt: skip
    for method, (label, floats) in COST.items():
        found = printed("cifar100-communication", method)
        least, rounds = "", f"{found['rounds']}"
        if NOT_REACHED in found:
            least, rounds = "> ", f"not reached in {rounds}"
        lines.append(
            [
                label,
                rounds,
                f"{least}{found['floats'] / 1e6:g} M",
                f"{least}{found['seconds']:,}",
                f"{floats:,}",
            ]
        )
    return markdown(lines)


def pages() -> dict[str, str]:
    """Return the tables by the name of their section."""
    mean_worst = ("mean", "worst")
    domains: dict[str, tuple[str, str, Sequence[str]]] = {
        domain: ("domainnet", "", (f"{DOMAIN}{domain}",)) for domain in DOMAINS
    }
    users = [("mean", "mean"), ("5 %", "percentile_5"), ("10 %", "percentile_10"), ("15 %", "percentile_15")]
    return {
        "paper-label-skew": table({f"`{recipe}`": (recipe, "", mean_worst) for recipe in LABEL_SKEW}),
        "paper-domains": table(domains | {"mean / worst": ("domainnet", "", mean_worst)}),
        "paper-users": table({name: ("inaturalist", "", (key,)) for name, key in users}),
        "paper-heldout": table(
            {f"`{recipe}`": (recipe, "", ("mean", "heldout_mean")) for recipe in HELD_OUT}
        ),
        "paper-concentrations": table(
            {f"Dir({text[-3:]})": ("cifar100-concentrations", text, mean_worst) for text in CONCENTRATIONS}
        ),
        "paper-cost": cost(),
    }

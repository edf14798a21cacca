"""Keep what is small of finished runs under docs/results, and make the tables and figures of them.

    python scripts/results.py docs/results/cpu RUNS    # of RUNS/RECIPE/METHOD[-KEY=VALUE...]-seedN
    python scripts/results.py docs/results/cpu         # tables and figures again from what is kept

Weights stay where they are, and so do the paths of this machine: data.root and the backbone's folder
become PATH/NAME.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from statistics import fmean, stdev

import tomli_w

from fedcue.config.recipes import read_recipe, recipes
from fedcue.record.folder import read_metrics
from fedcue.report.comparison import compare_runs
from fedcue.report.figures.catalogue import build
from fedcue.report.figures.draw import save
from fedcue.report.groups import group_runs
from fedcue.report.labels import method_label
from fedcue.report.measures import ACCURACIES, Difference
from fedcue.report.runs import find_runs

KEPT = ("summary.json", "metrics.jsonl", "clients.csv")
SPLITS = {
    "cifar100-pathological": "CIFAR-100, 10 classes a client",
    "cifar100-dirichlet": "CIFAR-100, Dir(0.3)",
    "tinyimagenet-pathological": "Tiny-ImageNet, 10 classes a client",
    "tinyimagenet-dirichlet": "Tiny-ImageNet, Dir(0.3)",
    "pacs": "PACS, by domain",
    "cifar100-iid": "CIFAR-100, iid",
}
PATHOLOGICAL = "cifar100-pathological"
IID = "cifar100-iid"
ALL_IMAGES = {"cifar100-all-images": "CIFAR-100, 10 classes a client, all images"}
TRIALS = {
    "cue-variants": "CIFAR-100, 10 classes a client, validation images",
    "cue-variants-pacs": "PACS, validation images",
}
RATES = {"cue-rates": "CIFAR-100, 10 classes a client", "cue-rates-pacs": "PACS, by domain"}
TUNING, TUNING_ALL_IMAGES = Path("tuning", "trials.json"), Path("tuning", "all-images.json")
CONTROL, EVEN = "logit_prior=test", "priors=uniform"
CHANGES = {"whiten=true": ", whitened", CONTROL: " + log prior"}
OF_CUE = CHANGES | {EVEN: ", without the prior"}
ORDER = ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "pfedpg", "ppt", "pep", "ncm", "cue")
NONE = "–"

ABLATIONS = {
    "PEP-FedPT": "pep",
    "without class prompts (FedVPT)": "fedvpt",
    "priors off in the mixing": "pep-prior=uniform",
    "priors only in the mixing (temperature 100)": "pep-temperature=100",
    "layers 1-3 instead of 5-7": "pep-layers=[0,1,2]",
    "layers 8-10": "pep-layers=[7,8,9]",
    "5 shared prompts instead of 1": "pep-prompts=5",
    "mixed prompts accumulate": "pep-ccmp_mode=accumulate",
    "scores from a pass without prompts": "pep-score_source=bare",
    "no momentum of prototypes": "pep-momentum=0",
}
RIVALS = {
    "FedVPT": "fedvpt{}",
    "FedVPT + log prior": "fedvpt{}-" + CONTROL,
    "PEP-FedPT": "pep{}",
    "PEP-FedPT + log prior": "pep{}-" + CONTROL,
}
PEP_EVEN = "pep-prior=uniform"
MIXED_EVENLY = {"PEP-FedPT, mixing without priors, + log prior": f"{PEP_EVEN}-{CONTROL}"}
SHORTER = {
    "PEP-FedPT, mixing without priors, 50 rounds": PEP_EVEN,
    "PEP-FedPT, mixing without priors, 50 rounds + log prior": f"{PEP_EVEN}-{CONTROL}",
}
LONG = "-epochs=5-head_lr=0.005-prompt_lr=0.5"
FEW = {"cifar100-30-classes": "30 classes, 5 a client, 60 training images a client"}
DEEP, WHITENED = f"fedvpt_deep-{CONTROL}", f"ncm-whiten=true-{CONTROL}"
DIFFERENCES = [  # folder, one run, the other, what is compared
    (PATHOLOGICAL, "cue", DEEP, "cue − FedVPT-D + log prior"),
    (PATHOLOGICAL, "cue-priors=uniform", "fedvpt_deep", "cue without the prior − FedVPT-D"),
    ("cifar100-dirichlet", "cue", DEEP, "cue − FedVPT-D + log prior"),
    ("tinyimagenet-pathological", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    ("pacs", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    (PATHOLOGICAL, "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    (PATHOLOGICAL, f"pep-{CONTROL}", f"fedvpt-{CONTROL}", "PEP-FedPT + log prior − FedVPT + log prior"),
    *(
        (folder, f"{PEP_EVEN}-{CONTROL}", f"{other}-{CONTROL}", f"mixed without priors − {name}, + log prior")
        for folder in (PATHOLOGICAL, "cifar100-30-classes")
        for other, name in (("fedvpt", "FedVPT"), ("pep", "PEP-FedPT"))
    ),
    (PATHOLOGICAL, f"pep{LONG}", f"fedvpt{LONG}", "PEP-FedPT − FedVPT, five epochs"),
    ("cifar100-dirichlet", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("tinyimagenet-pathological", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("pacs", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("cifar100-iid", "pep", "fedvpt", "PEP-FedPT − FedVPT"),
    ("cifar100-iid", "cue", WHITENED, "cue − ncm, whitened + log prior"),
    *(
        (folder, *pair)
        for folder in ("cifar100-30-classes", "cifar100-all-images")
        for pair in (
            ("pep", "fedvpt", "PEP-FedPT − FedVPT"),
            (f"pep-{CONTROL}", f"fedvpt-{CONTROL}", "PEP-FedPT + log prior − FedVPT + log prior"),
            ("pep-temperature=100", "pep", "mixing by priors only − PEP-FedPT"),
            ("pep-layers=[7,8,9]", "pep", "layers 8-10 − 5-7"),
            ("cue", f"pep-{CONTROL}", "cue − PEP-FedPT + log prior"),
            ("cue", WHITENED, "cue − ncm, whitened + log prior"),
        )
    ),
]  # fmt: skip
NOISE = {
    "none": "pep",
    "`paper`, its epsilon of 0.2": "pep-privacy=paper",
    "`dp`, epsilon 8, delta 1e-5": "pep-privacy=dp",
    "no prototypes at all: priors only in the mixing": "pep-temperature=100",
}
PRIORS = {
    "PEP-FedPT, from labels": "pep",
    "PEP-FedPT, by EM": "pep-priors=em",
    "PEP-FedPT, uniform": "pep-priors=uniform",
    "Cue, from labels": "cue",
    "Cue, by EM": "cue-priors=em",
    "Cue, uniform": "cue-priors=uniform",
}
STEPS = {
    "class means, no training (`ncm`)": "ncm",
    "+ the client's log prior": "ncm-logit_prior=test",
    "+ whitened": "ncm-whiten=true-logit_prior=test",
    "+ prompts and head tuned (`cue`)": "cue",
}
VARIANTS = {
    "no training: whitened class means with the prior": "ncm-whiten=true-logit_prior=test",
    "`cue`, but with the prior in the loss, too": "cue",
    "prior at test only: `cue`": "cue-logit_prior=test",
    "prompt rate 5 instead of 1.5": "cue-prompt_lr=5",
    "prompt rate 0.5": "cue-prompt_lr=0.5",
    "head rate 0.005 instead of 0.0005": "cue-head_lr=0.005",
    "class means not whitened": "cue-whiten=false",
    "random head instead of class means (head rate 0.02)": "cue-head_init=random-head_lr=0.02",
    "prompts in the first block only": "cue-blocks=1",
    "four prompts a block": "cue-prompts=4",
    "PEP-FedPT's mixed class prompts on top": "Mixed",
    "the same, class prompts of their own in each layer": "MixedByLayer",
    "head made anew from refreshed class means, not trained": "Tied-head_lr=0",
    "server momentum 0.5": "Momentum",
    "learned temperature": "Scaled",
}


def keep(source: Path, target: Path) -> None:
    """Copy the small files of every finished run below ``source``."""
    for run in find_runs([source]):
        if run.state != "finished":
            print(f"left out, {run.state}: {run.path}")
            continue
        folder = target / run.path.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (run.path / name).is_file():
                shutil.copy(run.path / name, folder / name)
        config = tomllib.loads((run.path / "config.toml").read_text())
        if "root" in config["data"]:
            config["data"]["root"] = f"PATH/{Path(config['data']['root']).name}"
        if "/" in config["backbone"]["name"]:
            config["backbone"]["name"] = f"PATH/{Path(config['backbone']['name']).name}"
        (folder / "config.toml").write_text(tomli_w.dumps(config))


def variant(folder: Path) -> tuple[str, str]:
    """Return a run's method and what sets it apart, from its name: METHOD[-KEY=VALUE...]-seedN."""
    method, *changes = folder.name.rpartition("-seed")[0].split("-")
    return method, " ".join(changes)


def tabulate(recipe: Path) -> None:
    """Write the comparison of one recipe's runs, and the curves of methods without and with the prior."""
    groups: dict[tuple[str, str], list[Path]] = {}
    folders = sorted(path.parent for path in recipe.glob("*/config.toml"))
    for folder in sorted(folders, key=lambda f: (ORDER.index(variant(f)[0]), variant(f)[1], f.name)):
        method, text = variant(folder)
        groups.setdefault((f"{method} {text}".strip(), ""), []).append(folder)
    known = read_recipe(recipe.name)[1] if recipe.name in recipes() else {}
    compare_runs(groups, known.get("compare", {}).get("target", 0.8)).write(recipe)
    plain = {folder: EVEN if variant(folder)[0] == "cue" else "" for folder in folders}
    priors = {folder: "" if variant(folder)[0] == "cue" else CONTROL for folder in folders}
    shown = [f for changes in (plain, priors) for f in folders if variant(f)[1] == changes[f]]
    lines = [
        replace(one, label=method_label(variant(one.runs[0].path)[0])) for one in group_runs(find_runs(shown))
    ]
    for name in ("accuracy-rounds", "accuracy-bytes"):
        save(build(name, lines), recipe / f"{name}.png")


def changes_shown(method: str) -> Mapping[str, str]:
    """Return the changes with which a method has rows of its own in the table of all."""
    return OF_CUE if method == "cue" else CHANGES


def overview(target: Path, folders: Iterable[str]) -> dict[str, str]:
    """Return the rows of the table of all methods, each with its control: label, and the runs' name."""
    names = {
        run.name.rpartition("-seed")[0] for folder in folders for run in (target / folder).glob("*-seed*")
    }
    found = [(*variant(target / f"{name}-seed0"), name) for name in names]
    plain = sorted((ORDER.index(m), c, n) for m, c, n in found if set(c.split()) <= set(changes_shown(m)))
    return {
        method_label(ORDER[m]) + "".join(changes_shown(ORDER[m])[change] for change in changes.split()): name
        for m, changes, name in plain
    }


def summary(target: Path, columns: Mapping[str, str]) -> str:
    """Return one row for each method: mean accuracy, that with the log prior at test, and the paper's."""
    lines, known = [["", *columns.values()]], dict.fromkeys(ALL_IMAGES, PATHOLOGICAL)
    for label, name in overview(target, columns).items():
        if {CONTROL, EVEN} & set(variant(target / f"{name}-seed0")[1].split()):
            continue
        cells = []
        for recipe in columns:
            paper = read_recipe(known.get(recipe, recipe))[1].get("paper", {}).get(name, {}).get("mean")
            cell = with_control(target / recipe, name)
            cells.append(f"{cell} ({paper:.1f})" if paper and cell != NONE else cell)
        lines.append([label, *cells])
    return markdown(lines)


def with_control(recipe: Path, name: str, seed: str = "*") -> str:
    """Return a mean accuracy → the same model's with the log prior; cue has the prior built in."""
    pair = (f"{name}-{EVEN}", name) if name == "cue" else (name, f"{name}-{CONTROL}")
    found = [accuracies(recipe, one, ["mean_accuracy"], seed) for one in pair]
    return found[0] if found[1] == NONE else " → ".join(found)


Show = Callable[[Path, str], str]
"""From a folder and the name of its runs to a cell."""


def table(target: Path, rows: Mapping[str, str], columns: Mapping[str, str], show: Show | None = None) -> str:
    """Return accuracies: rows by label with the name of their runs, columns by folder with their heading."""
    lines, show = [["", *columns.values()]], show or accuracies
    for label, name in rows.items():
        cells = [show(target / folder, name) for folder in columns]
        if set(cells) != {NONE}:
            lines.append([label, *cells])
    return markdown(lines)


def of_first_seed(recipe: Path, name: str) -> str:
    """Return the accuracies of seed 0, for tables in which some rows have no other."""
    return accuracies(recipe, name, seed="0")


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines, of which the first are headings, as a Markdown table."""
    rules = [["---", *["---:"] * (len(heads) - 1)] for heads in lines[:1]]
    return "".join(f"| {' | '.join(line)} |\n" for line in (*lines[:1], *rules, *lines[1:]))


def accuracies(recipe: Path, name: str, which: Sequence[str] = ACCURACIES, seed: str = "*") -> str:
    """Return accuracies in %, averaged over seeds, with the standard deviation of the first of them."""
    files = sorted(recipe.glob(f"{escape(name)}-seed{seed}/summary.json"))
    summaries = [json.loads(file.read_text()) for file in files]
    if not summaries:
        return NONE
    values = [[summary[accuracy] for summary in summaries] for accuracy in which]
    shown = ["n/a" if None in seeds else f"{100 * fmean(seeds):.1f}" for seeds in values]
    if len(summaries) > 1:
        shown[0] += f" ± {100 * stdev(values[0]):.1f}"
    return " / ".join(shown)


def by_round(target: Path, recipe: str, rows: Mapping[str, str]) -> str:
    """Return the mean accuracy of each of ``rows`` after the rounds in which it was tested, first seed."""
    tests: dict[str, dict[int, float]] = {}
    for label, name in rows.items():
        if {CONTROL, EVEN}.isdisjoint(name.split("-")):  # those were tested at the end only
            entries = read_metrics(target / recipe / f"{name}-seed0")
            tests[label] = {e["round"]: e["mean_accuracy"] for e in entries if "mean_accuracy" in e}
    rounds = sorted({number for found in tests.values() for number in found})
    lines = [
        [label, *(f"{100 * found[number]:.1f}" if number in found else NONE for number in rounds)]
        for label, found in tests.items()
        if found
    ]
    return markdown([["rounds", *map(str, rounds)], *lines]) if lines else ""


def differences(target: Path, rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Return paired differences of the clients that train, with an interval over them, and by seed."""
    lines = [["", "difference", "95 % interval over clients", "by seed"]]
    for folder, one, other, label in rows:
        ours, theirs = (by_client(target / folder, name) for name in (one, other))
        seeds = [[100 * (ours[s][c] - theirs[s][c]) for c in ours[s]] for s in ours if s in theirs]
        if not seeds:
            continue
        found = Difference(tuple(value for values in seeds for value in values))
        heading, means = (SPLITS | FEW | ALL_IMAGES)[folder], ", ".join(f"{fmean(v):+.1f}" for v in seeds)
        low, high = found.interval or (found.mean, found.mean)
        lines.append([f"{heading}: {label}", f"{found.mean:+.1f}", f"{low:+.1f} to {high:+.1f}", means])
    return markdown(lines)


def by_client(recipe: Path, name: str) -> dict[str, dict[str, float]]:
    """Return the accuracy of each client that trains, by seed and id."""
    found = {}
    for file in sorted(recipe.glob(f"{escape(name)}-seed*/clients.csv")):
        rows = [row for row in csv.DictReader(file.open()) if row["heldout"] == "false"]
        found[file.parent.name.rpartition("-seed")[2]] = {
            row["id"]: float(row["test_accuracy"]) for row in rows
        }
    return found


def rates(target: Path, file: Path) -> str:
    """Return each method's validation accuracy for each pair of rates that was tried, the best in bold."""
    trials = json.loads((target / file).read_text())["trials"] if (target / file).is_file() else []
    cells: dict[str, dict[str, str]] = {}
    for trial in trials:
        pair = f"{trial['training.head_lr']:g}, {trial['training.prompt_lr']:g}"
        accuracy = f"{100 * trial['validation_accuracy']:.1f}"
        cells.setdefault(trial["method"], {})[pair] = f"**{accuracy}**" if trial["chosen"] else accuracy
    heads = list(dict.fromkeys(pair for row in cells.values() for pair in row))
    lines = [[method_label(m), *(cells[m].get(pair, NONE) for pair in heads)] for m in ORDER if m in cells]
    return markdown([["head rate, prompt rate", *heads], *lines])


def pages(target: Path) -> dict[str, str]:
    """Return the tables that the documentation shows, by the name of their section."""
    noisy = with_runs(target, lambda run: run.name.startswith("pep-privacy="))
    seen = with_runs(target, lambda run: variant(run)[0] != "pep")  # not PEP-FedPT alone
    first, methods = {PATHOLOGICAL: SPLITS[PATHOLOGICAL]}, overview(target, SPLITS)
    rates_of_cue = {f"prompt rate {rate}": f"cue-prompt_lr={rate}" for rate in ("0.5", "1.5", "5")}
    return {
        "overview": table(target, methods, seen),
        "summary": summary(
            target, ALL_IMAGES | {recipe: name for recipe, name in seen.items() if recipe != IID}
        ),
        "rounds": by_round(target, PATHOLOGICAL, methods),
        "all-images": table(target, overview(target, ALL_IMAGES) | SHORTER, ALL_IMAGES),
        "all-images-rounds": by_round(target, next(iter(ALL_IMAGES)), overview(target, ALL_IMAGES) | SHORTER),
        "differences": differences(target, DIFFERENCES),
        "ablations": table(
            target, ABLATIONS, FEW | first, lambda recipe, name: with_control(recipe, name, "0")
        ),
        "noise": table(target, NOISE, noisy | FEW, of_first_seed),
        "priors": table(target, PRIORS, first, of_first_seed),
        "steps": table(target, STEPS, seen),
        "variants": table(target, VARIANTS, TRIALS),
        "rates-of-cue": table(target, rates_of_cue, RATES),
        "epochs": table(target, {label: name.format(LONG) for label, name in RIVALS.items()}, first),
        "few": table(target, {label: name.format("") for label, name in RIVALS.items()} | MIXED_EVENLY, FEW),
        "rates": rates(target, TUNING),
        "all-images-rates": rates(target, TUNING_ALL_IMAGES),
    }


def with_runs(target: Path, wanted: Callable[[Path], bool]) -> dict[str, str]:
    """Return the splits that have such a run."""
    return {
        recipe: name for recipe, name in SPLITS.items() if any(map(wanted, (target / recipe).glob("*-seed*")))
    }


def main() -> None:
    """Keep runs, if a folder of them is given; then make every table and figure anew."""
    target = Path(sys.argv[1])
    if len(sys.argv) > 2:
        keep(Path(sys.argv[2]), target)
    for recipe in SPLITS | ALL_IMAGES:
        if (target / recipe).is_dir():
            tabulate(target / recipe)


if __name__ == "__main__":
    main()

"""Keep what is small of finished runs under docs/results, and make the tables and figures of them.

    python scripts/results.py docs/results/cpu RUNS    # of RUNS/RECIPE/METHOD[-KEY=VALUE...]-seedN
    python scripts/results.py docs/results/cpu         # tables and figures again from what is kept

Weights stay where they are, and so do the paths of this machine: data.root and the backbone's folder
become PATH/NAME.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path
from statistics import fmean

import tomli_w

from fedcue.config import read_recipe, recipes
from fedcue.report import tables
from fedcue.report.catalogue import build
from fedcue.report.draw import save
from fedcue.report.runs import find_runs
from fedcue.report.series import method_label, series_of

KEPT = ("summary.json", "metrics.jsonl", "clients.csv")
SPLITS = {
    "cifar100-pathological": "CIFAR-100, 10 classes a client",
    "cifar100-dirichlet": "CIFAR-100, Dir(0.3)",
    "tinyimagenet-pathological": "Tiny-ImageNet, 10 classes a client",
    "pacs": "PACS, by domain",
}
CHANGES = {"whiten=true": ", whitened", "logit_prior=test": " + log prior"}
ORDER = ("head", "fedvpt", "fedvpt_deep", "fedpr", "sgpt", "pfedpg", "ppt", "pep", "ncm", "cue")


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
    """Write the comparison of one recipe's runs, and the curves of those tested in several rounds."""
    groups: dict[tuple[str, str], list[Path]] = {}
    folders = sorted(path.parent for path in recipe.glob("*/config.toml"))
    for folder in sorted(folders, key=lambda f: (ORDER.index(variant(f)[0]), variant(f)[1], f.name)):
        method, text = variant(folder)
        groups.setdefault((f"{method} {text}".strip(), ""), []).append(folder)
    known = read_recipe(recipe.name)[1] if recipe.name in recipes() else {}
    tables.compare(groups, known.get("compare", {}).get("target", 0.8)).write(recipe)
    plain = [path for (name, _), paths in groups.items() if name in ORDER for path in paths]
    runs = [run for run in find_runs(plain) if len(run.rounds) > 1]
    if runs:
        for name in ("accuracy-rounds", "accuracy-bytes"):
            save(build(name, series_of(runs)), recipe / f"{name}.png")


def overview(target: Path) -> str:
    """Return one table of all recipes: mean / worst / held-out accuracy of each method, with its control."""
    seen = [recipe for recipe in SPLITS if (target / recipe).is_dir()]
    groups: dict[tuple[int, str], dict[str, list[Path]]] = {}
    for recipe in seen:
        for file in sorted((target / recipe).glob("*/summary.json")):
            method, changes = variant(file.parent)
            if set(changes.split()) <= set(CHANGES):
                group = groups.setdefault((ORDER.index(method), changes), {})
                group.setdefault(recipe, []).append(file)
    lines = [["", *(SPLITS[recipe] for recipe in seen)], ["---", *["---:"] * len(seen)]]
    for (place, changes), files in sorted(groups.items(), key=lambda item: item[0]):
        label = method_label(ORDER[place]) + "".join(CHANGES[change] for change in changes.split())
        lines.append([label, *(accuracies(files.get(recipe, [])) for recipe in seen)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def accuracies(files: list[Path]) -> str:
    """Return mean / worst / held-out accuracy in %, averaged over seeds, or a dash."""
    if not files:
        return "–"
    summaries = [json.loads(file.read_text()) for file in files]
    names = ("mean_accuracy", "worst_accuracy", "heldout_mean_accuracy")
    values = [[summary[name] for summary in summaries] for name in names]
    shown = ["n/a" if None in seeds else f"{100 * fmean(seeds):.1f}" for seeds in values]
    return " / ".join(shown) + (f" ({len(files)} seeds)" if len(files) > 1 else "")


def main() -> None:
    """Keep runs, if a folder of them is given; then make every table and figure anew."""
    target = Path(sys.argv[1])
    if len(sys.argv) > 2:
        keep(Path(sys.argv[2]), target)
    for recipe in sorted(path for path in target.iterdir() if path.is_dir()):
        tabulate(recipe)
    (target / "overview.md").write_text(overview(target))


if __name__ == "__main__":
    main()

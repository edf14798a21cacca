"""Every figure by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedcue.errors import ConfigError, RunFolderError, unknown
from fedcue.report.figures import (
    clients,
    curves,
    generalisation,
    partitions,
    prompts,
    prototypes,
    sensitivity,
    tokens,
)
from fedcue.report.figures.figure import Figure
from fedcue.report.groups import RunGroup

_Builder = Callable[[Sequence[RunGroup]], Figure | None]


@dataclass(frozen=True)
class Entry:
    """How a figure is made, which section of the page shows it (none: no section) and what it needs."""

    build: _Builder
    section: str
    needs: str


FIGURES: dict[str, Entry] = {
    "accuracy-rounds": Entry(curves.accuracy_by_round, "training", "rounds that were evaluated"),
    "accuracy-bytes": Entry(curves.accuracy_by_bytes, "training", "rounds that were evaluated"),
    "loss-rounds": Entry(curves.loss_by_round, "training", "at least one round"),
    "loss-bytes": Entry(curves.loss_by_bytes, "training", "at least one round"),
    "cost-to-target": Entry(curves.cost_figure, "training", "rounds that were evaluated"),
    "clients": Entry(clients.client_accuracies, "clients", "a finished run"),
    "domains": Entry(clients.domain_accuracies, "clients", "a finished run on several domains"),
    "partition": Entry(partitions.partition_map, "partition", "a finished run"),
    "domain-map": Entry(partitions.domain_map, "partition", "a finished run on several domains"),
    "generalisation": Entry(
        generalisation.generalisation, "generalisation", "a finished run with held-out clients"
    ),
    "mixing-weights": Entry(prompts.mixing_weights, "inside", "a finished run of pep"),
    "mixing-weights-classes": Entry(prompts.mixing_weights_of_classes, "", "a finished run of pep"),
    "class-prompts": Entry(prompts.class_prompts, "inside", "a finished run of pep"),
    "class-prompts-evolution": Entry(
        prompts.class_prompts_evolution,
        "inside",
        "a run of pep with two or more snapshots, such as snapshots=[0,10,20]",
    ),
    "cls-tokens": Entry(tokens.cls_tokens, "inside", "a finished run with evaluation.cls_sample above 0"),
    "prototype-accuracy": Entry(
        prototypes.prototype_accuracy,
        "inside",
        "a finished run with evaluation.prototype_sample above 0",
    ),
    "prototype-drift": Entry(
        prototypes.prototype_drift,
        "inside",
        "a run of pep with two or more snapshots, such as snapshots=[0,10,20]",
    ),
    "sensitivity": Entry(
        sensitivity.sensitivity, "sensitivity", "runs of one method that differ in one setting"
    ),
    "privacy": Entry(curves.privacy_by_round, "privacy", "a run that accounts for its privacy"),
}


def build(name: str, groups: Sequence[RunGroup], target: float | None = None, classes: str = "0,1") -> Figure:
    """Make one figure or say what it needs; ``target`` and ``classes`` matter to one figure each."""
    if name not in FIGURES:
        raise ConfigError(unknown("figure", name, FIGURES))
    if name == "cost-to-target":
        figure = curves.cost_figure(groups, target)
    elif name == "mixing-weights-classes":
        figure = prompts.mixing_weights_of_classes(groups, _numbers(classes))
    else:
        figure = FIGURES[name].build(groups)
    if figure is None:
        raise RunFolderError(f"Figure {name} has nothing to show: it needs {FIGURES[name].needs}.")
    return figure


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--classes {text!r} must be numbers of classes such as 0,1.")
    return [int(part) for part in parts]


def build_all(groups: Sequence[RunGroup]) -> dict[str, list[Figure]]:
    """Make every figure the runs allow, by section of the page."""
    sections: dict[str, list[Figure]] = {}
    for entry in FIGURES.values():
        figure = entry.build(groups) if entry.section else None
        if figure is not None:
            sections.setdefault(entry.section, []).append(figure)
    return sections

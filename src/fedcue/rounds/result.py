"""What a finished run leaves: its numbers, and the description of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedcue.clients.roster import Roster
from fedcue.config.layers import dump
from fedcue.config.settings import RunConfig
from fedcue.errors import many
from fedcue.evaluate.accuracy import Accuracies
from fedcue.evaluate.curve import UNADAPTED, on_curve
from fedcue.rounds.engine import Insight
from fedcue.rounds.round_record import best_validation
from fedcue.rounds.transport import Traffic

_LAST_ROUNDS = 10
"""Number of evaluated rounds whose mean is reported beside the last round's accuracy."""


@dataclass(frozen=True)
class Result:
    """A finished run: where it lies, its final metrics and the metrics of every round."""

    folder: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    @property
    def mean_accuracy(self) -> float:
        """Mean accuracy over the clients that train, after the last round."""
        return float(self.summary["mean_accuracy"])

    @property
    def warnings(self) -> list[str]:
        """What a reader of its accuracies must know: that it ended early, who is not in them."""
        early, untested = self.summary.get("ended_early"), self.summary.get("untested", [])
        lines = [_adapted(self.summary)] if f"{UNADAPTED}mean_accuracy" in self.summary else []
        if early:
            lines.append(f"ended after round {self.summary['rounds']}: {early}")
        if untested:
            names = ", ".join(str(failure["client"]) for failure in untested[:10])
            lines.append(
                f"{many(len(untested), 'client')} could not be tested, left out of the numbers: {names}"
            )
        return lines


def _adapted(summary: Mapping[str, Any]) -> str:
    mean, worst = (summary[f"{UNADAPTED}{name}_accuracy"] for name in ("mean", "worst"))
    return (
        f"for this test alone each client trained once more ({summary['adaptation_images']:,} images); "
        f"without that: mean accuracy {mean:.1%}, worst client {worst:.1%}"
    )


def last_rounds_mean(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean accuracy over the last evaluated rounds: one round alone may be a bad one."""
    tested = [on_curve(record) for record in rounds if on_curve(record) is not None]
    return fmean(tested[-_LAST_ROUNDS:]) if tested else None


def of_the_end(accuracies: Accuracies) -> dict[str, Any]:
    """Return what the last test found, for the summary."""
    untested = accuracies.untested()
    return {
        **accuracies.metrics(),
        "domains": accuracies.domains(),
        **({"untested": untested} if untested else {}),
    }


def over_rounds(config: RunConfig, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what sums up all rounds, for the summary: accuracies and traffic."""
    best = best_validation(rounds) if config.evaluation.on == "validation" else None
    return {
        "last_rounds_mean_accuracy": last_rounds_mean(rounds),
        **({"best_validation": best} if best else {}),
        **{f"total_{name}": sum(record[name] for record in rounds) for name in vars(Traffic())},
    }


def describe_model(roster: Roster, rounds: int, insight: Insight) -> dict[str, Any]:
    """Return what is needed to use the trained tensors: method, classes, backbone, known priors."""
    settings = dump(roster.config)
    clients: dict[str, dict[str, Any]] = {str(c): {"name": roster.names[c]} for c in roster.listed.tolist()}
    for client, priors in insight.class_priors.items():
        clients[str(client)]["class_priors"] = [round(float(prior), 8) for prior in priors]
    return {
        "format": "fedcue-model-1",
        "method": settings["method"],
        "backbone": settings["backbone"],
        "image_size": roster.architecture.image_size,
        "precision": settings["precision"],
        "setting": vars(roster.sizes),
        "seed": roster.config.seed,
        "rounds": rounds,
        "training": settings["training"],
        "classes": list(roster.classes),
        "unlabelled": {
            "concentration": insight.concentration,
            "temperature": roster.config.evaluation.temperature,
        },
        "clients": clients,
    }

"""What was run and how it went, as text: title, headline, settings, failures, privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcue.config.words import flat
from fedcue.report.groups import RunGroup
from fedcue.report.labels import method_label, shorten, value_label
from fedcue.report.runs import RunRecord

_MAX_FAILURES = 50
_TOLD_ELSEWHERE = ("partition.name", "partition.clients", "partition.own_clients")


@dataclass(frozen=True)
class Fact:
    """One thing a reader should know of the runs: its name and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Failure:
    """Something that went wrong, and where."""

    where: str
    text: str


def title(groups: Sequence[RunGroup]) -> str:
    """Return what is compared, in a line."""
    runs = [run for group in groups for run in group.runs]
    data = _distinct(runs, lambda s: _joined(s.get("data.name")))
    methods = list(dict.fromkeys(method_label(group.method) for group in groups))
    what = methods[0] if len(methods) == 1 else f"{len(methods)} methods"
    return f"{what} on {data}" if data else what


def headline(groups: Sequence[RunGroup]) -> str:
    """Say which group leads, by how much, and whether that is more than the spread over seeds."""
    ended = [group for group in groups if group.finished] or groups
    found = [(group.over_seeds("mean_accuracy"), group) for group in ended]
    known = [(one.mean, one.std or 0.0, group) for one, group in found if one.mean is not None]
    ranked = sorted(known, key=lambda entry: -entry[0])
    if not ranked:
        return "No accuracy is known yet."
    best, spread, leader = ranked[0]
    text = f"{leader.label} reaches {best:.1%} mean accuracy"
    if len(ranked) == 1:
        return text + "."
    second, other, runner_up = ranked[1]
    text += f", {100 * (best - second):.1f} points above {runner_up.label}"
    if best - second <= spread + other:
        text += " (within the spread over seeds)"
    worst = leader.over_seeds("worst_accuracy").mean
    return f"{text}." if worst is None else f"{text}; its worst client has {worst:.1%}."


def settings(runs: Sequence[RunRecord]) -> list[Fact]:
    """Return the settings a reader needs to know, as "a / b" where runs differ."""
    good = [run for run in runs if run.state != "damaged"]
    lines: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "recipe": lambda s: _joined(s.get("recipe")),
        "data": lambda s: _joined(s.get("data.name")),
        "partition": _partition,
        "clients per round": lambda s: _joined(s.get("clients_per_round")),
        "rounds": lambda s: _joined(s.get("rounds")),
        "local training": _training,
        "backbone": _backbone,
        "seeds": lambda s: _joined(s.get("seed")),
        "fedcue": lambda s: _joined(s.get("environment.fedcue"), s.get("environment.commit")),
        "software": _software,
    }
    found = [Fact(name, _distinct(good, choose)) for name, choose in lines.items()]
    found.insert(3, Fact("clients", _clients([run for run in good if run.clients])))
    return [fact for fact in found if fact.text]


def _distinct(runs: Iterable[RunRecord], choose: Callable[[Mapping[str, Any]], str]) -> str:
    """Return what the runs have for a setting, each value once: "a / b"."""
    shown = list(dict.fromkeys(filter(None, (choose(flat(run.config)) for run in runs))))
    return " / ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


def _clients(runs: Sequence[RunRecord]) -> str:
    if not runs:
        return ""
    heldout = _span(sum(client.heldout for client in run.clients) for run in runs)
    images = _span(sum(client.train_size for client in run.clients) for run in runs)
    clients, classes = _span(len(run.clients) for run in runs), _span(len(run.classes) for run in runs)
    apart = "" if heldout == "0" else f", {heldout} of them held out"
    return f"{clients}{apart}; {images} training images, {classes} classes"


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _partition(settings: Mapping[str, Any]) -> str:
    options = [
        f"{key.removeprefix('partition.').replace('_', ' ')} {value_label(value)}"
        for key, value in settings.items()
        if key.startswith("partition.") and key not in _TOLD_ELSEWHERE
    ]
    return _joined(settings.get("partition.name"), *options)


def _training(settings: Mapping[str, Any]) -> str:
    given = {key.removeprefix("training."): value for key, value in settings.items()}
    parts = {"batch_size": "batch {}", "optimiser": "{}"}
    words = [
        text.format(value_label(given[key])) for key, text in parts.items() if given.get(key) is not None
    ]
    epochs = given.get("epochs")
    passes = None if epochs is None else f"{value_label(epochs)} {'epoch' if epochs == 1 else 'epochs'}"
    return _joined(passes, *words, _rates(given))


def _rates(given: Mapping[str, Any]) -> str | None:
    """Return the rates that head and prompts are trained with: ``lr`` holds only where they have none."""
    common = given.get("lr")
    head, prompts = (given.get(key, common) for key in ("head_lr", "prompt_lr"))
    if head is None and prompts is None:
        return None
    if head == prompts:
        return f"rate {value_label(head)}"
    return f"rate {value_label(head)} of the head, {value_label(prompts)} of the prompts"


def _backbone(settings: Mapping[str, Any]) -> str:
    size = settings.get("backbone.image_size")
    name = str(settings.get("backbone.name", "")).rstrip("/").split("/")[-1]
    return _joined(name, f"{size} px" if size else None)


def _software(settings: Mapping[str, Any]) -> str:
    names = ("torch", "numpy", "python")
    return _joined(*(f"{n} {settings[f'environment.{n}']}" for n in names if f"environment.{n}" in settings))


def _joined(*parts: Any) -> str:
    return ", ".join(shorten(value_label(part)) for part in parts if part not in (None, ""))


def failures(runs: Sequence[RunRecord]) -> list[Failure]:
    """Return what went wrong: damaged and stopped runs, failing clients, images that could not be read."""
    found = []
    for run in runs:
        name = shorten(run.path.name)
        if run.state == "damaged":
            found.append(Failure(name, run.problem[:500]))
        elif run.state == "stopped":
            at = f"stopped after round {len(run.rounds)} of {run.total_rounds}"
            why = f" ({run.problem[:500]})" if run.problem else ""
            found.append(Failure(name, f"{at}{why}; fedcue resume goes on from its last checkpoint."))
        if run.summary.get("ended_early"):
            found.append(Failure(name, f"ended early: {str(run.summary['ended_early'])[:500]}"))
        if run.summary.get("bad_images"):
            found.append(Failure(name, f"{run.summary['bad_images']} images could not be read."))
        for record in run.rounds:
            found += [
                Failure(f"{name}, round {record.get('round')}", p) for p in _problems(record, "failures")
            ]
        told = {failure.text for failure in found}
        untested = [f"step evaluate, {problem}" for problem in _problems(run.summary, "untested")]
        found += [Failure(name, problem) for problem in untested if problem not in told]
    return found[:_MAX_FAILURES]


def _problems(record: Mapping[str, Any], key: str) -> list[str]:
    problems = record.get(key)
    return [_problem(problem)[:500] for problem in problems] if isinstance(problems, list) else []


def _problem(problem: Any) -> str:
    if not isinstance(problem, Mapping):
        return str(problem)
    return ", ".join(f"{key} {value}" for key, value in problem.items())


def privacy(groups: Sequence[RunGroup]) -> list[tuple[str, list[Fact]]]:
    """Return what each group says of its privacy: its settings and what was spent."""
    found = []
    for group in groups:
        run = group.runs[0]
        settings = run.config.get("privacy")
        spent = run.summary.get("privacy")
        told: dict[str, Any] = {}
        for part in (settings, spent):
            if isinstance(part, Mapping):
                told |= flat(part)
            elif part not in (None, "", "none"):
                told["mechanism"] = part
        if told and told.get("name", "") != "none":
            lines = [Fact(key.replace("_", " "), value_label(value)[:500]) for key, value in told.items()]
            found.append((group.label, lines))
    return found

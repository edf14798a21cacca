"""The model card: what a stranger needs to know before using the model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedcue import __version__
from fedcue.after.predict import Model, backbone_of
from fedcue.data.catalogue import CATALOGUE
from fedcue.errors import printable
from fedcue.model.backbone import EMBEDDED, locate
from fedcue.report.labels import method_label
from fedcue.report.run_files import json_object
from fedcue.report.runs import RunRecord, number, read_run, section

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{1,40}")


@dataclass(frozen=True)
class File:
    """An exported file, as its card describes it."""

    name: str
    form: str
    bytes: int
    size: int
    classes: int
    priors: bool


def model_card(folder: Path, model: Model, client: int | None = None, file: File | None = None) -> str:
    """Return the model card of a run: of its exported file or, without one, of a repository of the hub."""
    run = read_run(folder)
    description, data = json_object(folder / "model.json"), section(run.config, "data")
    backbone = backbone_of(folder, description)
    licence = _licence_of(backbone)
    return rendered(
        "card.md",
        header=_header(run, backbone, licence),
        version=__version__,
        method=method_label(model.method.name),
        settings=json.dumps(section(description, "method")),
        backbone=_named(backbone),
        licence=licence,
        data=_named(str(data.get("name", "not known"))),
        partition=section(run.config, "partition").get("name", "not known"),
        rounds=model.state.round,
        classes=model.classes,
        accuracies=list(_accuracies(run, client)),
        privacy=section(run.summary, "privacy"),
        client=client,
        file=file,
    )


def labels(model: Model) -> str:
    """Return the names of the classes in the order of the output, as JSON."""
    return json.dumps(list(model.classes), indent=2, ensure_ascii=False) + "\n"


def _licence_of(backbone: str) -> str | None:
    """Return the licence that a backbone's files name, as the hub spells it; none if they name none."""
    if backbone == EMBEDDED:
        return "apache-2.0"
    config = json_object(locate(backbone).parent / "config.json")
    given = config.get("license") or section(config, "pretrained_cfg").get("license")
    return given if isinstance(given, str) and _LICENCE.fullmatch(given) else None


def _named(name: str) -> str:
    """Return a name without the folders of this machine."""
    return name if _HUB_ID.fullmatch(name) else Path(name).name


def _header(run: RunRecord, backbone: str, licence: str | None) -> str:
    """Return the metadata that the hub reads at the top of a card."""
    from huggingface_hub import EvalResult, ModelCardData

    name = str(section(run.config, "data").get("name", ""))
    hub = CATALOGUE[name].hub if name in CATALOGUE else None
    accuracy = number(run.summary.get("mean_accuracy"))
    results = None
    if accuracy is not None and name:
        results = [
            EvalResult(
                "image-classification",
                hub or name,
                name,
                "accuracy",
                accuracy,
                metric_name="mean over clients",
            )
        ]
    header = ModelCardData(
        license=licence,
        library_name="fedcue",
        pipeline_tag="image-classification",
        tags=["federated-learning", "prompt-tuning", "vision-transformer"],
        base_model=backbone if _HUB_ID.fullmatch(backbone) and not Path(backbone).is_dir() else None,
        datasets=[hub] if hub else None,
        metrics=["accuracy"],
        model_name=f"{run.method} on {name}" if results else None,
        eval_results=results,
    )
    return header.to_yaml()


def _accuracies(run: RunRecord, client: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield groups of clients with the mean and the worst accuracy in each."""
    for label, prefix in (("clients that trained", ""), ("clients that never trained", "heldout_")):
        mean, worst = run.summary.get(f"{prefix}mean_accuracy"), run.summary.get(f"{prefix}worst_accuracy")
        yield label, _percent(mean), _percent(worst)
    for domain, values in section(run.summary, "domains").items():
        yield f"domain {domain}", _percent(section({"": values}, "").get("client_mean_accuracy")), "–"
    own = [one for one in run.clients if one.id == client]
    for one in own:
        yield f"client {one.id}, for whom this file is", _percent(one.accuracy), "–"


def _percent(value: Any) -> str:
    found = number(value)
    return "not known" if found is None else f"{found:.1%}"


def _plain(text: Any, longest: int = 200) -> str:
    """Return a text from data so that Markdown shows it and takes nothing in it for a mark."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!~&$])", r"\\\1", printable(str(text))[:longest])


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fedcue.export", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = _plain
    return environment


def rendered(template: str, **values: Any) -> str:
    """Return a template of this room, filled in."""
    return _environment().get_template(template).render(**values)

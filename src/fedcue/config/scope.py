"""What a setting matters to, said once at its field and read here.

| scope | may change at resume | all machines of a deployment share it | sets a result apart |
|---|---|---|---|
| result (the default) | no | yes | yes |
| course: how the run goes on | yes, and it is written down | yes | yes |
| test: what is measured, not what is trained | yes | yes | yes |
| view: what is kept for figures | yes | yes | no |
| weights: where the backbone is | no | no, its weights are compared | yes |
| machine: where things are and how they are computed | yes | no | no |
| seed | no | yes | no: runs that differ in it are one series |
"""

from __future__ import annotations

from typing import Literal, cast

from pydantic.fields import FieldInfo

from fedcue.config.sections import CommonSettings
from fedcue.data.options import DataOptions
from fedcue.options import Options

Scope = Literal["result", "course", "test", "view", "weights", "machine", "seed"]

FREE_AT_RESUME: tuple[Scope, ...] = ("course", "test", "view", "machine")
OF_ONE_MACHINE: tuple[Scope, ...] = ("machine", "weights")
NOT_IN_LABELS: tuple[Scope, ...] = ("view", "machine", "seed")


def scope_of(key: str) -> Scope:
    """Return what the setting ``section.key`` matters to; a section's own scope holds for its fields."""
    if key == "environment" or key.startswith("environment."):
        return "machine"
    options: type[Options] | None = CommonSettings
    scope: Scope = "result"
    for part in key.split("."):
        if options is CommonSettings and part == "data":
            options = DataOptions
            continue
        field = options.model_fields.get(part) if options is not None else None
        if field is None:
            return scope
        scope = _declared(field) or scope
        kind = field.annotation
        options = kind if isinstance(kind, type) and issubclass(kind, Options) else None
    return scope


def _declared(field: FieldInfo) -> Scope | None:
    extra = field.json_schema_extra
    return cast(Scope, extra["scope"]) if isinstance(extra, dict) and "scope" in extra else None

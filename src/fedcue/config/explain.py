"""All mistakes of a configuration in one message."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from fedcue.errors import shown, unknown
from fedcue.options import Options

_MAX_PROBLEMS = 20
"""Mistakes told at once at most."""

_TYPE_TRIED = re.compile(r"\W|^(int|float|bool|str)$")
"""What pydantic adds to a setting's place where several types are allowed: the one it tried."""


def explain(error: ValidationError, model: type[Options]) -> str:
    """Say what was given, what is allowed and what to do, for each mistake."""
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        key = ".".join(part for part in map(str, problem["loc"]) if not _TYPE_TRIED.search(part))
        if problem["type"] == "extra_forbidden":
            given = ".".join(map(str, problem["loc"]))
            message = unknown("key", given, _keys_beside(problem["loc"], model))
            lines.append(" ".join([message, *_said_elsewhere(given, model)]))
        elif problem["type"] == "int_parsing_size":
            lines.append(f"{key}={shown(problem['input'])} must be a number of at most 64 bits.")
        elif problem["type"] == "tuple_type":
            lines.append(f"{key}={shown(problem['input'])} must be a list, such as [1, 2].")
        elif problem["type"] == "path_type":
            lines.append(f"{key}={shown(problem['input'])} must be a path.")
        elif problem["type"] == "missing":
            lines.append(f"{key} is required. Give {key}=VALUE.")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            given = f"{key}={shown(problem['input'])}: "
            message = f"{message[:1].lower()}{message[1:]}."
            if lines and lines[-1].startswith(given):  # what else may stand there
                lines[-1] = f"{lines[-1][:-1]}, or {message}"
            else:
                lines.append(given + message)
    more = [f"... and {len(lines) - _MAX_PROBLEMS} more problems."] if len(lines) > _MAX_PROBLEMS else []
    return "\n".join([*dict.fromkeys(lines[:_MAX_PROBLEMS]), *more])


def _said_elsewhere(key: str, model: type[Options]) -> list[str]:
    """Say which sections have a setting of the last part of this name."""
    name = key.rpartition(".")[2]
    places = [
        f"{section}.{name}"
        for section, field in model.model_fields.items()
        if name in getattr(field.annotation, "model_fields", {})
    ]
    return [f"There is {' and '.join(places)}."] if places else []


def _keys_beside(location: tuple[int | str, ...], model: type[Options]) -> list[str]:
    """Return the keys that are allowed where an unknown one was found."""
    parents = [str(part) for part in location[:-1]]
    options: Any = model
    for part in parents:
        field = getattr(options, "model_fields", {}).get(part)
        options = None if field is None else field.annotation
    return [".".join([*parents, key]) for key in getattr(options, "model_fields", {})]

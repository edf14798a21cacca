"""States of client and server as JSON: plain text, no pickle; anything else is refused."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any, TypeVar

from fedcue.secure.refusals import SecureSumError
from fedcue.secure.session import Step

State = TypeVar("State")


def written(state: Any) -> str:
    """Return a state (a dataclass of texts, numbers, bytes, tuples of ids and tables) as JSON."""
    return json.dumps({field.name: _plain(getattr(state, field.name)) for field in fields(state)})


def read(kind: type[State], text: str) -> State:
    """Return the state that was written."""
    try:
        values = json.loads(text)
        expected = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
        if set(values) != set(expected):
            raise ValueError("other fields")
        return kind(**{name: _READERS[expected[name]](values[name]) for name in expected})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SecureSumError(
            f"This text is no {kind.__name__} of secure summation. Give what was written, or begin anew."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(client): _plain(entry) for client, entry in value.items()}
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(value, validate=True)


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


_READERS: dict[str, Any] = {
    "str": _text,
    "int": _number,
    "Step": Step,
    "bytes": _bytes,
    "tuple[int, ...]": lambda value: tuple(_number(client) for client in value),
    "dict[int, bytes]": lambda value: {int(client): _bytes(entry) for client, entry in value.items()},
}

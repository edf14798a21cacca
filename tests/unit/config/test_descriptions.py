"""Every setting says what it means."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedcue.config.recipes import NAMED
from fedcue.config.sections import CommonSettings
from fedcue.options import Options


def parts() -> Iterator[tuple[str, type[Options]]]:
    yield "", CommonSettings
    for key, field in CommonSettings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            yield key, field.annotation
    for section, registry in NAMED.items():
        for name in registry.names() if registry else ():
            yield f"{section}={name}", registry.get(name)


@pytest.mark.parametrize("part", [pytest.param(part, id=name or "common") for name, part in parts()])
def test_every_setting_has_a_description(part: type[Options]) -> None:
    assert part.__doc__
    for key, field in part.model_fields.items():
        section = isinstance(field.annotation, type) and issubclass(field.annotation, Options)
        assert section or field.description, key

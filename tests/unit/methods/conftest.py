"""What the tests of methods share."""

from __future__ import annotations

import pytest
from tiny_federation import TinyFederation


@pytest.fixture
def federation() -> type[TinyFederation]:
    """Return the tiny federation, made by ``federation(method, images=8)``."""
    return TinyFederation

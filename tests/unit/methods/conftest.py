"""What the tests of methods share."""

from __future__ import annotations

import sys

import pytest
from support import ROOT
from support.tiny_federation import TinyFederation

sys.path.insert(0, str(ROOT / "examples"))


@pytest.fixture
def federation() -> type[TinyFederation]:
    """Return the tiny federation, made by ``federation(method, images=8)``."""
    return TinyFederation

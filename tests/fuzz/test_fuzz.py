"""Over a hundred mutated inputs of every kind; ``make fuzz`` tries a hundred thousand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzz import REMEDY, fuzz
from fuzz_targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcue.config.layers import load, resolve
from fedcue.config.recipes import read_recipe
from fedcue.errors import ConfigError

SHORT = 120


@pytest.mark.parametrize("kind", TARGETS)
def test_mutated_inputs_work_or_are_refused_with_a_remedy(kind: str) -> None:
    outcome = fuzz(kind, SHORT, first=1_000_000, keep=3)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert outcome.counts.total() == SHORT
    assert outcome.counts["refused"] > SHORT / 20, "hardly an input was bad"


def test_it_runs_as_a_script() -> None:
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, str(script), "--only", "key=value", "--inputs", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "50" in done.stdout


def refusal(call: Callable[[], object]) -> str:
    """Return the message of the mistake, or a remedy where there is none to make."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "Known and fine"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
KEYS = [
    "scale", "profile", "per_method", "method", "method.layers", "method.name", "data", "partition.clients",
    "heldout", "training", "training.lr", "backbone", "evaluation.on", "aggregate.norm_bound", "privacy", "seed",
    "checkpoint.keep", "transport", "x", "training.x.y", "heldout.x", "backbone.image_size.x",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(key=st.sampled_from(KEYS), value=VALUES, in_recipe=st.booleans())
def test_any_value_of_a_setting_is_taken_or_refused_with_a_remedy(
    key: str, value: Any, in_recipe: bool
) -> None:
    _, recipe = read_recipe("default")
    own, overrides = ({**recipe, key: value}, {}) if in_recipe else (recipe, {key: value})
    assert REMEDY.search(refusal(lambda: resolve(own, overrides)))


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(max_size=30) | st.sampled_from([f"{key}=1" for key in KEYS]), max_size=3))
def test_any_text_is_a_setting_or_refused_with_a_remedy(texts: list[str]) -> None:
    assert REMEDY.search(refusal(lambda: load("default", texts)))

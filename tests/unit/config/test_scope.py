"""What a setting matters to is said once, at its field."""

from __future__ import annotations

import pytest

from fedcue.config.layers import dump, load
from fedcue.config.scope import FREE_AT_RESUME, NOT_IN_LABELS, OF_ONE_MACHINE, scope_of
from fedcue.config.words import flat


@pytest.mark.parametrize(
    ("key", "scope"),
    [
        ("rounds", "course"),
        ("training.lr", "course"),
        ("evaluation.every", "course"),
        ("evaluation.on", "result"),
        ("evaluation.validation_share", "result"),
        ("evaluation.priors", "test"),
        ("evaluation.chunk", "view"),
        ("snapshots", "view"),
        ("seed", "seed"),
        ("heldout", "result"),
        ("method.name", "result"),
        ("method.temperature", "result"),
        ("data.name", "result"),
        ("data.root", "machine"),
        ("data.train_per_class", "result"),
        ("partition.clients", "result"),
        ("backbone.name", "weights"),
        ("backbone.image_size", "result"),
        ("workers", "machine"),
        ("engine.name", "machine"),
        ("engine.address", "machine"),
        ("cache.limit_mb", "machine"),
        ("checkpoint.every", "machine"),
        ("environment.commit", "machine"),
        ("recipe", "machine"),
        ("of.tomorrow", "result"),
    ],
)
def test_a_settings_scope(key: str, scope: str) -> None:
    assert scope_of(key) == scope


def test_what_follows_from_a_scope() -> None:
    assert "result" not in (*FREE_AT_RESUME, *OF_ONE_MACHINE, *NOT_IN_LABELS)
    assert "seed" in NOT_IN_LABELS
    assert "seed" not in FREE_AT_RESUME
    assert "course" in FREE_AT_RESUME
    assert "course" not in NOT_IN_LABELS


def test_every_setting_of_a_run_has_a_scope() -> None:
    scopes = {scope_of(key) for key in flat(dump(load("default")))}
    assert scopes <= {"result", "course", "test", "view", "weights", "machine", "seed"}

"""Tests of all clients; for the last one the clients of some methods train once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedcue.evaluate.accuracy import Accuracies, Adaptation
from fedcue.rounds.engine import Engine
from fedcue.types import ClientMemory, ServerState


def tested(
    engine: Engine, state: ServerState, memories: Mapping[int, ClientMemory], last: bool
) -> Accuracies:
    """Test all clients; where they train for the last test alone, repeat it without and count their work."""
    roster = engine.roster
    found = engine.evaluate(state, memories, final=last)
    if not (last and roster.method.adapts()):
        return found
    images = int(roster.train_sizes[found.total > 0].sum()) * roster.config.training.epochs
    before = engine.evaluate(state, memories, final=False)
    return replace(found, adaptation=Adaptation(before, images))

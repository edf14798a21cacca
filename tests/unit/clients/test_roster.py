"""What a server knows of its clients, and what follows from it."""

from __future__ import annotations

import pytest
from support.tables import roster_with

KRUM = ("aggregate=krum", "aggregate.attackers=1", "clients_per_round=6")


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        (("clients_per_round=5", "min_updates=3"), 3),
        (KRUM, 5),  # 2 * attackers + 3, whatever was asked for
        ((*KRUM, "min_updates=6"), 6),
        (("method=central", "min_updates=3"), 1),  # one client holds all images
    ],
)
def test_a_round_needs_what_was_asked_for_and_what_its_rule_needs(
    settings: tuple[str, ...], needed: int
) -> None:
    assert roster_with(*settings).needed_updates == needed

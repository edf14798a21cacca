"""Runs that many tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_folders import eight_methods, groups_in, write_small_run

from fedcue.report.groups import RunGroup


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> list[RunGroup]:
    """Return the groups of all eight methods, two seeds each."""
    return groups_in(eight_methods(tmp_path_factory.mktemp("eight"), seeds=(0, 1)))


@pytest.fixture
def planned(tmp_path: Path) -> dict[tuple[str, str], list[Path]]:
    """Return the folders of two methods, three seeds each, as a grid knows them."""
    pep = {0: [0.5, None, 0.9], 1: [0.5, 0.8, 0.7], 2: [0.1, 0.2, 0.8]}
    head = {0: [0.1, 0.2, 0.4], 1: [0.1, 0.2, 0.5], 2: [0.1, 0.85, 0.6]}
    return {
        ("pep", ""): [write_small_run(tmp_path / f"pep{s}", s, a, 0.6) for s, a in pep.items()],
        ("head_a", ""): [write_small_run(tmp_path / f"head{s}", s, a) for s, a in head.items()],
    }

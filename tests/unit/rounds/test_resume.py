"""What a run that goes on is told of its past: releases written down, and a state that fits its method."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tables import roster_with

from fedcue.config.layers import dump, load
from fedcue.errors import RunFolderError
from fedcue.record.folder import RunFolder
from fedcue.rounds.resume import check_same_run, check_state, released_so_far
from fedcue.types import ServerState


def test_rounds_are_not_added_to_a_run_whose_noise_was_settled_for_its_rounds(tmp_path: Path) -> None:
    for noise, refused in ((["privacy.noise=2"], False), ([], True)):
        settings = ["privacy=dp", *noise]
        RunFolder(tmp_path).write_config(dump(load("default", [*settings, "rounds=2"])))
        more = load("default", [*settings, "rounds=3"])
        with (
            pytest.raises(RunFolderError, match=r"rounds=2.*noise of privacy=dp was settled")
            if refused
            else nullcontext()
        ):
            check_same_run(more, tmp_path)


def journal(folder: Path, *lines: str) -> RunFolder:
    """Return a run folder whose journal has these lines."""
    (folder / "releases.jsonl").write_text("".join(lines))
    return RunFolder(folder)


def test_releases_are_counted_from_the_journal(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append_release([0, 2], 2)
    folder.append_release([1], 1)
    assert released_so_far(folder, 3, 5) == [([0, 2], 2), ([1], 1)]
    with pytest.raises(RunFolderError, match=r"lists 5 releases where there were 6"):
        released_so_far(folder, 3, 6)
    with pytest.raises(RunFolderError, match=r"lists 5 releases, some of unknown clients"):
        released_so_far(folder, 2, 5)


def test_a_release_cut_short_is_followed_by_whole_ones(tmp_path: Path) -> None:
    folder = journal(tmp_path, '{"clients": [4], "releases": 1}\n', '{"clients": [5')
    assert folder.read_releases() == [([4], 1)]
    folder.append_release([6], 1)
    assert folder.read_releases() == [([4], 1), ([6], 1)]


@pytest.mark.parametrize(
    "line",
    [
        '{"clients": [1], "releases": 0}',
        '{"clients": [1], "releases": true}',
        '{"clients": [-1], "releases": 1}',
        '{"clients": [2147483648], "releases": 1}',
        '{"clients": [], "releases": 1}',
        '{"releases": 1}',
        "[]",
    ],
)
def test_a_journal_that_says_something_else_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(RunFolderError, match="what was spent is not known"):
        journal(tmp_path, line + "\n").read_releases()


def first_state(*settings: str, visited: int = 0) -> tuple[object, ServerState]:
    """Return a roster and a state that fits its method, of so many visited clients."""
    roster = roster_with(*settings)
    tensors = {
        spec.name: torch.zeros([visited if size is None else size for size in spec.shape], dtype=spec.dtype)
        for spec in roster.table
        if spec.stored
    }
    return roster, ServerState(3, tensors)


@pytest.mark.parametrize("method", ["pep", "pfedpg"])
def test_a_state_that_fits_its_method_is_gone_on_with(method: str) -> None:
    roster, state = first_state(f"method={method}", visited=2)
    check_state(roster, state)
    for name, tensor in state.tensors.items():
        others = {
            "type": tensor.double() if tensor.is_floating_point() else tensor.float(),
            "shape": torch.zeros(*tensor.shape, 2, dtype=tensor.dtype),
        }
        for other in others.values():
            with pytest.raises(RunFolderError, match=f"checkpoint's {name} does not fit {method}"):
                check_state(roster, replace(state, tensors={**state.tensors, name: other}))
        with pytest.raises(RunFolderError, match=f"checkpoint's {name} does not fit {method}"):
            check_state(roster, replace(state, tensors={n: t for n, t in state.tensors.items() if n != name}))

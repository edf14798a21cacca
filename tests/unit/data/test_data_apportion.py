"""Tables that are made in parts."""

from __future__ import annotations

import numpy as np
import pytest

from fedcue.data import apportion
from fedcue.data.apportion import in_blocks


@pytest.mark.parametrize(("width", "sizes"), [(1, [7]), (3, [3, 3, 1]), (4, [2, 2, 2, 1]), (11, [1] * 7)])
def test_rows_are_split_so_that_no_part_of_a_table_is_too_large(
    width: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apportion, "BLOCK", 10)
    rows = np.array([5, 3, 8, 1, 9, 2, 7])
    parts = in_blocks(rows, width)
    assert [len(part) for part in parts] == sizes
    assert np.concatenate(parts).tolist() == rows.tolist()


def test_no_rows_are_one_empty_part() -> None:
    assert [len(part) for part in in_blocks(np.arange(0), 3)] == [0]

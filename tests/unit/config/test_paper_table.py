"""The paper's numbers stand under keys that something reads."""

from __future__ import annotations

from typing import Any

import pytest

from fedcue.config.recipes import check_paper
from fedcue.errors import ConfigError


@pytest.mark.parametrize("table", [{"pep": {"men": 1.0}}, {"pep": {"method.period=10": {"men": 1.0}}}])
def test_an_unknown_key_is_refused_with_the_nearest_known_one(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Unknown key 'men'.*Did you mean 'mean'"):
        check_paper("mine", table)


@pytest.mark.parametrize("value", ["95", True, [1.0]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="must be a number"):
        check_paper("mine", {"pep": {"mean": value}})


def test_known_keys_pass() -> None:
    check_paper("mine", {"pep": {"mean": 1, "domain_sketch": 2.0, "rounds": 12, "not_reached": True}})

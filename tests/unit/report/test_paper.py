"""The paper's numbers are found for the runs they belong to, and a misspelt one fails."""

from __future__ import annotations

from typing import Any

import pytest

from fedcue.config.recipes import read_recipe, recipes
from fedcue.report import paper
from fedcue.report.paper import paper_missed_target, paper_numbers

PEP = {"recipe": "default", "method": {"name": "pep"}}


def quoting(monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]) -> None:
    monkeypatch.setattr(paper, "read_recipe", lambda name: (name, {"paper": {"pep": table}}))


def test_costs_percentiles_and_domains_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    quoting(monkeypatch, {"rounds": 12, "floats": 4.6e6, "percentile_5": 20, "domain_real": 97.67})
    assert paper_numbers(PEP) == {
        "rounds_to_target": 12,
        "client_download_floats_to_target": 4.6e6,
        "percentile_5_accuracy": 20,
        "domain:real": 97.67,
    }
    assert not paper_missed_target(PEP)


def test_a_target_that_the_paper_missed_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    quoting(monkeypatch, {"rounds": 100, "not_reached": True})
    assert paper_missed_target(PEP)
    assert paper_numbers(PEP)["rounds_to_target"] == 100


@pytest.mark.parametrize("name", [name for name in recipes() if "paper" in read_recipe(name)[1]])
def test_every_recipe_quotes_known_numbers_only(name: str) -> None:
    for method in read_recipe(name)[1]["paper"]:
        paper_numbers({"recipe": name, "method": {"name": method}})

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


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("method", {"temperature": 0.1}), ("method", {"layers": [1]}), ("method", {"logit_prior": "test"}),
        ("method", {"prior": "uniform"}), ("evaluation", {"priors": "em"}), ("privacy", {"name": "dp"}),
    ],
)  # fmt: skip
def test_the_papers_numbers_are_not_those_of_other_settings(
    monkeypatch: pytest.MonkeyPatch, section: str, value: dict[str, Any]
) -> None:
    quoting(monkeypatch, {"mean": 90})
    published = {
        **PEP,
        "method": {
            "name": "pep",
            "temperature": 0.05,
            "layers": [4, 5, 6],
            "logit_prior": "none",
            "prior": "client",
        },
        "evaluation": {"priors": "labels"},
        "privacy": {"name": "none"},
    }
    assert paper_numbers(published) == {"mean_accuracy": 90}
    assert paper_numbers({**published, section: {**published[section], **value}}) == {}


def test_each_measure_is_quoted_from_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        "mean",
        "worst",
        "percentile_5",
        "percentile_10",
        "percentile_15",
        "heldout_mean",
        "rounds",
        "seconds",
    ]
    quoting(monkeypatch, {key: number for number, key in enumerate(keys, 1)})
    assert paper_numbers(PEP) == {
        "mean_accuracy": 1, "worst_accuracy": 2, "percentile_5_accuracy": 3, "percentile_10_accuracy": 4,
        "percentile_15_accuracy": 5, "heldout_mean_accuracy": 6, "rounds_to_target": 7, "seconds_to_target": 8,
    }  # fmt: skip

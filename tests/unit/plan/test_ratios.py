"""The miniatures keep the paper's ratios."""

from __future__ import annotations

import pytest

from fedcue.config.layers import load
from fedcue.plan.dry_run import Ratios, ratios
from fedcue.plan.stand_ins import stand_in


def of(recipe: str, *settings: str) -> Ratios:
    return ratios(stand_in(load(recipe, settings)))


def test_the_papers_ratios_on_cifar_100() -> None:
    found = of("cifar100-pathological")
    assert (found.classes_to_width, found.share_held, found.visits_of_a_class) == (100 / 768, 0.1, 0.5)
    assert found.steps_of_a_visit == pytest.approx(50, rel=0.02)


@pytest.mark.parametrize("recipe", ["cifar100-pathological", "tinyimagenet-pathological"])
@pytest.mark.parametrize("name", ["classes_to_width", "share_held", "visits_of_a_class"])
def test_the_miniature_keeps_a_ratio_within_a_factor_of_one_and_a_half(recipe: str, name: str) -> None:
    ratio = getattr(of(recipe, "scale=cpu"), name) / getattr(of(recipe), name)
    assert 1 / 1.5 <= ratio <= 1.5


@pytest.mark.parametrize("recipe", ["cifar100-pathological", "tinyimagenet-pathological"])
def test_the_miniature_keeps_the_steps_of_a_visit_within_a_factor_of_three(recipe: str) -> None:
    ratio = of(recipe, "scale=cpu").steps_of_a_visit / of(recipe).steps_of_a_visit
    assert 1 / 3 <= ratio <= 3

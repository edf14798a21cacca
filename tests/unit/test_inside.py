"""What scripts/inside.py says of a PEP-FedPT run, on predictions whose answers are known."""

from __future__ import annotations

import math

import inside
import pytest
import torch

from fedcue.after.predict import Predictions


def predictions(probabilities: list[list[float]], weights: list[list[float]]) -> Predictions:
    details = {"mixing_weights": torch.tensor(weights)[:, None]}
    return Predictions(("a", "b", "c"), torch.tensor(probabilities), details)


def client() -> inside.Client:
    own = predictions([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], [[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    even = predictions([[0.4, 0.2, 0.4], [0.2, 0.2, 0.6]], [[0.3, 0.3, 0.4], [0.1, 0.8, 0.1]])
    return inside.Client(torch.tensor([True, True, False]), torch.tensor([0, 1]), own, even)


def test_the_shift_is_what_priors_add_to_the_clients_classes() -> None:
    one = client()
    with_priors = (2 * math.log(0.8) + 2 * math.log(0.1)) / 4 - math.log(0.1)
    without = (math.log(0.4) + 3 * math.log(0.2)) / 4 - (math.log(0.4) + math.log(0.6)) / 2
    assert one.shift() == pytest.approx(with_priors - without, abs=1e-5)


def test_picked_and_kept_count_images() -> None:
    one = client()
    assert one.picked(even=False) == [1.0]
    assert one.picked(even=True) == [0.5]
    assert one.kept_to(even=False) == 1.0
    assert one.kept_to(even=True) == 0.5


def test_class_prompts_are_measured_in_lengths() -> None:
    first, last = torch.tensor([[0.0, 1.0], [0.0, -1.0]]), torch.tensor([[3.0, 1.0], [0.0, -4.0]])
    found = inside.moved(first, last)
    assert found["way from start to end"] == pytest.approx(3.0)
    assert found["distance of two classes at the end"] == pytest.approx(math.hypot(3, 5))
    text = inside.table([client()], found, (4,))
    assert "| greatest mixing weight on the image's class, layer 5 | 100.0 % | 50.0 % |" in text

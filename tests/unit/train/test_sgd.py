"""The one training loop: which tensor has which rate, what the optimiser does, what the loss says."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedcue.errors import ClientError
from fedcue.model.prompted import Prefix
from fedcue.train.batches import Samples
from fedcue.train.settings import Training
from fedcue.train.sgd import SGD, fit, mean_loss, rate


@dataclass
class Numbers:
    """Images that are numbers: the prefix of an image is its value."""

    values: Tensor

    def prefix(self, rows: Tensor, generator: torch.Generator | None = None) -> Prefix:
        return Prefix(0, self.values[rows, None, None])

    def bare_cls(self, rows: Tensor, inputs: Prefix) -> Tensor:
        return inputs.tokens


def samples(*values: float) -> Samples:
    numbers = torch.tensor(values or (1.0,))
    return Samples(Numbers(numbers), torch.arange(len(numbers)), torch.zeros(1))


def plain(**options: object) -> Training:
    """Return training without momentum, decay, clipping and decay of the rate."""
    quiet = {"momentum": 0.0, "weight_decay": 0.0, "clip_norm": 1e9, "lr_decay": 1.0, "epochs": 1}
    return Training(**{**quiet, **options})


def slope(trained: dict[str, Tensor], batch: object) -> Tensor:
    """Fall by one for each step in the direction of any tensor."""
    return sum(tensor.sum() for tensor in trained.values())


def moved(training: Training, finished_rounds: int = 0, data: Samples | None = None) -> dict[str, float]:
    """Return how far each tensor of a head with bias and of prompts moves under a slope of one."""
    start = {name: torch.ones(1) for name in ("head", "head_bias", "shared_prompts", "keys")}
    after, _ = fit(slope, start, data or samples(), training, finished_rounds, torch.Generator())
    return {name: round(1 - after[name].item(), 6) for name in start}


def test_head_and_bias_have_one_rate_and_all_else_the_other():
    found = moved(plain(lr=9.0, head_lr=0.01, prompt_lr=0.2))
    assert found == {"head": 0.01, "head_bias": 0.01, "shared_prompts": 0.2, "keys": 0.2}


def test_a_rate_that_is_not_given_is_the_common_one():
    assert set(moved(plain(lr=0.3)).values()) == {0.3}
    assert moved(plain(lr=0.3, head_lr=0.0)) == {
        "head": 0.0,
        "head_bias": 0.0,
        "shared_prompts": 0.3,
        "keys": 0.3,
    }
    assert moved(plain(lr=0.3, prompt_lr=0.1))["head"] == 0.3


def test_class_prompts_have_the_rate_of_prompts_unless_they_have_their_own():
    assert rate(plain(lr=9.0, prompt_lr=0.2), "class_prompts", 0) == 0.2
    training = plain(lr=9.0, head_lr=0.01, prompt_lr=0.2, class_prompt_lr=0.8, lr_decay=0.5)
    rates = {name: rate(training, name, 1) for name in ("head", "shared_prompts", "class_prompts")}
    assert rates == {"head": 0.005, "shared_prompts": 0.1, "class_prompts": 0.4}


def test_a_personal_head_and_its_bias_have_the_heads_rate():
    training = plain(lr=9.0, head_lr=0.01, prompt_lr=0.2)
    assert {rate(training, f"personal_{name}", 0) for name in ("head", "head_bias")} == {0.01}
    assert rate(training, "private_prompts", 0) == 0.2


def test_the_rate_falls_by_its_factor_with_every_finished_round():
    training = plain(lr=0.5, head_lr=0.1, lr_decay=0.9)
    assert rate(training, "shared_prompts", 0) == 0.5
    assert rate(training, "shared_prompts", 3) == pytest.approx(0.5 * 0.9**3)
    assert rate(training, "head", 3) == pytest.approx(0.1 * 0.9**3)
    assert moved(training, finished_rounds=2)["keys"] == pytest.approx(0.5 * 0.81)


def test_weight_decay_adds_a_share_of_the_tensor_to_its_gradient():
    assert moved(plain(lr=0.1, weight_decay=0.5))["head"] == pytest.approx(0.1 * 1.5)


def test_momentum_adds_a_share_of_the_last_step():
    two = samples(1.0, 2.0)
    assert moved(plain(lr=0.1, momentum=0.9, batch_size=1), data=two)["head"] == pytest.approx(
        0.1 * (1 + 1.9)
    )
    assert moved(plain(lr=0.1, batch_size=1), data=two)["head"] == pytest.approx(0.2)


def test_the_optimiser_is_new_at_every_visit():
    training = plain(lr=0.1, momentum=0.9)
    assert moved(training) == moved(training)


def test_gradients_longer_than_the_norm_are_shortened_to_it_all_together():
    """Four slopes of one have the length 2."""
    assert moved(plain(lr=1.0, clip_norm=1.0))["head"] == pytest.approx(0.5, abs=1e-5)
    assert moved(plain(lr=0.5, clip_norm=2.1))["head"] == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_adam_is_torchs_with_decay(decay):
    training = plain(optimiser="adam", lr=0.05, weight_decay=decay, epochs=3)
    found, _ = fit(
        lambda t, batch: (t["head"] ** 2).sum(),
        {"head": torch.tensor([1.0, -2.0])},
        samples(),
        training,
        0,
        torch.Generator(),
    )
    expected = torch.tensor([1.0, -2.0], requires_grad=True)
    optimiser = torch.optim.Adam([expected], lr=0.05, weight_decay=decay)
    for _ in range(3):
        optimiser.zero_grad()
        (expected**2).sum().backward()
        optimiser.step()
    torch.testing.assert_close(found["head"], expected.detach())


def test_decay_makes_a_difference_to_adam():
    """A slope that nearly cancels the decay turns Adam's first step around."""

    def loss(t, batch):
        return -0.1 * t["head"].sum()

    def step(decay):
        training = plain(optimiser="adam", lr=0.05, weight_decay=decay)
        return fit(loss, {"head": torch.ones(1)}, samples(), training, 0, torch.Generator())[0]["head"].item()

    assert step(0.0) == pytest.approx(1.05)
    assert step(0.2) == pytest.approx(0.95)


def test_the_loss_is_the_mean_over_images_and_not_over_steps():
    """Batches of two and one: whichever image comes last, the mean over steps is another one."""
    data, training = samples(1.0, 2.0, 30.0), plain(lr=0.0, batch_size=2)

    def mean(trained, batch):
        return batch.inputs.tokens.mean() + 0 * trained["head"].sum()

    _, loss = fit(mean, {"head": torch.zeros(1)}, data, training, 0, torch.Generator().manual_seed(0))
    assert loss == pytest.approx(11.0)


def test_the_loss_is_that_of_all_epochs():
    def falling(trained, batch):
        return trained["head"].sum()

    _, loss = fit(falling, {"head": torch.ones(1)}, samples(), plain(lr=0.5, epochs=2), 0, torch.Generator())
    assert loss == pytest.approx((1 + 0.5) / 2)


def test_every_epoch_visits_every_image_once_in_an_order_of_its_own():
    seen: list[list[float]] = []

    def watch(trained, batch):
        seen.append(batch.inputs.tokens.flatten().tolist())
        return trained["head"].sum()

    data = samples(*map(float, range(20)))
    generator = torch.Generator().manual_seed(1)
    fit(watch, {"head": torch.zeros(1)}, data, plain(epochs=2, batch_size=8), 0, generator)
    assert [len(batch) for batch in seen] == [8, 8, 4, 8, 8, 4]
    epochs = [[value for batch in part for value in batch] for part in (seen[:3], seen[3:])]
    for epoch in epochs:
        assert sorted(epoch) == list(range(20))
        assert epoch != sorted(epoch)
    assert epochs[0] != epochs[1]


def test_the_order_follows_from_the_generator():
    def order(seed: int) -> list[int]:
        batches = samples(*map(float, range(20))).batches(5, torch.Generator().manual_seed(seed))
        return [row for batch in batches for row in batch.rows.tolist()]

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_what_was_given_is_not_changed_and_what_comes_back_has_no_gradient():
    start = {"head": torch.ones(1)}
    after, _ = fit(slope, start, samples(), plain(lr=0.1), 0, torch.Generator())
    assert start["head"].tolist() == [1.0]
    assert not start["head"].requires_grad
    assert not after["head"].requires_grad


def test_a_step_filter_sees_the_change_after_everything_else():
    training = plain(lr=0.1, weight_decay=0.5)
    seen = {}

    def halve(name: str, change: Tensor) -> Tensor:
        seen[name] = change.item()
        return change / 2

    start = {"head": torch.ones(1), "keys": torch.ones(1)}
    after, _ = fit(slope, start, samples(), training, 0, torch.Generator(), halve)
    assert seen == pytest.approx({"head": -0.15, "keys": -0.15})
    assert after["head"].item() == pytest.approx(1 - 0.075)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_an_optimiser_that_is_kept_goes_on_as_if_it_had_never_stopped(optimiser):
    def loss(trained, batch):
        return (trained["head"] * batch.inputs.tokens.mean()).sum() + trained["head"].pow(2).sum()

    def train(start, epochs, moments):
        options = plain(lr=0.1, epochs=epochs, batch_size=1, optimiser=optimiser, momentum=0.9)
        return fit(loss, start, samples(2.0), options, 0, torch.Generator(), None, moments)[0]

    start = {"head": torch.ones(2)}
    fresh = {"head_mean": torch.zeros(2), "head_square": torch.zeros(2), "head_steps": torch.zeros(())}
    whole, kept = dict(fresh), dict(fresh)
    at_once = train(start, 5, whole)
    in_parts = train(train(start, 2, kept), 3, kept)
    assert torch.equal(at_once["head"], in_parts["head"])
    assert all(torch.equal(whole[name], kept[name]) for name in fresh)
    assert kept["head_steps"] == (5 if optimiser == "adam" else 0)
    assert torch.equal(train(start, 5, None)["head"], at_once["head"])
    assert not torch.equal(train(train(start, 2, None), 3, None)["head"], in_parts["head"])


def test_what_is_kept_of_adam_stands_under_its_own_name():
    """A slope of 3, two steps: the moments are 0.1 + 0.09 times it, and 0.001 + 0.000999 times its square."""
    kept = {"head_mean": torch.zeros(1), "head_square": torch.zeros(1), "head_steps": torch.zeros(())}
    training = plain(optimiser="adam", epochs=2)
    fit(lambda t, b: 3 * t["head"].sum(), {"head": torch.ones(1)}, samples(), training, 0,
        torch.Generator(), None, kept)  # fmt: skip
    assert kept["head_mean"].item() == pytest.approx(0.19 * 3)
    assert kept["head_square"].item() == pytest.approx(0.001999 * 9)
    assert kept["head_steps"].item() == 2


def test_without_a_clip_norm_no_gradient_is_too_long():
    start = {"head": torch.zeros(1)}
    for norm, expected in ((None, -1000.0), (10.0, -10.0)):
        training = plain(lr=1.0, clip_norm=norm)
        after, _ = fit(lambda t, b: 1000 * t["head"].sum(), start, samples(), training, 0, torch.Generator())
        assert after["head"].item() == pytest.approx(expected)


def test_a_loss_that_is_no_number_is_the_clients_failure():
    with pytest.raises(ClientError, match=r"loss nan at step 1; lower training.lr"):
        fit(
            lambda t, b: t["head"].sum() * math.nan,
            {"head": torch.ones(1)},
            samples(),
            plain(),
            0,
            torch.Generator(),
        )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_steps_are_torch_s_own_bit_for_bit(momentum: float, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(1)
    ours, theirs = (
        [torch.randn(3, 5, generator=torch.Generator().manual_seed(2)).requires_grad_() for _ in "ab"]
        for _ in range(2)
    )
    mine = SGD(dict(zip(ours, (0.1, 0.3), strict=True)), momentum, weight_decay)
    groups = [{"params": [tensor], "lr": lr} for tensor, lr in zip(theirs, (0.1, 0.3), strict=True)]
    torchs = torch.optim.SGD(groups, momentum=momentum, weight_decay=weight_decay)
    for step in range(4):
        mine.zero_grad()
        torchs.zero_grad()
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            if (step, number) != (2, 1):  # a tensor without a gradient stays as it is
                gradient = torch.randn(3, 5, generator=generator)
                pair[0].grad, pair[1].grad = gradient, gradient.clone()
        mine.step()
        torchs.step()
        assert all(map(torch.equal, ours, theirs))


def test_without_momentum_and_decay_nothing_is_remembered_and_nothing_added() -> None:
    """Nothing times a weight that is infinite would be no number."""
    weight = torch.tensor([torch.inf, 1.0], requires_grad=True)
    optimiser = SGD({weight: 0.5}, momentum=0.0, weight_decay=0.0)
    weight.grad = torch.tensor([0.0, 1.0])
    optimiser.step()
    assert weight.tolist() == [torch.inf, 0.5]
    assert optimiser.state[weight] == {}


def test_the_first_step_whose_loss_is_no_number_is_named() -> None:
    with pytest.raises(ClientError, match="loss inf at step 3;"):
        mean_loss([1.0, 2.0, math.inf, math.nan], [1, 1, 1, 1])


def test_training_does_not_import_torch_s_compiler() -> None:
    """It costs every process that trains a second."""
    script = (
        "import sys; sys.path.insert(0, 'tests'); from unit.train.test_sgd import moved, plain\n"
        "moved(plain(momentum=0.9)); assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3])

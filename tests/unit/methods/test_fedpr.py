"""FedPR: changes of the prompts stay out of the broadcast prompts' row space."""

from __future__ import annotations

import math

import pytest
import torch

from fedcue.errors import ConfigError
from fedcue.methods.fedpr import FedPR, dropped_directions
from fedcue.rng import torch_rng
from fedcue.train.settings import Training
from fedcue.types import ServerState


def projector(method: FedPR, prompts: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Return the matrix the method multiplies the changes with, from the right."""
    step = method.step_filter(prompts, seed)
    return step("shared_prompts", torch.eye(prompts.shape[1], dtype=torch.float64))


@pytest.mark.parametrize("ratio", [0.8, 0.5, None])
def test_projector_is_an_orthogonal_projection_of_the_right_rank(ratio):
    prompts = torch.randn(10, 768) * 0.03
    matrix = projector(FedPR(ratio=ratio, normalise_projector=False), prompts)
    torch.testing.assert_close(matrix @ matrix, matrix)
    torch.testing.assert_close(matrix.T, matrix)
    assert round(matrix.trace().item()) == {0.8: 615, 0.5: 384, None: 758}[ratio]


def test_normalised_projector_has_frobenius_norm_one():
    prompts = torch.randn(10, 768) * 0.03
    matrix, plain = (projector(FedPR(normalise_projector=flag), prompts) for flag in (True, False))
    assert matrix.norm().item() == pytest.approx(1)
    torch.testing.assert_close(matrix * math.sqrt(615), plain)


@pytest.mark.parametrize("ratio", [0.8, None])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_visit_changes_prompts_only_across_their_row_space(ratio, optimiser, federation):
    training = Training(lr=0.1, epochs=3, batch_size=4, weight_decay=1e-2, optimiser=optimiser)
    tiny = federation(FedPR(ratio=ratio, normalise_projector=False), training=training)
    state = tiny.run(1).state
    update, _ = tiny.update(state, 0)
    broadcast = state.tensors["shared_prompts"]
    change = update.tensors["shared_prompts"] - broadcast
    assert change.abs().max() > 1e-2
    assert (change @ broadcast.T).abs().max() < 1e-5


def test_each_visit_projects_with_what_was_broadcast(federation):
    tiny = federation(FedPR())
    run = tiny.run(2)
    first, later = tiny.start(), run.state
    change = tiny.update(later, 0)[0].tensors["shared_prompts"] - later.tensors["shared_prompts"]
    assert (change @ later.tensors["shared_prompts"].T).abs().max() < 1e-5
    assert (change @ first.tensors["shared_prompts"].T).abs().max() > 1e-5


def test_head_is_not_projected():
    step = FedPR().step_filter(torch.randn(2, 8), 0)
    change = torch.randn(4, 8)
    assert torch.equal(step("head", change), change)


def test_directions_do_not_hang_on_noise():
    prompts = torch.randn(10, 768) * 0.03
    first, second = (
        dropped_directions(rows, 153, torch_rng(0, "fedpr")) for rows in (prompts, prompts + 1e-7)
    )
    torch.testing.assert_close(first @ first.T, second @ second.T, atol=1e-4, rtol=0)


def test_zero_prompts_lose_only_the_fixed_directions():
    assert dropped_directions(torch.zeros(10, 64), 12, torch_rng(0, "fedpr")).shape == (64, 12)
    assert dropped_directions(torch.zeros(10, 64), 0, torch_rng(0, "fedpr")).shape == (64, 0)


def test_narrow_models_still_lose_the_whole_row_space():
    prompts = torch.randn(10, 32)
    assert dropped_directions(prompts, 6, torch_rng(0, "fedpr")).shape == (32, 10)


def test_too_many_prompts_are_refused(federation):
    with pytest.raises(ConfigError, match="Give fewer prompts"):
        FedPR(prompts=32).check(federation(FedPR()).sizes)


def test_the_number_of_dropped_directions_is_rounded_down_exactly() -> None:
    """100 (1 - 0.8) is 19.999999999999996 in floating-point numbers."""
    kept = projector(FedPR(normalise_projector=False), torch.zeros(2, 100))
    assert round(float(kept.trace()), 6) == 80
    kept = projector(FedPR(normalise_projector=False, ratio=0.85), torch.zeros(2, 6))
    assert round(float(kept.trace()), 6) == 6, "0.9 is no direction"


def rows_moved(tiny, state, client: int) -> float:
    """Return how far a client's change of the prompts goes along the prompts that it was sent."""
    update, _ = tiny.update(state, client)
    prompts = state.tensors["shared_prompts"]
    change = update.tensors["shared_prompts"] - prompts
    return float((change @ prompts.T).abs().max() / change.norm() / prompts.norm())


def test_the_original_does_not_project_in_the_first_round(federation):
    for first, later in ((True, True), (False, True)):
        tiny = federation(FedPR(prompts=2, project_first_round=first), images=8)
        state = tiny.start()
        assert (rows_moved(tiny, state, 0) < 1e-6) == first
        assert (rows_moved(tiny, ServerState(1, state.tensors), 0) < 1e-6) == later


def test_the_originals_prompts_start_between_0_and_1(federation):
    first = federation(FedPR(prompt_init="unit")).start().tensors["shared_prompts"]
    assert 0 <= first.min() < 0.05
    assert 0.95 < first.max() < 1
    assert first.mean().item() == pytest.approx(0.5, abs=0.05)


def test_the_originals_optimiser_goes_on_where_the_clients_last_visit_left_it(federation):
    training = Training(optimiser="adam", lr=0.01, epochs=1, batch_size=4)
    run = federation(FedPR(prompts=2, keep_optimiser=True), training=training, images=8).run(2, sampled=(0,))
    memory = run.memories[0].tensors
    steps = 2 * -(-len(run.tiny.partition.train[0]) // 4)  # both visits
    assert {name: int(memory[f"{name}_steps"]) for name in ("head", "shared_prompts")} == {
        "head": steps,
        "shared_prompts": steps,
    }
    assert memory["shared_prompts_square"].shape == (2, 32)
    assert not run.result.summary["total_upload_floats"] % (4 * 32 + 2 * 32), "moments stay at the client"
    new = federation(FedPR(prompts=2), training=training, images=8).run(2, sampled=(0,))
    assert not new.memories
    assert not torch.equal(new.state.tensors["head"], run.state.tensors["head"])


def test_a_client_that_never_trained_is_tested_without_an_optimiser(federation):
    run = federation(FedPR(prompts=2, keep_optimiser=True), images=8).run(1, sampled=(0,))
    assert run.result.summary["heldout_mean_accuracy"] is not None


@pytest.mark.parametrize(("off", "rank"), [(0.0, 1), (1.79e-6, 1), (3e-6, 2), (1e-3, 2)])
def test_a_direction_counts_however_small_its_part_as_long_as_it_is_no_rounding(off, rank):
    prompts = torch.tensor([[1.0, 0, 0, 0], [2.0, off, 0, 0]])
    assert dropped_directions(prompts, 0, torch_rng(0, "fedpr")).shape == (4, rank)

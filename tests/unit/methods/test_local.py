"""Local: every client alone."""

from __future__ import annotations

import pytest
import torch

from fedcue.methods.local import Local


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("prompts", [0, 1])
def test_a_clients_model_does_not_depend_on_the_others_and_nothing_travels(prompts, federation):
    together = federation(Local(prompts=prompts), images=8).run(2)
    alone = federation(Local(prompts=prompts), images=8).run(2, sampled=(1,))
    assert same(together.memories[1].tensors, alone.memories[1].tensors)
    assert set(together.memories[1].tensors) == ({"head", "prompts"} if prompts else {"head"})
    assert not torch.equal(together.memories[0].tensors["head"], together.memories[1].tensors["head"])
    assert together.state.tensors == {}
    for record in together.result.rounds:
        assert record["upload_floats"] == record["download_floats"] == record["upload_bytes"] == 0


def test_a_client_goes_on_where_it_stopped(federation):
    tiny = federation(Local(), images=8)
    run, seen, fit = tiny.run(1), [], tiny.host.loop
    tiny.host.loop = lambda loss, start, *rest: seen.append(start) or fit(loss, start, *rest)
    tiny.update(run.state, 0, run.memories[0])
    assert same(run.memories[0].tensors, seen[0])


def test_a_client_that_was_never_drawn_trains_once_before_the_last_test_and_for_it_alone(federation):
    run = federation(Local()).run(1, sampled=(0,))
    first = run.tiny.client(2).first_kept()
    assert same(first, run.for_test(2)[1])
    late = run.for_test(2, final=True)[1]
    assert not torch.equal(late["head"], first["head"])
    assert run.accuracy(2, final=True) > run.accuracy(2)
    assert same(run.memories[0].tensors, run.for_test(0, final=True)[1]), "one that trained does not"
    assert 2 not in run.memories


def test_held_out_clients_are_not_served(federation):
    run = federation(Local(), images=8).run(1)
    assert run.tiny.made().roster.tested() == [0, 1, 2]
    assert run.result.summary["heldout_mean_accuracy"] is None

"""NCM: no training, no rounds."""

from __future__ import annotations

import torch

from fedcue.config.layers import load
from fedcue.methods.ncm import NCM


def test_it_has_no_rounds_whatever_is_asked_for():
    assert load("default", ["method=ncm", "rounds=7"]).rounds == 0
    assert load("default", ["method=cue", "rounds=7"]).rounds == 7


def test_the_final_feature_is_computed_once(federation):
    tiny = federation(NCM(), images=8)
    assert tiny.batch(0).inputs.block == tiny.model.depth


def test_a_held_out_client_is_served_by_the_others_means(federation):
    """Client 3 holds classes 3 and 0, of which clients 2 and 0 sent means."""
    run = federation(NCM(), images=8).run(0)
    assert [reply.client for reply in run.replies] == [0, 1, 2]
    assert run.accuracy(3) == 1
    assert torch.isfinite(run.predict(3)).all()

"""Head-Tuning: only the head is trained, on features that are computed once."""

from __future__ import annotations

import torch

from fedcue.methods.head import HeadTuning


def test_head_tuning_from_kept_features_is_exact(federation):
    kept, computed = federation(HeadTuning()), federation(HeadTuning())
    assert kept.batch(0).inputs.block == kept.model.depth
    computed.frozen.whole = computed.frozen.start
    assert computed.batch(0).inputs.block == 0
    first, second = kept.run(2).state.tensors["head"], computed.run(2).state.tensors["head"]
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


def test_nothing_but_the_head_is_trained_and_travels(federation):
    run = federation(HeadTuning(), images=8).run(1)
    assert set(run.state.tensors) == {"head"}
    assert not torch.equal(run.state.tensors["head"], run.tiny.start().tensors["head"])

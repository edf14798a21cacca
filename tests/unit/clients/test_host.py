"""What a client does: warm up, train, be tested, alone or with others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.tiny_federation import TinyFederation

from fedcue.clients.host import check_finite, naming_bugs
from fedcue.errors import ClientError
from fedcue.methods.cue import Cue
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.types import ClientMemory, Download, Update


@pytest.mark.parametrize("method", [PEP(), Cue()])
def test_clients_tested_together_are_predicted_as_alone(method):
    run = TinyFederation(method, images=8).run(1)
    host, sent = run.tiny.host, run.tiny.sent(run.state, 0)
    download = Download(0, 1, 0, sent)
    together = host.test([2, 0, 3], download, ClientMemory(), final=False)
    assert together.clients.tolist() == [2] * 8 + [0] * 8 + [3] * 8
    alone = [host.test([client], download, ClientMemory(), final=False) for client in (2, 0, 3)]
    for name in ("images", "clients", "labels", "predicted"):
        assert getattr(together, name).tolist() == np.concatenate([getattr(a, name) for a in alone]).tolist()


def test_log_priors_are_shares_of_the_training_labels_smoothed_as_asked():
    plain = TinyFederation(HeadTuning(), labels=[[0, 0, 0, 1], [1], [2], [3]]).host.log_priors(0)
    torch.testing.assert_close(plain.exp(), torch.tensor([0.75, 0.25, 0.0, 0.0]))
    assert plain.tolist()[2] == -math.inf
    smooth = TinyFederation(HeadTuning(prior_smoothing=0.2), labels=[[0, 0, 0, 1], [1], [2], [3]])
    expected = torch.tensor([0.65, 0.25, 0.05, 0.05])
    torch.testing.assert_close(smooth.host.log_priors(0).exp(), expected)


def test_a_visit_has_a_stream_of_its_own_by_client_and_round():
    """Another round or another client is another order of batches."""
    tiny = TinyFederation(HeadTuning())
    orders = {}

    def noted(loss, start, samples, training, finished_rounds, generator, *rest):
        orders[key] = torch.randperm(16, generator=generator).tolist()
        return dict(start), 0.0

    tiny.host.loop = noted
    state = tiny.start()
    for key in ((0, 0), (0, 1), (1, 0)):
        client, round_ = key
        tiny.host.train(Download(client, round_, 0, tiny.sent(state, client)), ClientMemory())
    assert len({tuple(order) for order in orders.values()}) == 3
    again = dict(orders)
    key = (0, 0)
    tiny.host.train(Download(0, 0, 0, tiny.sent(state, 0)), ClientMemory())
    assert orders[key] == again[key]


def test_even_priors_are_the_same_for_all_classes():
    tiny = TinyFederation(Cue(), images=8, settings=["evaluation.priors=uniform"])
    run = tiny.run(0)
    samples, _ = run.for_test(0)
    torch.testing.assert_close(samples.log_priors, torch.full((8, 4), math.log(1 / 4)))


def test_an_update_that_is_no_number_is_the_clients_failure():
    with pytest.raises(ClientError, match="its update of head is not finite"):
        check_finite(Update(0, 1, {"head": torch.tensor([1.0, math.inf])}))
    check_finite(Update(0, 1, {"head": torch.tensor([1.0]), "holds": torch.tensor([True])}))


def test_a_bug_is_told_with_client_round_and_step_and_a_failure_is_left_as_it_is():
    with pytest.raises(KeyError) as caught, naming_bugs("training", 3, 4):
        raise KeyError("promts")
    assert caught.value.__notes__ == [
        "This is a bug, not a failure of the client: training of client 3 in round 5."
    ]
    with pytest.raises(ClientError) as suffered, naming_bugs("training", 3, 4):
        raise ClientError("too hot")
    assert not hasattr(suffered.value, "__notes__")

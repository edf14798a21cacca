"""Images in batches: in order or shuffled, with one prior for all or one for each."""

from __future__ import annotations

import torch
from test_sgd import Numbers

from fedcue.errors import ClientError
from fedcue.train.batches import Samples


def given(priors: torch.Tensor, **more: object) -> Samples:
    return Samples(Numbers(torch.arange(5.0)), torch.arange(5) * 10, priors, **more)


def test_without_a_generator_images_come_in_order():
    batches = list(given(torch.zeros(3)).batches(2))
    assert [batch.rows.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert [batch.labels.tolist() for batch in batches] == [[0, 10], [20, 30], [40]]
    assert [batch.inputs.tokens.flatten().tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert [len(batch) for batch in batches] == [2, 2, 1]


def test_shuffled_images_keep_their_labels_and_their_own_priors():
    priors = torch.arange(5.0)[:, None].expand(5, 3)
    rows = []
    for batch in given(priors).batches(2, torch.Generator().manual_seed(0)):
        rows += batch.rows.tolist()
        assert torch.equal(batch.labels, batch.rows * 10)
        assert torch.equal(batch.log_priors[:, 0], batch.rows.float())
        assert torch.equal(batch.inputs.tokens.flatten(), batch.rows.float())
    assert sorted(rows) == [0, 1, 2, 3, 4]
    assert rows != sorted(rows)


def test_one_prior_is_that_of_every_batch():
    assert all(batch.log_priors.tolist() == [1, 2] for batch in given(torch.tensor([1.0, 2.0])).batches(2))


def test_the_check_is_asked_before_every_batch():
    asked = []

    def stop() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise ClientError("enough")

    done = []
    try:
        for batch in given(torch.zeros(1), check=stop).batches(2):
            done.append(len(batch))
    except ClientError:
        pass
    assert (done, len(asked)) == ([2], 2)


def test_values_of_some_classes_stand_at_their_classes_and_all_others_have_none():
    """Two classes of three; one prior for all five images, or one for each."""
    values, classes = torch.arange(1.0, 11.0).view(5, 2), torch.tensor([2, 0])
    for priors in (torch.zeros(3), torch.zeros(5, 3)):
        (batch,) = given(priors).batches(5)
        whole = batch.for_all_classes(values, classes)
        assert whole.tolist() == [[values[n, 1], 0, values[n, 0]] for n in range(5)]
        assert batch.for_all_classes(values[:, None], classes).shape == (5, 1, 3)

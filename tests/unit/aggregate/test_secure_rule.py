"""aggregate=secure: words are added up exactly, in any order; what cannot be added up is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import SMALL
from support.tables import roster_with, table_of
from support.tiny_federation import TinyFederation

import fedcue
from fedcue.aggregate.mean import Summing
from fedcue.aggregate.secure import Secure, word_shapes, zeros_of
from fedcue.errors import ClientError, ConfigError, FedcueError
from fedcue.registry import METHODS
from fedcue.rounds.transport import check_transport
from fedcue.types import TensorSpec, Update

SINGLE = ("pfedpg", "fedcof")
"""Methods whose server needs every single update; ``local`` sends nothing at all."""
SUMMED = [name for name in METHODS.builtin if name not in (*SINGLE, "local")]


def made(name: str):
    return METHODS.get(name)(**({"groups": 4} if name == "sgpt" else {}))


@pytest.mark.parametrize("name", SUMMED)
def test_a_run_with_words_ends_where_one_with_floats_does(name):
    """Words of 2^-32 differ from floats in the last digits only; what a client sends is nothing but words."""
    secure = TinyFederation(made(name), settings=["aggregate=secure"]).run(1, [0, 1, 2])
    plain = TinyFederation(made(name)).run(1, [0, 1, 2])
    for tensor, expected in zip(secure.state.tensors.values(), plain.state.tensors.values(), strict=True):
        torch.testing.assert_close(tensor, expected, atol=1e-4, rtol=1e-4)
    for update in [*secure.replies, *(one for own in secure.updates for one in own)]:
        assert {tensor.dtype for tensor in update.tensors.values()} == {torch.uint64}
        assert update.loss is None
        first = update in secure.replies
        specs = [
            s
            for s in secure.tiny.method.table(secure.tiny.sizes).uploads
            if (s.replied if first else s.returned)
        ]
        prepare = (lambda update: update) if first else secure.tiny.method.added
        assert {n: tuple(t.shape) for n, t in update.tensors.items()} == word_shapes(specs, prepare)


def test_the_order_in_which_clients_are_added_changes_no_bit():
    method = made("fedvpt")
    one, other = (
        TinyFederation(method, settings=["aggregate=secure"]).run(1, order).state.tensors
        for order in ([0, 1, 2], [2, 0, 1])
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@given(st.integers(0, 2**31), st.sampled_from(["uniform", "size"]))
@settings(max_examples=20, deadline=None)
def test_words_are_the_weighted_sum_rounded_once_at_each_client(seed, weighting):
    rule, summing = Secure(fraction_bits=20), Summing(table_of(), weighting)
    generator = torch.Generator().manual_seed(seed)
    updates = [Update(c, c + 3, {"head": torch.randn(4, 3, generator=generator)}, 0.5) for c in range(4)]
    adding = rule.adding({}, summing)
    for update in updates:
        adding.add(rule.leave(update, summing))
    sums = adding.sums()
    weights = [update.samples if weighting == "size" else 1 for update in updates]
    exact = [
        np.rint(u.tensors["head"].double().numpy() * w * 2**20) for u, w in zip(updates, weights, strict=True)
    ]
    np.testing.assert_array_equal(sums.tensors["head"].numpy(), np.sum(exact, 0) / 2**20)
    assert (sums.weight, sums.updates) == (sum(weights), 4)


def test_a_number_out_of_range_leaves_its_client_out_by_name_and_tells_no_number():
    rule = Secure(limit=10.0)
    head = torch.zeros(4, 3)
    head[1, 1] = 12.345
    with pytest.raises(ClientError, match=r"its head holds numbers beyond aggregate.limit=10;") as refused:
        rule.leave(Update(0, 1, {"head": head}), Summing(table_of()))
    assert "12.3" not in str(refused.value)
    with pytest.raises(ClientError, match="its head holds numbers beyond"):
        rule.leave(Update(0, 1, {"head": head * torch.nan}), Summing(table_of()))


def test_a_run_in_which_all_are_out_of_range_ends_by_name(tmp_path):
    config = fedcue.configure("default", [*SMALL, "method=head", "aggregate=secure", "aggregate.limit=0.001"])
    with pytest.raises(FedcueError, match=r"its head holds numbers beyond aggregate.limit=0.001"):
        fedcue.run(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("asked", "share", "needed"),
    [
        (2, 2 / 3, 2),
        (3, 2 / 3, 3),
        (6, 2 / 3, 5),
        (10, 2 / 3, 7),
        (100, 2 / 3, 67),
        (12, 0.5, 7),
        (5, 1.0, 5),
    ],
)
def test_more_than_the_share_of_the_clients_asked_is_needed(asked, share, needed):
    assert Secure(threshold=share).needed(asked) == needed
    assert 2 * needed > asked


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *((["method=" + name], f"nothing but sums, and {name} needs every client's own [a-z_, ]+\\. Give aggregate=mean") for name in SINGLE),
        (["clients_per_round=1"], "hides a client among others, but clients_per_round=1"),
        (["warm_start=1"], "hides a client among others, but warm_start=1"),
        (["aggregate.limit=1e9"], "needs more than 53 bits"),
        (["aggregate.threshold=0.4"], "threshold"),
        (["aggregate.norm_bound=1"], "norm_bound"),
    ],
)  # fmt: skip
def test_what_cannot_be_summed_securely_is_refused_with_the_reason(settings, words, tmp_path):
    with pytest.raises(FedcueError, match=words):
        fedcue.run(fedcue.configure("default", [*SMALL, "aggregate=secure", *settings]), tmp_path / "run")


def test_a_sum_that_could_wrap_around_is_refused_before_the_run():
    Secure(limit=1.9e6).check(5, 1000)
    with pytest.raises(FedcueError, match="A sum over 3000 clients may not fit 64 bits"):
        Secure(limit=1.9e6).check(5, 3000)


def test_two_clients_hide_each_other() -> None:
    Secure().check(2, 2)
    assert Secure().needed(2) == Secure().least == 2


def test_more_words_than_fit_a_sum_are_refused_as_they_come() -> None:
    """Words of up to 2^62: of two the sum fits 63 bits and a sign, of three it may not."""
    rule = Secure(fraction_bits=32, limit=2.0**20)
    most = next(n for n in range(1, 5000) if not fits(rule, n + 1))
    adding = rule.adding({}, Summing(table_of()))
    words = rule.leave(Update(0, 1, {"head": torch.zeros(4, 3)}), Summing(table_of()))
    for _ in range(most):
        adding.add(words)
    with pytest.raises(FedcueError, match=f"A sum over {most + 1} clients may not fit 64 bits"):
        adding.add(words)


def fits(rule: Secure, clients: int) -> bool:
    try:
        rule.fixed_point.check_clients(clients)
    except FedcueError:
        return False
    return True


def test_words_have_the_shapes_of_what_is_uploaded_and_nothing_where_the_number_of_rows_is_not_known() -> (
    None
):
    specs = [TensorSpec("head", (4, 3)), TensorSpec("rows", (None, 2), dtype=torch.int64)]
    assert word_shapes(specs) == {"head": (4, 3), "rows": (0, 2)}
    blank = zeros_of(specs)
    assert (blank.client, blank.samples) == (0, 1)
    assert blank.tensors["head"].tolist() == [[0] * 3] * 4
    assert blank.tensors["rows"].dtype == torch.int64


@pytest.mark.parametrize("transport", ["transport=sparse", "transport.dtype=float16"])
def test_messages_show_no_classes(transport):
    config = fedcue.configure("default", [*SMALL, "method=pep", "aggregate=secure", transport])
    with pytest.raises(ConfigError, match="Give transport=dense and transport.dtype=float32"):
        check_transport(config)


def test_a_round_with_fewer_than_the_threshold_is_drawn_again(monkeypatch):
    from fedcue.clients.host import Host

    tiny = TinyFederation(made("head"), settings=["aggregate=secure"])
    train, visits = Host.train, []

    def failing(self, download, memory):
        visits.append(download.client)
        if len(visits) == 2:
            raise ClientError("it failed")
        return train(self, download, memory)

    monkeypatch.setattr(Host, "train", failing)
    run = tiny.run(1)
    assert len(visits) == 6
    record = run.result.rounds[0]
    assert [failure["attempt"] for failure in record["failures"]] == [0]
    words = sum(tensor.numel() for tensor in run.updates[0][-1].tensors.values())
    assert (record["upload_floats"], record["upload_bytes"]) == (3 * words, 3 * 8 * words)
    assert record["train_loss"] is None


@pytest.mark.parametrize(
    "settings", [["method=fed3r"], ["method=cue"], ["method=fedvpt", "method.weighting=size"]]
)
def test_what_only_adds_up_goes_with_a_secure_sum(settings):
    """No robust rule has a meaning for second moments and for clients that weigh more; a sum has."""
    rule = roster_with("aggregate=secure", *settings).protection.aggregation
    assert rule.plain
    assert rule.sums_only

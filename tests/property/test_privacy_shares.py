"""privacy.where=distributed: the noise of a secure sum is there in shares, whoever drops out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from support.tables import table_of
from support.tiny_federation import TinyFederation

from fedcue.aggregate.mean import Summing
from fedcue.aggregate.secure import Secure
from fedcue.errors import ConfigError, FedcueError
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.methods.tensors import trained, zeros
from fedcue.privacy.differential import DifferentialPrivacy
from fedcue.privacy.guard import Protection, simulated_stream
from fedcue.privacy.shares import LEAST_STEPS, Shares
from fedcue.secure.fixed_point import FixedPoint
from fedcue.types import Update

pytest.importorskip("dp_accounting")

NOISE, CLIP, VALUES = 1.5, 0.5, 4000
TABLE = table_of(trained("head", (VALUES,), zeros))
START = {"head": torch.linspace(-1, 1, VALUES)}


def protection(asked: int, **more: object) -> Protection:
    rule = Secure(threshold=0.5, fraction_bits=more.pop("bits", 32))
    privacy = DifferentialPrivacy(where="distributed", noise=NOISE, clip=CLIP, **more)
    return Protection(rule, privacy, Summing(TABLE), simulated_stream(3), (asked, asked))


def released(of: Protection, clients: int) -> torch.Tensor:
    """Return the noise of a sum over so many clients that change nothing, in units of one."""
    adding = of.adding(START, 0)
    for client in range(clients):
        adding.add(of.guard(client, 0).leave(Update(client, 9, START), START))
    return adding.sums().tensors["head"] - clients * START["head"].double()


@pytest.mark.parametrize(("asked", "left", "colluding"), [(6, 6, 0), (6, 4, 0), (6, 4, 2), (10, 7, 3)])
def test_with_the_fewest_clients_a_sum_has_just_the_noise_it_is_accounted_with(asked, left, colluding):
    """Gaussian of the stated deviation or more: each survivor beyond the fewest adds its share to it."""
    of = protection(asked, colluding=colluding)
    honest = of.aggregation.needed(asked) - colluding
    deviation = NOISE * 2 * CLIP * math.sqrt(left / honest)
    assert left >= of.aggregation.needed(asked)
    assert kstest(released(of, left).numpy() / deviation, "norm").pvalue > 1e-4


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_or_twice_the_noise_would_be_noticed(factor):
    of = protection(6)
    deviation = factor * NOISE * 2 * CLIP
    assert kstest(released(of, 4).numpy() / deviation, "norm").pvalue < 1e-12


def test_a_share_is_made_for_as_many_clients_as_are_asked_for_its_sum():
    of = replace(protection(4, colluding=1), asked=(10, 4))
    assert of.shares("warm up").honest == of.aggregation.needed(10) - 1 == 5
    assert of.shares(0).honest == of.aggregation.needed(4) - 1 == 2


@given(st.integers(0, 2**31), st.sampled_from([8, 20, 32]), st.floats(1e-3, 10.0))
@settings(max_examples=40, deadline=None)
def test_a_record_moves_words_by_no_more_than_the_noise_is_made_for(seed, bits, scale):
    """Whatever two clients' updates are: clipped, rounded, as integers."""
    of = protection(4, bits=bits)
    privacy, rule = of.privacy, of.aggregation
    generator = torch.Generator().manual_seed(seed)
    one, other = (
        rule.leave(
            privacy.leave(
                Update(0, 9, {"head": START["head"] + scale * torch.randn(VALUES, generator=generator)}),
                START, TABLE, lambda: None,
            ),
            Summing(TABLE),
        ).tensors["head"].numpy().view(np.int64)
        for _ in range(2)
    )  # fmt: skip
    sensitivity = privacy.moves({"head": START["head"]}, TABLE)["head"]
    slack = 1 + of.shares(0).rounding({"head": START["head"]}, {"head": sensitivity})
    moved = math.sqrt(float(np.sum((one - other).astype(np.float64) ** 2)))
    assert moved <= sensitivity * rule.fixed_point.scale * slack * (1 + 1e-6)


def test_the_sum_of_shares_is_as_good_as_one_gaussian():
    """The published excess: tau sqrt(d), with tau = 10 sum_k exp(-2 pi^2 s^2 k / (k + 1))."""
    clients, values = 2000, 2**40
    logs = [-2 * math.pi**2 * LEAST_STEPS**2 * k / (k + 1) for k in range(1, clients)]
    assert math.log10(10 * clients * math.sqrt(values)) + max(logs) / math.log(10) < -1000
    shares = Shares(FixedPoint(), 9)
    for deviation in (1e-3, 1.0, 77.7):
        assert shares.steps(deviation) * 3 >= deviation * 2**32
        assert shares.steps(deviation) * 3 <= deviation * 2**32 * (1 + 2.0**-19) + 9


def test_a_grid_too_coarse_or_too_small_for_the_noise_is_refused():
    with pytest.raises(ConfigError, match=r"deviation of \d+ steps .* Allowed: 16 to"):
        Shares(FixedPoint(4, 100.0), 4).steps(0.1)
    with pytest.raises(ConfigError, match="Give other aggregate.fraction_bits or another aggregate.limit"):
        Shares(FixedPoint(32, 1.0), 4).steps(0.1)
    with pytest.raises(ConfigError, match="leaves no client whose noise counts"):
        protection(4, colluding=3).shares(0)


@pytest.mark.parametrize("method", [HeadTuning(), PEP()], ids=lambda method: method.name)
def test_a_run_says_what_it_spent_and_against_whom(method):
    """The budget is that of a trusted server: the sums are as noisy as its own would be, or more."""
    common = ["privacy=dp", "privacy.noise=20", "privacy.max_epsilon=50"]
    tiny = TinyFederation(method, settings=[*common, "aggregate=secure", "privacy.where=distributed"])
    private = tiny.run(1).result.summary["privacy"]
    trusted = TinyFederation(method, settings=common).run(1).result.summary["privacy"]
    assert private["epsilon"] == trusted["epsilon"]
    assert "as long as it knows the noise of no more than privacy.colluding" in private["against"]
    for update in tiny.run(1).updates[0]:
        assert {tensor.dtype for tensor in update.tensors.values()} == {torch.uint64}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["privacy.where=distributed"], "Give aggregate=secure"),
        (["privacy.where=central", "aggregate=secure"], "Give privacy.where=distributed"),
        (["privacy.where=distributed", "aggregate=secure", "privacy.sample=secret"], "Give privacy.sample=known"),
        (["privacy.where=distributed", "aggregate=secure", "privacy.colluding=3"], "no client whose noise counts"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together_are_refused(more, words):
    with pytest.raises(FedcueError, match=words):
        TinyFederation(HeadTuning(), settings=["privacy=dp", *more]).made()
    heavy = HeadTuning(weighting="size")
    with pytest.raises(ConfigError, match=r"which privacy.where=distributed does not allow"):
        TinyFederation(heavy, settings=["privacy=dp", "privacy.where=distributed", "aggregate=secure"]).made()

"""What the wire remembers: which rows a client has, and when seldom tensors were last sent."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from support.tiny_federation import TinyFederation

from fedcue.config.layers import load
from fedcue.errors import ConfigError
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.pep import PEP
from fedcue.rounds.transport import Traffic, Wire, check_transport
from fedcue.types import Download, ServerState, Sizes, Update

SIZES = Sizes(classes=6, width=8, depth=8, patch=4, clients=3)
TABLE = PEP().table(SIZES)


def state() -> dict[str, torch.Tensor]:
    """Return what clients are sent."""
    first = TABLE.first(0)
    return {
        **{name: first[name] for name in TABLE.sent},
        "prototypes": torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0)),
        "has_prototype": torch.ones(6, dtype=torch.bool),
    }


def wire() -> Wire:
    """Return a sparse wire that knows client 0 to hold the classes 1 and 4."""
    made = Wire(load("default", ["transport=sparse"]), TABLE)
    holds = torch.tensor([False, True, False, False, True, False])
    made.first_reply(Update(0, 9, {"centroids": torch.zeros(3, 6, 8), "holds": holds}))
    made.traffic = Traffic()
    return made


def sent(own: Wire, number: int, tensors: dict[str, torch.Tensor]) -> int:
    own.traffic = Traffic()
    received = own.download(Download(0, number, tensors)).tensors
    assert torch.equal(received["prototypes"][:, [1, 4]], tensors["prototypes"][:, [1, 4]])
    return own.traffic.download_floats


def resumed(own: Wire) -> Wire:
    again = Wire(own.config, TABLE)
    again.remember(own.memory())
    return again


HEAD_AND_PROMPTS, PROTOTYPES = 6 * 8 + 8 + 2 * 8, 3 * 2 * 8


def test_prototypes_are_sent_once_and_again_only_when_they_changed() -> None:
    own, tensors = wire(), state()
    own.changed = 0
    assert sent(own, 0, tensors) == HEAD_AND_PROMPTS + PROTOTYPES, "a client that never had them"
    assert sent(own, 1, tensors) == HEAD_AND_PROMPTS, "nothing changed"
    own.note_changes(ServerState(1, tensors), ServerState(2, dict(tensors)))
    assert sent(own, 2, tensors) == HEAD_AND_PROMPTS, "the same values are no change"
    moved = {**tensors, "prototypes": tensors["prototypes"] + 1}
    own.note_changes(ServerState(2, tensors), ServerState(3, moved))
    assert sent(own, 3, moved) == HEAD_AND_PROMPTS + PROTOTYPES, "they changed"
    assert sent(own, 4, moved) == HEAD_AND_PROMPTS, "and not again"


def test_rows_a_client_does_not_hold_come_back_as_the_server_has_them() -> None:
    own, tensors = wire(), state()
    trained = {name: tensors[name] + 1 for name in TABLE.trained}
    received = own.upload(Update(0, 9, trained), tensors).tensors
    assert own.traffic.upload_floats == HEAD_AND_PROMPTS
    assert torch.equal(received["class_prompts"][[1, 4]], trained["class_prompts"][[1, 4]])
    assert torch.equal(received["class_prompts"][[0, 2, 3, 5]], tensors["class_prompts"][[0, 2, 3, 5]])
    assert torch.equal(received["head"], trained["head"])


def test_a_resumed_wire_remembers_classes_visits_and_changes() -> None:
    own, tensors = wire(), state()
    sent(own, 0, tensors)
    assert sent(resumed(own), 1, tensors) == HEAD_AND_PROMPTS, "the client has the prototypes"
    own.changed = 1
    assert sent(resumed(own), 1, tensors) == HEAD_AND_PROMPTS + PROTOTYPES, "they changed since"
    assert resumed(own).memory() == own.memory()


def test_a_resumed_run_sends_what_an_uninterrupted_one_sends() -> None:
    tiny = TinyFederation(PEP(layers=(1,), period=3), images=2, settings=["transport=sparse"])
    whole, parts = tiny.run(2), tiny.run(1).more(1)
    floats = [
        [(record["download_floats"], record["upload_floats"]) for record in run.result.rounds]
        for run in (whole, parts)
    ]
    assert floats[0] == floats[1]
    assert floats[0][0][0] > floats[0][1][0], "prototypes do not travel in every round"


@pytest.mark.parametrize(
    "settings",
    [["privacy=dp"], ["method.prior=uniform"], ["method.prior_smoothing=0.1"], ["method=cue"]],
)
def test_sparse_rows_are_refused_where_every_class_counts(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match="Use transport=dense"):
        check_transport(load("default", ["transport=sparse", *settings]))
    check_transport(load("default", settings))


def test_sparse_rows_are_admitted_where_other_rows_do_not_move() -> None:
    check_transport(load("default", ["transport=sparse", "method=cue", "method.logit_prior=train+test"]))


def test_a_round_in_which_prototypes_moved_is_noted_and_they_are_sent_again() -> None:
    tiny = TinyFederation(PEP(layers=(1,), period=1), images=2, settings=["transport=sparse"])
    floats = [record["download_floats"] for record in tiny.run(3).result.rounds]
    assert floats[0] == floats[1] == floats[2]
    seldom = TinyFederation(PEP(layers=(1,), period=9), images=2, settings=["transport=sparse"])
    floats = [record["download_floats"] for record in seldom.run(3).result.rounds]
    assert floats[0] > floats[1] == floats[2]


def test_words_of_a_secure_sum_travel_whole_and_nothing_else_is_refused_them() -> None:
    check_transport(load("default", ["aggregate=secure"]))
    for other in ("transport=sparse", "transport.dtype=float16"):
        with pytest.raises(ConfigError, match="transport"):
            check_transport(load("default", ["aggregate=secure", "method=fedvpt", other]))


def test_one_number_too_large_for_half_precision_keeps_its_tensor_whole() -> None:
    own = Wire(load("default", ["transport.dtype=float16", "method=fedvpt"]), FedVPT().table(SIZES))
    sent = {"mixed": torch.tensor([1.0, 1e6]), "small": torch.tensor([1.0, 0.5]), "counts": torch.tensor([3])}
    received = own.upload(Update(0, 1, sent), {}).tensors
    assert all(torch.equal(received[name], sent[name]) for name in sent)
    assert own.traffic.upload_bytes == 2 * 4 + 2 * 2 + 8


def test_a_dense_message_is_whole_whatever_is_remembered_of_a_client() -> None:
    own, tensors = Wire(load("default", []), TABLE), state()
    floats = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    own.first_reply(Update(0, 9, {"holds": torch.ones(6, dtype=torch.bool)}))
    assert own.memory() == {"classes": {}, "received": {}, "changed": 0}
    own.remember(wire().memory())
    for number in (0, 1):
        assert sent(own, number, tensors) == floats
    own.note_changes(ServerState(1, tensors), ServerState(2, {**tensors, "prototypes": tensors["head"]}))
    assert own.changed == 0, "nothing is left out, so that nothing has to be noted"


def test_a_sparse_client_is_sent_its_own_rows_and_zeros_elsewhere() -> None:
    own, tensors = wire(), state()
    received = own.download(Download(0, 0, tensors)).tensors
    others = [0, 2, 3, 5]
    assert torch.equal(received["class_prompts"][[1, 4]], tensors["class_prompts"][[1, 4]])
    assert not received["class_prompts"][others].any()
    assert not received["prototypes"][:, others].any()
    assert torch.equal(received["head"], tensors["head"])
    assert "classes" not in received


def test_a_reply_before_round_0_has_zeros_for_classes_that_were_not_sent() -> None:
    own = Wire(load("default", ["transport=sparse"]), TABLE)
    holds = torch.tensor([False, True, False, False, True, False])
    made = own.first_reply(Update(0, 9, {"centroids": torch.ones(3, 6, 8), "holds": holds})).tensors
    assert made["centroids"][0, :, 0].tolist() == [0, 1, 0, 0, 1, 0]
    assert torch.equal(made["holds"], holds)
    assert own.traffic.upload_floats == 3 * 2 * 8


def test_a_message_without_rows_of_classes_does_not_say_which_it_holds() -> None:
    own = wire()
    own.upload(Update(0, 9, {"head": torch.zeros(6, 8)}), {})
    assert own.traffic.upload_bytes == 4 * 6 * 8
    own.upload(Update(0, 9, {"class_prompts": torch.zeros(6, 8)}), {"class_prompts": torch.zeros(6, 8)})
    assert own.traffic.upload_bytes == 4 * 6 * 8 + 4 * 2 * 8 + 4 * 2, "two rows, and two numbers of classes"


def test_up_and_down_are_counted_apart_in_floats_and_in_bytes() -> None:
    traffic = Traffic()
    assert vars(traffic) == dict.fromkeys(
        ("upload_floats", "download_floats", "upload_bytes", "download_bytes"), 0
    )
    for _ in range(2):
        traffic.add({"head": torch.zeros(3)}, up=True)
        traffic.add({"head": torch.zeros(5), "counts": torch.zeros(2, dtype=torch.int64)}, up=False)
    assert (traffic.upload_floats, traffic.upload_bytes) == (6, 24)
    assert (traffic.download_floats, traffic.download_bytes) == (10, 2 * (20 + 16))


def test_nothing_travels_where_images_are_pooled() -> None:
    own = Wire(load("default", ["method=central"]), FedVPT().table(SIZES))
    own.download(Download(0, 0, {"head": torch.zeros(3)}))
    own.upload(Update(0, 1, {"head": torch.zeros(3)}), {})
    assert own.traffic == Traffic()


def test_numbers_arrive_in_the_type_they_were_sent_in_and_rounded_if_half_precision_is_asked_for() -> None:
    exact = {"sums": torch.tensor([1 / 3], dtype=torch.float64), "counts": torch.tensor([70_000])}
    whole = Wire(load("default", ["method=fedvpt"]), FedVPT().table(SIZES))
    half = Wire(load("default", ["method=fedvpt", "transport.dtype=float16"]), FedVPT().table(SIZES))
    for received in (
        whole.upload(Update(0, 1, exact), {}).tensors,
        whole.download(Download(0, 1, exact)).tensors,
    ):
        assert {name: t.dtype for name, t in received.items()} == {name: t.dtype for name, t in exact.items()}
        assert received["sums"].tolist() == [1 / 3]
    for received in (
        half.upload(Update(0, 1, exact), {}).tensors,
        half.download(Download(0, 1, exact)).tensors,
    ):
        assert received["sums"].dtype == torch.float32
        assert received["sums"].item() == torch.tensor(1 / 3).half().float().item() != 1 / 3
        assert received["counts"].tolist() == [70_000]
        assert received["counts"].dtype == torch.int64


@pytest.mark.parametrize(
    ("settings", "refused"),
    [([], False), (["privacy=dp"], True), (["privacy=dp", "privacy.where=local"], False)],
)
def test_rounding_before_a_trusted_servers_noise_is_refused_and_nowhere_else(settings, refused) -> None:
    config = load("default", ["transport.dtype=float16", *settings])
    with pytest.raises(ConfigError, match="privacy.where=central allows") if refused else nullcontext():
        check_transport(config)

"""Every method as one ONNX file: what it predicts is what fedcue predicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from support.tiny_federation import TINY, TinyFederation, random_vit

import fedcue.methods as fm
from fedcue.after.predict import Model
from fedcue.errors import ConfigError, FedcueError
from fedcue.export.files import written
from fedcue.export.graph import Deployed, takes_priors, trace
from fedcue.methods.fedvpt import FedVPT
from fedcue.registry import METHODS

SHALLOW: dict[str, dict[str, Any]] = {
    "pep": {"layers": (0, 1)},
    "sgpt": {"shared_blocks": 1, "group_blocks": 1},
}
"""What makes a method fit two blocks, where its defaults do not."""

PRIORS = [0.5, 0.3, 0.2, 0.0]


def trained(method: fm.Method) -> Model:
    tiny = TinyFederation(method, images=8, model=random_vit(replace(TINY, depth=2)))
    run = tiny.run(1)
    clients = {client: {"class_priors": [0.0, 0.25, 0.75, 0.0]} for client in range(4)}
    return Model(
        tiny.model, method, run.state, tiny.sizes, 0, tuple("abcd"), clients, run.memories, (0.1, 1.5)
    )


def images(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", METHODS.names())
def test_onnxruntime_predicts_what_fedcue_predicts(name: str) -> None:
    method = METHODS.get(name)(**SHALLOW.get(name, {}))
    assert isinstance(method, fm.Method)
    model = trained(method)
    client = 1 if method.table(model.sizes).kept else None
    program = trace(Deployed(model, client), client=client is not None)
    session = onnxruntime.InferenceSession(written(program, "onnx", None))
    given = {"images": images(5)}
    if takes_priors(program):
        given["priors"] = np.array(PRIORS, np.float32) * 7
    assert [one.name for one in session.get_inputs()] == list(given)
    assert session.get_inputs()[0].shape == ["N", 8, 8, 3]
    assert session.get_outputs()[0].shape == ["N", 4]
    priors = PRIORS if client is None else None
    expected = model.predict(given["images"], priors, client).probabilities
    np.testing.assert_allclose(session.run(None, given)[0], expected, rtol=0, atol=1e-5)
    assert expected.std(0).max() > 1e-4, "images differ"


def test_priors_are_an_input_only_where_they_matter() -> None:
    for options, wanted in (({}, True), ({"prior": "uniform"}, False)):
        model = trained(METHODS.get("pep")(layers=(0, 1), **options))
        assert takes_priors(trace(Deployed(model), client=False)) == wanted


def test_a_client_s_priors_are_in_its_file() -> None:
    model = trained(METHODS.get("pep")(layers=(0, 1)))
    program = trace(Deployed(model, 2), client=True)
    assert not takes_priors(program)
    expected = model.predict(images(3), client=2).probabilities
    torch.testing.assert_close(program.module()(torch.from_numpy(images(3))), expected, rtol=0, atol=1e-5)


NO_PRIORS = {
    "zeros": [0.0] * 4,
    "one negative": [1.0, -1.0, 1.0, 1.0],
    "one unknown": [1.0, np.nan, 1.0, 1.0],
    "one infinite": [1.0, np.inf, 1.0, 1.0],
}


@pytest.mark.parametrize("use", ["mask", "test"])
def test_what_are_no_priors_give_no_probabilities(use: str) -> None:
    model = trained(FedVPT(logit_prior=use))
    program = trace(Deployed(model), client=False)
    session, torch_form = onnxruntime.InferenceSession(written(program, "onnx", None)), program.module()
    for what, priors in NO_PRIORS.items():
        with pytest.raises(ConfigError, match="Priors must be 4 numbers"):
            model.predict(images(2), priors)
        given = np.array(priors, np.float32)
        assert np.isnan(session.run(None, {"images": images(2), "priors": given})[0]).all(), what
        assert torch_form(torch.from_numpy(images(2)), torch.from_numpy(given)).isnan().all(), what
    one = {"images": images(3), "priors": np.array([0, 1, 0, 0], np.float32)}
    np.testing.assert_array_equal(session.run(None, one)[0], [[0, 1, 0, 0]] * 3)


@pytest.mark.parametrize("name", ["ppt", "pfedpg"])
def test_clients_with_tensors_of_their_own_must_be_named(name: str) -> None:
    model = trained(METHODS.get(name)())
    with pytest.raises(ConfigError, match=r"give --client ID\. Give one of these clients: 0, 1, 2\."):
        Deployed(model)


class FixedBatch(FedVPT):
    """A method that counts images in a way that fixes their number."""

    def logits(self, tensors: fm.Tensors, batch: fm.Batch) -> torch.Tensor:
        return super().logits(tensors, batch) * len(batch.inputs.tokens)


def test_a_method_that_fixes_the_number_of_images_is_told_how_to_mend_that() -> None:
    with pytest.raises(FedcueError, match=r"write tensor\.shape\[0\] instead of len\(tensor\)"):
        trace(Deployed(trained(FixedBatch())), client=False)


def test_a_file_names_no_file_of_this_machine() -> None:
    program = trace(Deployed(trained(FedVPT())), client=False)
    for form in ("onnx", "torch"):
        data = written(program, form, None)
        assert b"site-packages" not in data
        assert __file__.encode() not in data
        assert b"/fedcue/" not in data

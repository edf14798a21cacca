"""A finished run of a tiny backbone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file
from support import SMALL
from support.tiny_federation import TINY, random_vit

import fedcue


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes the run of a method on digits, with a backbone of two blocks."""
    backbone = tmp_path_factory.mktemp("backbone")
    save_file(random_vit(replace(TINY, depth=2)).backbone.state_dict(), backbone / "model.safetensors")
    config = {"architecture": "vit_tiny", "model_args": {"num_heads": TINY.heads}}
    config["pretrained_cfg"] = {"input_size": [3, 8, 8], "license": "cc-by-4.0"}
    (backbone / "config.json").write_text(json.dumps(config))

    def make(method: str, *settings: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "run"
        changes = [*SMALL, "snapshots=[]", f"backbone={backbone}", f"method={method}", *settings]
        return fedcue.run(fedcue.configure("default", changes), folder).folder

    return make

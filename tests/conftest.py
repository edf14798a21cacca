"""What all tests share: one thread, no network."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from fedcue.data.dataset import tell_once

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def notes_are_told_anew() -> None:
    """Let every test hear what is told once in a process."""
    tell_once.cache_clear()

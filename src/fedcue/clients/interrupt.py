"""Stopping a run in good order: a flag that all processes see, set by SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from fedcue.errors import Interrupted
from fedcue.machine import shared_zeros


class StopFlag:
    """Zero until a signal came, then its number; lives in memory shared with worker processes."""

    def __init__(self) -> None:
        self._number = shared_zeros([1], torch.int32).numpy()  # read without an operator of torch

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return bool(self._number[0])

    def check(self) -> None:
        """Raise ``Interrupted`` if a signal came; called between batches."""
        if self.is_set:
            raise Interrupted(int(self._number[0]))

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Set the flag on the first SIGINT or SIGTERM; a second one acts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def set_flag(number: int, frame: FrameType | None) -> None:
            self._number[0] = number
            for other, handler in before.items():
                signal.signal(other, handler)

        for number in before:
            signal.signal(number, set_flag)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

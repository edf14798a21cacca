"""What a client can honestly suffer, and what is a bug."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedcue.errors import ClientError, DataError, Interrupted
from fedcue.types import Update

SUFFERED = (ClientError, DataError)
"""What a client can honestly suffer: everything else is a bug and ends the run."""


@contextmanager
def naming_bugs(step: str, client: int, finished_rounds: int | None = None) -> Iterator[None]:
    """Say in the traceback of a bug at which client, in which round and step it happened."""
    try:
        yield
    except (*SUFFERED, Interrupted):
        raise
    except Exception as error:
        when = "" if finished_rounds is None else f" in round {finished_rounds + 1}"
        error.add_note(f"This is a bug, not a failure of the client: {step} of client {client}{when}.")
        raise


def check_finite(update: Update) -> None:
    """Refuse an update that holds something that is not a number."""
    for name, tensor in update.tensors.items():
        if not torch.isfinite(tensor).all():
            raise ClientError(f"its update of {name} is not finite")

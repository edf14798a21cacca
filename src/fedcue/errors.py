"""Mistakes a user can fix: each says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedcueError(Exception):
    """Base of every error whose message is meant for the user (the command line exits with 2)."""


class ConfigError(FedcueError):
    """A recipe or a ``key=value`` does not describe a run."""


class BackboneError(FedcueError):
    """A backbone cannot be loaded as it was given."""


class DataError(FedcueError):
    """A dataset cannot be read or does not hold what the run needs."""


class PartitionError(FedcueError):
    """No partition of the data satisfies the setting."""


class RunFolderError(FedcueError):
    """A run folder is missing, incomplete, or must not be overwritten."""


class ClientError(FedcueError):
    """A client failed; the message names the client, the round and the step."""


class Interrupted(Exception):  # noqa: N818
    """The user stopped the run (SIGINT or SIGTERM); nothing of the finished rounds is lost."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Return "Unknown kind 'given'. Known: ... Did you mean ...?" with the nearest known name."""
    names = sorted(known)
    message = f"Unknown {kind} {given!r}. Known: {', '.join(names)}."
    nearest = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    return f"{message} Did you mean {nearest[0]!r}?" if nearest else message

"""Mistakes a user can fix: each says what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
import errno
import reprlib
from collections.abc import Iterable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when no more can be written."""
_MAX_NAMES = 50
"""Names listed in a message at most."""


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


class CannotWrite(RunFolderError):  # noqa: N818
    """The file system takes no more of a file, or does not let it be written; the old one is as it was."""


class ClientError(FedcueError):
    """A client failed; the message names the client, the round and the step."""


class WorkersLost(FedcueError):  # noqa: N818
    """No worker is left; the finished rounds are safe."""


class BudgetSpent(FedcueError):  # noqa: N818
    """What is asked for next would spend more privacy than is allowed."""


class Interrupted(Exception):  # noqa: N818
    """The user stopped the run (SIGINT or SIGTERM); the finished rounds are safe."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def unknown(kind: str, given: str, known: Iterable[str]) -> str:
    """Return "Unknown kind 'given'. Known: ... Did you mean ...?" with the nearest known name."""
    names = sorted(known)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    message = f"Unknown {kind} {shown(given)}. Known: {', '.join(names[:_MAX_NAMES]) or 'none'}{more}."
    nearest = difflib.get_close_matches(given[:100], names, n=1, cutoff=0.5)
    return f"{message} Did you mean {nearest[0]!r}?" if nearest else message


def shown(value: object) -> str:
    """Return a value as it is written in Python, cut short if it is long or deep."""
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or very deep
        return f"a value of type {type(value).__name__}"


def many(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things: ``1 client``, ``2 clients``, ``1,000 classes``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """Return text from data as a terminal may show it: control and direction marks written out."""
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


_SHORT = reprlib.Repr()
_SHORT.maxstring, _SHORT.maxother, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict = 200, 200, 12, 12, 8


SUFFERED = (ClientError, DataError)
"""Failures of a client that a run survives; every other exception is a bug and ends it."""

"""What leaves a node about a failure: its kind and a short, cleaned reason. Details stay in its own log."""

from __future__ import annotations

import re

from fedcue.errors import BudgetSpent, ClientError, ConfigError, DataError, FedcueError
from fedcue.flower.terms import RefusalError

MOST = 200
"""Characters that a reason may have."""
TOLD = (ClientError, RefusalError, BudgetSpent, ConfigError)
"""Failures whose messages name settings and numbers only. Messages of others may name images and files."""
_PATHS = re.compile(r"""'[^']*[\\/][^']*'|"[^"]*[\\/][^"]*"|(?:[A-Za-z]:)?[\w.~-]*[\\/][^\s'"]*""")


def cleaned(text: str) -> str:
    """Return a reason without paths and control marks, of at most 200 characters."""
    visible = "".join(mark if mark.isprintable() else "?" for mark in text[: 10 * MOST])
    short = _PATHS.sub("(a path)", visible)
    return short if len(short) <= MOST else short[: MOST - 3] + "..."


def told(error: Exception, step: str) -> str:
    """Return the reason that the server gets for an error at a node."""
    if isinstance(error, TOLD):
        return cleaned(str(error))
    if isinstance(error, DataError):
        return "its data cannot be used; the node's log says why"
    if isinstance(error, FedcueError):
        return f"it failed in {step}, {type(error).__name__}; the node's log says why"
    return f"a bug in {step}, {type(error).__name__}; the node's log has the traceback"

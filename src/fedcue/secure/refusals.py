"""The named ways in which a secure sum is refused; none of them reveals a client's vector."""

from __future__ import annotations

from fedcue.errors import FedcueError


class SecureSumError(FedcueError):
    """A secure sum cannot be computed as it was asked for."""


class OutOfRange(SecureSumError):  # noqa: N818
    """A value does not fit the fixed-point numbers of the configuration."""


class MessageRefused(SecureSumError):  # noqa: N818
    """A message is damaged, comes at the wrong time, or belongs to another client or session."""


class TooFewClients(SecureSumError):  # noqa: N818
    """Fewer clients than the threshold are left: there is no sum, and nothing was revealed."""


class SharesDoNotFit(SecureSumError):  # noqa: N818
    """Some client sent a wrong share: the secret put together is not the one that was promised."""

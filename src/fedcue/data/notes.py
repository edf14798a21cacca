"""What a user should know of the data: told once, however often the data is read."""

from __future__ import annotations

import logging
from functools import cache

from fedcue.errors import printable

log = logging.getLogger(__name__)


@cache
def tell(note: str) -> None:
    """Log a note as a warning, the first time only."""
    log.warning("%s", printable(note))

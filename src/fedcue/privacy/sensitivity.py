"""How far one image, or one client, moves statistics that are released together, as one vector.

Class sums, counts and second moments are divided by lengths ``a``, ``b`` and ``c``, so that one image moves
the whole by at most 1. For vectors of length 1, ``L`` layers of them in the sums:

- An image that stays in its class, at the cosine ``t``, moves sums by ``sqrt(2 (1 - t))`` in each layer and
  moments by ``sqrt(2 (1 - t^2))``. Moments never move most where sums do.
- One that changes class moves sums by ``sqrt(2 L)``, two counts by 1, moments by ``sqrt(2 (1 - t^2))``.

With ``c^2 = k a^2`` the first is at most 1, whatever ``t``, if ``a^2 = 4 L - 2 + 2 / k + k / 2``; then ``b``
is what the second leaves. Shorter vectors move the whole less as long as ``k`` is between 1/2 and 2: at 1/2
the derivative of the first by one length ``p`` is still that of sums and ``(p + 1) (2 p - 1)^2`` or more.
"""

from __future__ import annotations

import math

from fedcue.errors import ConfigError
from fedcue.types import Kind, TensorTable

STATISTICS: tuple[Kind, ...] = ("class_sums", "class_counts", "moments")
"""Kinds of uploads that describe a client's images."""

CHANGES: tuple[Kind, ...] = ("shared", "own")
"""Kinds of uploads that a client trained."""

MOMENTS = 1.0
"""The noise of second moments to that of class sums, squared: ``k``, chosen on validation images."""


def of_an_image(radius: float, layers: int, moments: bool) -> dict[Kind, float]:
    """Return the lengths ``a``, ``b`` and ``c`` for vectors no longer than ``radius`` in any layer."""
    if not moments:
        return {"class_sums": 2 * math.sqrt(layers) * radius, "class_counts": 2.0}
    sums = 4 * layers - 2 + 2 / MOMENTS + MOMENTS / 2
    counts = 2 * sums / (sums - 2 * layers - 2 / MOMENTS)
    return {
        "class_sums": math.sqrt(sums) * radius,
        "class_counts": math.sqrt(counts),
        "moments": math.sqrt(MOMENTS * sums) * radius**2,
    }


def units(radius: float) -> dict[Kind, float]:
    """Return the length that an image of length ``radius`` gives to each of a client's statistics."""
    return {"class_sums": radius, "class_counts": 1.0, "moments": radius**2}


def check_sensitivities(unit: str, method: str, table: TensorTable) -> None:
    """Raise a ``ConfigError`` unless it is known how far ``unit`` moves every message."""
    if not table.uploads:
        raise ConfigError(
            f"privacy=dp has nothing to protect: nothing leaves a client of {method}. Give privacy=none."
        )
    open_ones = [spec.name for spec in table.uploads if spec.kind is None]
    if open_ones:
        raise ConfigError(
            f"privacy=dp cannot protect {method}: it uploads {', '.join(open_ones)}, of which no "
            "sensitivity is declared. Give another method, or privacy=none."
        )
    for sent in ("replied", "returned"):
        for kind in ("class_counts", "moments"):
            names = [s.name for s in table.uploads if getattr(s, sent) and s.kind == kind]
            if len(names) > 1 and unit == "image":
                raise ConfigError(
                    f"privacy=dp knows how far an image moves one tensor of {kind}, but {method} sends "
                    f"{', '.join(names)} together. Give another method, or privacy.unit=client."
                )

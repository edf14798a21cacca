"""Central: all training images in one place; what a federation could reach at best."""

from __future__ import annotations

from typing import Any, ClassVar

from fedcue.methods.optional_prompts import OptionalPrompts


class Central(OptionalPrompts):
    """One model of FedVPT's prompts and head, trained on everybody's images together (a bound).

    That is the setting ``pooled``, which is this method's whole point and cannot be turned off.
    """

    name: ClassVar[str] = "central"
    fixed: ClassVar[dict[str, Any]] = {"pooled": True}

"""What can be set: the base of every typed section, method, dataset and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from fedcue.errors import shown

LIMIT = 2**63


class Options(BaseModel):
    """Base of everything that can be configured: frozen, typed, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _ordinary_numbers(cls, values: Any) -> Any:
        """Refuse integers of more than 64 bits, which arrays, files and random streams cannot hold."""
        for key, value in values.items() if isinstance(values, Mapping) else ():
            for number in value if isinstance(value, list | tuple) else (value,):
                if isinstance(number, int) and not -LIMIT <= number < LIMIT:
                    raise ValueError(f"{shown(key)} must be a number of at most 64 bits")
        return values

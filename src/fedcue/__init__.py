"""Federated prompt tuning of Vision Transformers."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcue.config import load as configure
    from fedcue.errors import FedcueError
    from fedcue.federate.predict import Model, load
    from fedcue.federate.run import Result, run
    from fedcue.methods.base import Method
    from fedcue.settings import RunConfig

__version__ = version("fedcue")
__all__ = ["FedcueError", "Method", "Model", "Result", "RunConfig", "configure", "load", "run"]

_HOME = {
    "FedcueError": ("fedcue.errors", "FedcueError"),
    "Method": ("fedcue.methods.base", "Method"),
    "Model": ("fedcue.federate.predict", "Model"),
    "Result": ("fedcue.federate.run", "Result"),
    "RunConfig": ("fedcue.settings", "RunConfig"),
    "configure": ("fedcue.config", "load"),
    "load": ("fedcue.federate.predict", "load"),
    "run": ("fedcue.federate.run", "run"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import fedcue`` is fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedcue' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(import_module(module), attribute)

"""Federated prompt tuning of Vision Transformers.

For example::

    config = fedcue.configure("default", ["method=fedvpt", "rounds=2"])
    result = fedcue.run(config, "runs/first")
    model = fedcue.load(result.folder)
    print(result.mean_accuracy, model.predict("image.png").labels)

Images of your own are a folder (``fedcue.configure("own", ["data.root=FOLDER"])``) or are given in Python
(``fedcue.from_examples``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcue.after.predict import Model, load
    from fedcue.config.layers import load as configure
    from fedcue.config.settings import RunConfig
    from fedcue.data.readers.given import from_examples
    from fedcue.errors import FedcueError
    from fedcue.methods.base import Method
    from fedcue.rounds.loop import run
    from fedcue.rounds.result import Result

    __version__: str

__all__ = [
    "FedcueError",
    "Method",
    "Model",
    "Result",
    "RunConfig",
    "configure",
    "from_examples",
    "load",
    "run",
]

_HOME = {
    "FedcueError": ("fedcue.errors", "FedcueError"),
    "Method": ("fedcue.methods.base", "Method"),
    "Model": ("fedcue.after.predict", "Model"),
    "Result": ("fedcue.rounds.result", "Result"),
    "RunConfig": ("fedcue.config.settings", "RunConfig"),
    "configure": ("fedcue.config.layers", "load"),
    "from_examples": ("fedcue.data.readers.given", "from_examples"),
    "load": ("fedcue.after.predict", "load"),
    "run": ("fedcue.rounds.loop", "run"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``import fedcue`` is fast."""
    if name == "__version__":
        return import_module("importlib.metadata").version("fedcue")
    if name not in _HOME:
        raise AttributeError(f"module 'fedcue' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*__all__, "__version__"])

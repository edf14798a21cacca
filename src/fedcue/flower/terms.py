"""What server and client must agree on before they work together, and the messages about disagreements."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedcue import __version__
from fedcue.config.layers import dump
from fedcue.config.scope import OF_ONE_MACHINE, scope_of
from fedcue.config.settings import RunConfig
from fedcue.config.words import flat
from fedcue.errors import FedcueError
from fedcue.model.backbone import locate
from fedcue.model.vit import Architecture


class RefusalError(FedcueError):
    """A client cannot take part as it is; the message says what differs."""


@dataclass(frozen=True)
class Terms:
    """What the server sends every client with every message."""

    run: str
    """Names the run on the clients' disks; the same after a resume."""
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    clients: int
    domains: int
    version: str
    backbone: str
    preprocessing: str
    method: str
    asked: int = 0
    """How many clients are asked before round 0, as far as it is known."""

    @classmethod
    def of(
        cls, run: str, config: RunConfig, classes: tuple[str, ...], shape: Architecture, clients: int
    ) -> Terms:
        """Return the terms as this machine sees them."""
        settings = dump(config)
        prints = (_backbone_print(config), _preprocessing_print(config, shape), _settings_print(settings))
        return cls(run, settings, classes, clients, 1, __version__, *prints)

    def with_settings(self, config: RunConfig) -> Terms:
        """Return the same terms for settings of which some were still open."""
        settings = dump(config)
        return replace(self, settings=settings, method=_settings_print(settings))

    def to_json(self) -> str:
        """Return the terms as text; equal terms give equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "classes": tuple(values["classes"])})

    def compare(self, own: Terms) -> None:
        """Raise ``RefusalError`` if a client's own view of the terms differs from the server's."""
        named = {
            "version": "fedcue version",
            "backbone": "backbone (hash of its weights)",
            "preprocessing": "preprocessing (hash)",
            "method": "settings of method and training (hash)",
        }
        differing = [
            f"its {words} is {getattr(own, name)[:12]}, the server's is {getattr(self, name)[:12]}"
            for name, words in named.items()
            if getattr(own, name) != getattr(self, name)
        ]
        if differing:
            raise RefusalError("; ".join(differing))


def _backbone_print(config: RunConfig) -> str:
    """Return the hash of the backbone's weights and description."""
    weights, digest = locate(config.backbone.name), hashlib.sha256()
    for file in (weights, weights.parent / "config.json"):
        digest.update(file.read_bytes() if file.is_file() else b"")
    return digest.hexdigest()


def _preprocessing_print(config: RunConfig, shape: Architecture) -> str:
    """Return the hash of what is done to an image before the backbone sees it."""
    return _print([shape.image_size, shape.mean, shape.std, config.data.augment, config.data.max_pixels])


def _settings_print(settings: Mapping[str, Any]) -> str:
    """Return the hash of every setting that all machines share."""
    everything = flat(settings)
    return _print({key: value for key, value in everything.items() if scope_of(key) not in OF_ONE_MACHINE})


def _print(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

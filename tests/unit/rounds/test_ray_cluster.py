"""A cluster that is not there is told at once, in words; Ray itself is not asked."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

import fedcue
from fedcue.errors import FedcueError
from fedcue.rounds.on_ray import cluster as clusters


def joined(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the cluster that was joined."""
    asked: list[str] = []

    def init(address: str, **options: Any) -> Any:
        asked.append(address)
        return SimpleNamespace(address_info={"gcs_address": address})

    ray = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setattr(clusters, "_imported", lambda address: ray)
    config = fedcue.configure("default", ["engine=ray", f"engine.address={address}"])
    try:
        with clusters.joined(config) as found:
            return found.address
    except FedcueError:
        assert not asked
        raise


def closed() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", ["127.0.0.1:PORT", "ray://127.0.0.1:PORT", "127.0.0.1:99999"])
def test_where_nobody_listens_there_is_no_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = address.replace("PORT", str(closed()))
    with pytest.raises(FedcueError, match=f"No Ray cluster answers at {address} "):
        joined(address, monkeypatch)


@pytest.mark.parametrize("address", ["127.0.0.1:PORT", "localhost:PORT"])
def test_where_somebody_listens_ray_is_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.replace("PORT", str(server.getsockname()[1]))
        assert joined(address, monkeypatch) == address

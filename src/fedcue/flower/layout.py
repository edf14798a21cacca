"""The addresses of a deployment: where nodes connect to, and where Flower listens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from fedcue.errors import ConfigError, shown

CONNECTION = "fedcue"
LOOPBACK = "127.0.0.1"
HOST = re.compile("[A-Za-z0-9.:-]+")


@dataclass(frozen=True)
class Layout:
    """What a deployment is made for."""

    folder: Path
    nodes: int
    recipe: str
    settings: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    superlink_port: int = 8001
    insecure: bool = False

    @property
    def outside(self) -> tuple[str, int]:
        """Where nodes connect to: the gate or, without TLS, the SuperLink itself."""
        return self.host, self.port

    @property
    def superlink(self) -> tuple[str, int]:
        """Where the SuperLink listens: on loopback, always."""
        if self.insecure:
            return (LOOPBACK if self.host == "localhost" else self.host), self.port
        return LOOPBACK, self.superlink_port

    @property
    def server(self) -> Path:
        """Everything the server's machine needs."""
        return self.folder / "server"

    def node(self, number: int) -> Path:
        """Everything the machine of one node needs; nodes are counted from 1."""
        return self.folder / f"node-{number}"


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine itself and nothing that others reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check(layout: Layout) -> None:
    """Refuse impossible settings, and a deployment that is open to others."""
    if not HOST.fullmatch(layout.host):
        raise ConfigError(f"--host {shown(layout.host)} is not a name or an address, such as server.example.")
    if layout.insecure and not is_loopback(layout.host):
        raise ConfigError(
            f"--insecure is for tests on one machine, whose server listens on loopback only, but --host is "
            f"{layout.host}. Leave one of them away."
        )
    if layout.port == layout.superlink_port and not layout.insecure:
        raise ConfigError(
            f"--port and --superlink-port are both {layout.port}, but the gate and the SuperLink behind it "
            "need one each. Give another --superlink-port."
        )


def address(place: tuple[str, int]) -> str:
    """Return a host and a port as Flower reads them."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

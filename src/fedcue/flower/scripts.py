"""The scripts of a deployment: each starts one thing, in its own folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from fedcue.flower.layout import CONNECTION, LOOPBACK, Layout, address, is_loopback

GATE = "python3 -P -m fedcue.flower.gate"
_SUPEREXEC = "python3 -P -m fedcue.flower.superexec"
"""Starts a node's message processes; it ends with the process that is named as its parent."""
_SETTLED = (
    "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 UV_OFFLINE=1",
    "export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2",
    "unset FLWR_INTERNAL_GRPC_CONTROL_API FLWR_INTERNAL_GRPC_FLEET_API",
)
"""No telemetry, no message that waits a second, and no port of Flower's but the one that it is given."""


def write_server_scripts(layout: Layout, folder: Path) -> None:
    """Write what starts the server, admits nodes and starts a run."""
    what = "The server: Flower's SuperLink on loopback"
    _script(
        folder / "superlink.sh",
        f"{what}." if layout.insecure else f"{what}, and the gate before it, which nodes connect to.",
        f"exec {_superlink(layout)}" if layout.insecure else f"exec {_gate(layout)} -- {_superlink(layout)}",
    )
    _script(
        folder / "register.sh",
        "Admits every node whose public key is in keys/; repeat it after adding one.",
        f'for key in keys/*.pub; do\n  flwr supernode register "$key" {CONNECTION} '
        '--name "$(basename "$key" .pub)" || true\ndone',
    )
    _script(
        folder / "run.sh",
        "Starts the run of app/pyproject.toml, or goes on with it; arguments go to flwr run.",
        f'exec python3 -P -m fedcue.flower.start app {CONNECTION} "$@"',
    )


def _superlink(layout: Layout) -> str:
    files = "--ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key"
    trusted = "--insecure" if layout.insecure else f"{files} --enable-supernode-auth"
    host, port = layout.superlink
    return (
        f"flower-superlink {trusted} --host {host} --port {port} --database state.db "
        "--disable-runtime-dependency-installation"
    )


def _gate(layout: Layout) -> str:
    """Return what starts the gate: on all addresses of the machine, or on the loopback address given."""
    everywhere = "::" if ":" in layout.host else "0.0.0.0"
    host = layout.host if is_loopback(layout.host) else everywhere
    return (
        f"{GATE} --host {LOOPBACK if host == 'localhost' else host} "
        f"--port {layout.port} --superlink-port {layout.superlink_port}"
    )


def write_node_script(layout: Layout, number: int, folder: Path) -> None:
    """Write what starts a node."""
    secure = "--root-certificates ca.crt --auth-supernode-private-key node.key"
    config = f"partition-id={number - 1} num-partitions={layout.nodes}"
    _script(
        folder / "supernode.sh",
        'This machine\'s SuperNode. For images of its own, add data="/path/to/images" to the config.',
        f"config='{config}'\n"
        f"port={9093 + number}\n"
        f'{_SUPEREXEC} --runtime-api-address "{LOOPBACK}:$port" --parent-pid $$ &\n'
        f"exec flower-supernode {'--insecure' if layout.insecure else secure} --isolation process "
        f"--superlink {address(layout.outside)} --host {LOOPBACK} --port $port "
        '--node-config "$config memory=\\"$PWD/memory\\""',
    )


def _script(path: Path, what: str, command: str) -> None:
    """Write a script that works in its own folder and finds Flower here or on the PATH."""
    here = shlex.quote(str(Path(sys.executable).parent))
    lines = [
        "#!/bin/sh",
        f"# {what}",
        "set -eu",
        'cd "$(dirname "$0")"',
        f'export FLWR_HOME="$PWD" PATH={here}:"$PATH"',
        *_SETTLED,
        command,
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)

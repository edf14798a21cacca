"""A deployment on disk: one folder for the server and one for each node, ready to be copied and started."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from fedcue import __version__
from fedcue.config.layers import load
from fedcue.errors import RunFolderError
from fedcue.flower.certificates import write_ca, write_node_key, write_server_certificate

CONNECTION = "fedcue"
QUIET = "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 UV_OFFLINE=1"
APP = '''"""Hands Flower the two halves of fedcue, which is installed on every machine."""

from fedcue.flower.client_app import app as client_app
from fedcue.flower.server_app import app as server_app

__all__ = ["client_app", "server_app"]
'''


@dataclass(frozen=True)
class Layout:
    """What a deployment is made for."""

    folder: Path
    nodes: int
    recipe: str
    settings: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    insecure: bool = False

    @property
    def server(self) -> Path:
        """Everything the server's machine needs."""
        return self.folder / "server"

    def node(self, number: int) -> Path:
        """Everything the machine of one node needs; nodes are counted from 1."""
        return self.folder / f"node-{number}"


def init(layout: Layout) -> list[Path]:
    """Write a deployment, or the nodes that are missing in one; return the folders written."""
    load(layout.recipe, layout.settings)
    written = []
    if not layout.server.exists():
        if layout.folder.is_dir() and any(layout.folder.iterdir()):
            raise RunFolderError(f"{layout.folder} is not empty and not a deployment. Give an empty folder.")
        _write_server(layout)
        written.append(layout.server)
    elif layout.insecure == (layout.server / "ca.crt").exists():
        kind = "a secure" if layout.insecure else "an insecure"
        raise RunFolderError(
            f"{layout.folder} is {kind} deployment, and nodes must be like their server. Leave --insecure as "
            "it was, or give an empty folder."
        )
    for number in range(1, layout.nodes + 1):
        if not layout.node(number).exists():
            _write_node(layout, number)
            written.append(layout.node(number))
    return written


def _write_server(layout: Layout) -> None:
    folder = layout.server
    (folder / "app").mkdir(parents=True)
    (folder / "keys").mkdir()
    if not layout.insecure:
        authority = layout.folder / "ca"
        authority.mkdir(mode=0o700)
        write_ca(authority)
        (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        write_server_certificate(authority, folder, layout.host)
    (folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(_app(layout)))
    (folder / "app" / "fedcue_app.py").write_text(APP)
    connection: dict[str, object] = {"address": f"{layout.host}:{layout.port}"}
    connection |= (
        {"insecure": True} if layout.insecure else {"root-certificates": str(_absolute(folder / "ca.crt"))}
    )
    config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    files = "--ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key"
    trusted = "--insecure" if layout.insecure else f"{files} --enable-supernode-auth"
    bind = layout.host if layout.host.startswith("127.") or layout.host == "localhost" else "0.0.0.0"
    _script(
        folder / "superlink.sh",
        "The server's SuperLink: nodes and the run connect to it.",
        f"exec flower-superlink {trusted} --host {bind} --port {layout.port} --database state.db "
        "--disable-runtime-dependency-installation",
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
        f'exec flwr run app {CONNECTION} --stream "$@"',
    )


def _write_node(layout: Layout, number: int) -> None:
    folder = layout.node(number)
    folder.mkdir()
    if not layout.insecure:
        (folder / "ca.crt").write_bytes((layout.server / "ca.crt").read_bytes())
        write_node_key(folder / "node.key", layout.server / "keys" / f"node-{number}.pub")
    secure = "--root-certificates ca.crt --auth-supernode-private-key node.key"
    config = f"partition-id={number - 1} num-partitions={layout.nodes}"
    _script(
        folder / "supernode.sh",
        'This machine\'s SuperNode. For images of its own, add data="/path/to/images" to the config.',
        f"config='{config}'\n"
        f"exec flower-supernode {'--insecure' if layout.insecure else secure} "
        f"--superlink {layout.host}:{layout.port} --host 127.0.0.1 --port {9093 + number} "
        '--node-config "$config memory=\\"$PWD/memory\\""',
    )


def _app(layout: Layout) -> dict[str, object]:
    """Return the Flower app: no dependencies of its own, or Flower would fetch a second torch."""
    return {
        "project": {
            "name": "fedcue-app",
            "version": __version__,
            "description": "Federated prompt tuning with fedcue",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedcue",
                    "components": {
                        "serverapp": "fedcue_app:server_app",
                        "clientapp": "fedcue_app:client_app",
                    },
                    "config": {
                        "recipe": _recipe(layout.recipe),
                        "settings": shlex.join(layout.settings),
                        "out": str(_absolute(layout.server / "runs" / "first")),
                        "round-timeout": 600.0,
                        "node-timeout": 300.0,
                    },
                }
            }
        },
    }


def _recipe(recipe: str) -> str:
    return str(_absolute(Path(recipe))) if Path(recipe).is_file() else recipe


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _script(path: Path, what: str, command: str) -> None:
    """Write a script that works in its own folder and finds Flower here or on the PATH."""
    here = shlex.quote(str(Path(sys.executable).parent))
    lines = [
        "#!/bin/sh",
        f"# {what}",
        "set -eu",
        'cd "$(dirname "$0")"',
        f'export FLWR_HOME="$PWD" PATH={here}:"$PATH"',
        QUIET,
        command,
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)

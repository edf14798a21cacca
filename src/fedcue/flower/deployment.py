"""A deployment on disk: one folder for the server and one for each node, ready to be copied and started."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from fedcue import __version__
from fedcue.config.layers import load
from fedcue.errors import RunFolderError
from fedcue.flower.certificates import write_ca, write_node_key, write_server_certificate
from fedcue.flower.layout import CONNECTION, Layout, address, check
from fedcue.flower.scripts import GATE, write_node_script, write_server_scripts
from fedcue.foreign import expanded
from fedcue.record.files import explained

APP = '''"""Hands Flower the two halves of fedcue, which is installed on every machine."""

from fedcue.flower.client_app import app as client_app
from fedcue.flower.server_app import app as server_app

__all__ = ["client_app", "server_app"]
'''


def init(layout: Layout) -> list[Path]:
    """Write a deployment, or the nodes that are missing in one; return the folders written."""
    check(layout)
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
    elif not layout.insecure and GATE not in (layout.server / "superlink.sh").read_text():
        raise RunFolderError(
            f"{layout.folder} was written without a gate: whoever reaches its server can start runs. Give an "
            "empty folder, and no longer use this one."
        )
    for number in range(1, layout.nodes + 1):
        if not layout.node(number).exists():
            _write_node(layout, number)
            written.append(layout.node(number))
    return written


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a folder aside, which takes its place when all is written; what fails leaves nothing."""
    aside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        with explained(folder):
            aside.mkdir(parents=True)
            yield aside
            aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _write_server(layout: Layout) -> None:
    authority = layout.folder / "ca"
    try:
        if not layout.insecure:
            with _whole(authority) as folder:
                folder.chmod(0o700)
                write_ca(folder)
        with _whole(layout.server) as folder:
            _write_server_files(layout, folder, authority)
    except BaseException:
        shutil.rmtree(authority, ignore_errors=True)
        raise


def _write_server_files(layout: Layout, folder: Path, authority: Path) -> None:
    (folder / "app").mkdir()
    (folder / "keys").mkdir()
    if not layout.insecure:
        (folder / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
        write_server_certificate(authority, folder, layout.host)
    (folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(_app(layout)))
    (folder / "app" / "fedcue_app.py").write_text(APP)
    connection: dict[str, object] = {"address": address(layout.superlink)}
    if layout.insecure:
        connection["insecure"] = True
    else:
        connection["root-certificates"] = str(_absolute(layout.server / "ca.crt"))
    config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    write_server_scripts(layout, folder)


def _write_node(layout: Layout, number: int) -> None:
    public = layout.server / "keys" / f"node-{number}.pub"
    certificate = b"" if layout.insecure else (layout.server / "ca.crt").read_bytes()
    try:
        with _whole(layout.node(number)) as folder:
            if not layout.insecure:
                (folder / "ca.crt").write_bytes(certificate)
                write_node_key(folder / "node.key", public)
            write_node_script(layout, number, folder)
    except BaseException:
        public.unlink(missing_ok=True)  # nobody has the other half
        raise


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
                        "step-timeout": 120.0,
                        "node-timeout": 300.0,
                        "bind-nodes": not layout.insecure,
                    },
                }
            }
        },
    }


def _recipe(recipe: str) -> str:
    return str(_absolute(Path(recipe))) if Path(recipe).is_file() else recipe


def _absolute(path: Path) -> Path:
    return expanded(path).absolute()

"""``fedcue flower``: the same runs on real machines."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcue.cli.arguments import Out, Settings, split_settings
from fedcue.errors import FedcueError

app = typer.Typer(
    help="Run a recipe on real machines, over Flower (pip install 'fedcue\\[flower]').", no_args_is_help=True
)


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the deployment.")],
    settings: Settings = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")] = 3,
    host: Annotated[str, typer.Option("--host", help="The server's name or address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The server's port.")] = 8000,
    superlink_port: Annotated[
        int,
        typer.Option("--superlink-port", min=1, max=65535, help="Flower's port, on loopback only."),
    ] = 8001,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS and without keys: for tests on one machine only.")
    ] = False,
) -> None:
    """Write a deployment: certificates, keys, settings and start scripts.

    Repeated with more nodes, it adds the missing ones.
    """
    _need_flower()
    from fedcue.flower.deployment import init as write
    from fedcue.flower.layout import Layout

    recipe, overrides = split_settings(settings)
    written = write(Layout(folder, nodes, recipe, tuple(overrides), host, port, superlink_port, insecure))
    console = Console(soft_wrap=True)
    if insecure:
        Console(stderr=True, soft_wrap=True).print(
            "[red]insecure:[/] whoever uses this machine can read what is sent, take part and start runs."
        )
    for path in written:
        console.print(f"wrote {path}", highlight=False)
    steps = ("superlink.sh", "register.sh", "run.sh")
    names = [str(folder / "server" / step) for step in steps if not (insecure and step == "register.sh")]
    console.print("start: " + ", ".join([*names[:-1], str(folder / "node-*" / "supernode.sh"), names[-1]]))


@app.command("simulate")
def simulate(
    settings: Settings = None,
    out: Out = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of simulated nodes.")] = 2,
) -> None:
    r"""Run a recipe on Flower's own simulator, to compare.

    Needs Ray: pip install 'fedcue\[flower-simulation]'.
    """
    _need_flower()
    from fedcue.flower.simulation import simulate as run

    recipe, overrides = split_settings(settings)
    result = run(recipe, overrides, out, nodes)
    Console(soft_wrap=True).print(
        f"mean accuracy {result.mean_accuracy:.1%}, results in {result.folder}", highlight=False
    )


def _need_flower() -> None:
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise FedcueError(f"This needs Flower ({missing[0]} is missing): pip install 'fedcue[flower]'.")

"""``fedcue watch``: the report page, live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape


def watch(
    folder: Annotated[Path, typer.Argument(help="A run folder, or a folder that holds runs.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine only.")
    ] = "127.0.0.1",
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve the report page while runs go on; it updates itself with every round."""
    from fedcue.report.live import serve

    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def ready() -> None:
        Console(soft_wrap=True).print(
            f"watching {escape(str(folder))} at {escape(address)} (Ctrl-C ends)", highlight=False
        )
        if show:
            typer.launch(address)

    serve(folder, host, port, ready)

"""``fedcue resume``: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcue.cli.arguments import Fetch, Json, Quiet, Trust
from fedcue.cli.run import start


def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.")],
    trust: Trust = None,
    fetch: Fetch = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a stopped run from its last checkpoint."""
    from fedcue.config.layers import load_folder
    from fedcue.errors import ConfigError
    from fedcue.machine import network

    config = load_folder(folder, trusted=trust or ())
    telling = [name for name in config.log if name != "tensorboard"]
    if telling and not fetch:
        raise ConfigError(
            f"The folder asks for log={','.join(telling)}, which may connect. Give --fetch to allow that, or "
            "remove it from log in config.toml."
        )
    with network(fetch):
        start(config, folder, overwrite=False, resume=True, quiet=quiet, as_json=as_json)

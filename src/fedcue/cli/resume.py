"""``fedcue resume``: go on with a run that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcue.cli.arguments import Json, Quiet
from fedcue.cli.run import start


def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Go on with a stopped run from its last checkpoint."""
    from fedcue.config.layers import resolve
    from fedcue.config.recipes import read_recipe
    from fedcue.errors import RunFolderError

    if not (folder / "config.toml").is_file():
        raise RunFolderError(f"{folder} holds no config.toml: give the folder of a run that was started.")
    _, settings = read_recipe(folder / "config.toml")
    config = resolve(settings, name=settings.get("recipe", "custom"))
    start(config, folder, overwrite=False, resume=True, quiet=quiet, as_json=as_json)

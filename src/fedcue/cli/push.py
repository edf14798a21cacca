"""``fedcue push``: a trained model to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcue.cli.arguments import Fetch, Trust


def push(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    repository: Annotated[str, typer.Argument(metavar="REPO", help="user/name on the hub; made if need be.")],
    private: Annotated[bool, typer.Option("--private", help="Make a repository that only you see.")] = False,
    clients: Annotated[
        bool, typer.Option("--clients", help="Publish clients' names, class priors and own tensors, too.")
    ] = False,
    trust: Trust = None,
    fetch: Fetch = False,
) -> None:
    """Put the trained model on the hub, with a model card; fedcue.load("user/name") uses it.

    Needs a token of the hub (hf auth login). Nothing of single clients is published without --clients.
    """
    from fedcue.export.push import push as upload

    address = upload(folder, repository, private=private, clients=clients, trusted=trust or (), fetch=fetch)
    typer.echo(address)

"""``fedcue evaluate``: test a finished run again under other priors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcue.cli.arguments import Fetch, Json, Out, Trust, busy
from fedcue.cli.run import print_result
from fedcue.rounds.progress import RunProgress


def evaluate(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="method.logit_prior=none|mask|test, evaluation.priors=labels|uniform|em.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result.")] = False,
    trust: Trust = None,
    fetch: Fetch = False,
    as_json: Json = False,
) -> None:
    """Test a finished run again with other class priors, in seconds instead of a run.

    The result is a run folder of its own, beside the run, that compare and report read like any other.

    For example:

      fedcue evaluate runs/fedvpt-seed0 method.logit_prior=test

      fedcue evaluate runs/pep-seed0 evaluation.priors=em
    """
    with busy("starting"):
        from fedcue.after.retest import retest
    with RunProgress(Console(stderr=True), as_json) as progress:
        result = retest(
            folder,
            settings or [],
            out,
            overwrite=overwrite,
            trusted=trust or (),
            fetch=fetch,
            tell=progress.stage,
        )
    if as_json:
        typer.echo(json.dumps({"folder": str(result.folder), **result.summary}))
    else:
        print_result(Console(soft_wrap=True), result)

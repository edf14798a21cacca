"""``fedcue export``: the trained model as a file that others run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedcue.cli.arguments import Fetch, Trust


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the exported files.")],
    client: Annotated[
        str | None,
        typer.Option(help="Export the model of this client (name or number): its priors, its own tensors."),
    ] = None,
    form: Annotated[
        Literal["onnx", "torch"], typer.Option("--format", help="An ONNX file, or a program of torch.export.")
    ] = "onnx",
    quantize: Annotated[
        Literal["int8"] | None, typer.Option(help="Matrices in int8: a quarter of the size.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    trust: Trust = None,
    fetch: Fetch = False,
) -> None:
    """Write the trained model as one file that runs without fedcue, with labels, a model card and an example.

    Backbone, prompts, mixing and head are in it. Its predictions are compared with fedcue's own first.

    For example:

      fedcue export runs/cue-seed0 --out exported

      python exported/classify.py image.jpg
    """
    from fedcue.export.write import export as write

    done = write(
        folder,
        out,
        client,
        form=form,
        quantize=quantize,
        overwrite=overwrite,
        trusted=trust or (),
        fetch=fetch,
    )
    inputs = "images, priors" if done.priors else "images"
    megabytes = done.file.stat().st_size / 1e6
    console = Console(soft_wrap=True)
    console.print(f"{done.file} ({megabytes:.1f} MB; {inputs} in, probabilities out)", markup=False)
    console.print(f"Try it: python {done.folder / 'classify.py'} IMAGE...", markup=False)

"""``fedcue data``: what is known of the datasets, downloads, and a check of files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from fedcue.cli.arguments import Json
from fedcue.cli.grid_output import print_wide
from fedcue.errors import many, printable

if TYPE_CHECKING:
    from fedcue.data.catalogue import Description
    from fedcue.data.options import DataOptions

SHOWN = 10
"""Findings of a kind that are printed."""

app = typer.Typer(no_args_is_help=True, help="List, describe, download and check datasets.")
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A dataset of 'fedcue data ls', or a kind of your own: folder, manifest ..."
    ),
]


@app.command("ls")
def ls(as_json: Json = False) -> None:
    """List the datasets that are known by name."""
    from fedcue.data.catalogue import CATALOGUE

    if as_json:
        typer.echo(json.dumps([_plain(description) for description in CATALOGUE.values()]))
        return
    table = Table(
        "name", "classes", "train", "test", "domains", "clients", "download", "what it is", box=None
    )
    for one in CATALOGUE.values():
        about = "" if one.exact else "about "
        table.add_row(
            one.name,
            f"{one.classes:,}",
            f"{about}{one.train:,}",
            f"{about}{one.test:,}" if one.test else "a share",
            str(len(one.domains) or ""),
            f"{one.owners:,}" if one.owners else "",
            "embedded" if one.name == "digits" else one.download or "by hand",
            escape(one.summary),
        )
    console = Console(soft_wrap=True)
    print_wide(console, table)
    console.print(
        "Your own images: data=folder, federated-folder, manifest, parquet or saved, with data.root=PATH; "
        "fedcue data show folder tells more.",
        highlight=False,
    )


@app.command("show")
def show(name: Name, as_json: Json = False) -> None:
    """Tell what is known of a dataset: sizes, source, licence, layouts that can be read."""
    from fedcue.data.catalogue import CATALOGUE, describe
    from fedcue.registry import DATASETS

    if name in DATASETS.names() and name not in CATALOGUE:
        _show_own(name, as_json)
        return
    one = describe(name)
    if as_json:
        typer.echo(json.dumps(_plain(one)))
        return
    hub = f"https://huggingface.co/datasets/{one.hub} ({one.download})" if one.hub else None
    columns = [one.image, one.label, *(column for column in (one.domain, one.client) if column)]
    rows = {
        "what": one.summary,
        "classes": f"{one.classes:,}" + (f": {', '.join(one.keep)}" if one.keep else ""),
        "images": f"{'' if one.exact else 'about '}{one.train:,} to train, "
        + (f"{one.test:,} to test" if one.test else "of which data.test_share is set aside to test"),
        "pixels": one.pixels,
        "domains": ", ".join(one.domains),
        "clients": f"{one.owners:,}, one per {one.client}" if one.owners else "",
        "source": one.source,
        "licence": one.licence,
        "hub": hub or ("embedded" if not one.layouts else "not there: download by hand and give data.root"),
        "layouts": ", ".join(one.layouts),
        "columns": ", ".join(columns) + " (Parquet)" if one.layouts else "",
        "use": f"fedcue run data={name}" + (" data.root=FOLDER" if one.layouts else ""),
    }
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for key, text in rows.items():
        if text:
            table.add_row(f"[bold]{key}[/]", escape(text))
    Console(soft_wrap=True).print(f"[bold]{name}[/]", table, sep="\n", highlight=False)


def _show_own(name: str, as_json: bool) -> None:
    """Tell how images of one's own are read: what for, and every setting."""
    from fedcue.registry import DATASETS

    options = DATASETS.get(name)
    summary = (options.__doc__ or "").splitlines()[0].replace("``", "")
    settings = {f"data.{key}": field.description or "" for key, field in options.model_fields.items()}
    if as_json:
        typer.echo(json.dumps({"name": name, "summary": summary, "settings": settings}))
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("[bold]what[/]", escape(summary))
    table.add_row(
        "[bold]use[/]", f"fedcue data check PATH data={name}; fedcue run data={name} data.root=PATH"
    )
    for key, text in settings.items():
        table.add_row(f"[bold]{key}[/]", escape(text))
    Console(soft_wrap=True).print(f"[bold]{name}[/]", table, sep="\n", highlight=False)


def _plain(one: Description) -> dict[str, object]:
    """Return a description for a program to read."""
    return {key: value for key, value in asdict(one).items() if key != "owner_sizes"}


@app.command("fetch")
def fetch(name: Name, as_json: Json = False) -> None:
    """Download a dataset from the hub, unless it is there already."""
    from fedcue.data.readers.public import fetch as fetch_data

    folder = fetch_data(name)
    if as_json:
        typer.echo(json.dumps({"name": name, "folder": str(folder)}))
    else:
        Console(soft_wrap=True).print(f"{name} is in {folder}", highlight=False)


@app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="A folder of images or Parquet files, or a list of images.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="How to read it: data=NAME, or settings such as data.label=fine_label.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read everything once; list unreadable images, gaps, and images that both train and test.

    Examples:
      fedcue data check my-pictures

      fedcue data check my-cifar data=cifar100

    The exit code is 1 if anything is wrong.

    """
    from fedcue.data.check import check as check_data

    options = _options(path, settings or [])
    with Progress(console=Console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("reading", total=None)
        report = check_data(
            options, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        typer.echo(json.dumps({**asdict(report), "clean": report.clean}))
    else:
        groups = ((report.clients, "client"), (report.domains, "domain"))
        who = "".join(f", {many(number, noun)}" for number, noun in groups if number)
        console = Console(soft_wrap=True)
        for kind, found, more in report.first_of_each_kind(SHOWN):
            for finding in found:
                console.print(escape(printable(f"{kind}: {finding.where}: {finding.why}")), highlight=False)
            if more:
                console.print(f"{kind}: {more:,} more (--json lists all)", highlight=False)
        console.print(
            f"{report.name}: {report.train:,} training and {many(report.test, 'test image')}, "
            f"{many(report.classes, 'class', 'classes')}{who}; {many(len(report.findings), 'problem')}",
            highlight=False,
        )
    if not report.clean:
        raise typer.Exit(1)


def _options(path: Path, settings: list[str]) -> DataOptions:
    """Return what reads ``path``: the dataset that is named, or the one it looks like."""
    from fedcue.config.layers import load, parse
    from fedcue.data.readers.recognise import guess
    from fedcue.registry import DATASETS

    if not {"data", "data.name"} & set(parse(settings)):
        settings = [f"data={DATASETS.name_of(type(guess(path)))}", *settings]
    data: DataOptions = load("default", [*settings, f"data.root={json.dumps(str(path))}"]).data
    return data

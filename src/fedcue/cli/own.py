"""``fedcue run own``: from a folder of images to a model, a report, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from fedcue.cli.arguments import busy
from fedcue.cli.dry_run import duration
from fedcue.cli.grid_output import print_wide, rich_table
from fedcue.errors import DataError, many, printable
from fedcue.rounds.progress import size

if TYPE_CHECKING:
    from fedcue.config.settings import RunConfig
    from fedcue.data.check import Report

SHOWN = 3
"""Findings of a kind that are listed one by one."""

_LONG = 3600
"""Seconds from which on a smaller backbone is recommended."""

_QUICKER = "backbone=timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k backbone.image_size=128"
"""What makes a run take a tenth of the time."""


def before(console: Console, config: RunConfig) -> None:
    """Find the backbone, check the images, then tell how long the run takes and what travels."""
    from fedcue.data.check import check
    from fedcue.model.backbone import locate
    from fedcue.plan.dry_run import plan

    with busy("finding the backbone"):  # a missing one is reported before the images are read
        locate(config.backbone.name)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("checking the images", total=None)
        report = check(
            config.data,
            config.seed,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    _tell_findings(console, config, report)
    with busy("planning"):
        planned = plan(config)
    _say(
        console,
        f"plan      about {duration(planned.seconds)} on {many(planned.workers, 'core')} if nothing else "
        f"runs, {size(planned.travel.total_bytes)} travel in all",
    )
    if planned.seconds > _LONG:
        _say(console, f"          a smaller backbone is quicker: {_QUICKER}")


def _tell_findings(console: Console, config: RunConfig, report: Report) -> None:
    unreadable = [one for one in report.findings if one.kind == "unreadable image"]
    for kind, found, more in report.first_of_each_kind(SHOWN):
        for finding in found:
            _say(console, f"{kind}: {finding.where}: {finding.why}")
        if more:
            _say(console, f"{kind}: {more:,} more (fedcue data check says more)")
    _say(
        console,
        f"checked   {many(report.train + report.test, 'image')}, {many(report.classes, 'class', 'classes')}: "
        + (many(len(report.findings), "problem") if report.findings else "nothing is wrong"),
    )
    if report.classes == 1:
        raise DataError(
            "All images are of one class: there is nothing to tell apart. Give data.root the folder that "
            "holds a folder for each class, or say what the folders stand for with data.layout."
        )
    if unreadable and config.data.on_bad_image == "error":
        raise DataError(
            f"{many(len(unreadable), 'image')} cannot be read. Mend or remove them, or leave them out with "
            "data.on_bad_image=skip."
        )


def after(console: Console, folder: Path, typed: Sequence[str]) -> None:
    """Show clients and classes, write the report, and say what one would type next."""
    with busy("reading the results"):
        from fedcue.report.export import write_report
        from fedcue.report.outcome import class_table, client_table, confusion_table
        from fedcue.report.runs import read_run

        run = read_run(folder)
        tested = sum(client.accuracy is not None for client in run.clients)
        tables = (
            (client_table(run), tested),
            (class_table(run), len(run.classes)),
            (confusion_table(run), 0),
        )
    console.print()
    for table, number in tables:
        if table is not None:
            if len(table.lines) < number:
                _say(console, f"the {len(table.lines)} worst of {number:,}:")
            print_wide(console, rich_table(table))
    with busy("writing the report"):
        page, _ = write_report([folder], folder.with_name(f"{folder.name}.html"))
    _say(console, f"model     {folder / 'model.safetensors'}")
    _say(console, f"report    {page}")
    _say(console, "next")
    for command in _next(folder, typed):
        _say(console, f"  {command}")


def _next(folder: Path, typed: Sequence[str]) -> list[str]:
    """Return three commands: use the model, compare it with others, take it to real machines."""
    return [
        f"fedcue predict {shlex.quote(str(folder))} IMAGE.jpg --client 0",
        f"fedcue compare own {shlex.join(typed)} --methods ncm,fedvpt,pep,cue",
        "fedcue flower init deployment --nodes 3 --host server.example",
    ]


def _say(console: Console, text: str) -> None:
    console.print(escape(printable(text)), highlight=False)

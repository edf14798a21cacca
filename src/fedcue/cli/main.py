"""The ``fedcue`` command."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TextIO

import typer
from rich.console import Console
from rich.markup import escape

from fedcue.cli import (
    bench,
    compare,
    data,
    evaluate,
    export,
    figure,
    flower,
    list_,
    partition,
    predict,
    push,
    report,
    resume,
    run,
    show,
    tune,
    watch,
)
from fedcue.errors import FULL, ConfigError, FedcueError, Interrupted, printable, shown

app = typer.Typer(
    name="fedcue",
    help="Federated prompt tuning of Vision Transformers.",
    epilog="Start with 'fedcue run': PEP-FedPT on embedded data, about a minute on two cores.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("export")(export.export)
app.command("push")(push.push)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("report")(report.report)
app.command("figure")(figure.figure)
app.command("watch")(watch.watch)
app.command("bench")(bench.bench)
app.command("partition")(partition.partition)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
app.command("list")(list_.list_)
app.command("show")(show.show)


def _version(asked: bool) -> None:
    if asked:
        from fedcue import __version__

        typer.echo(f"fedcue {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
) -> None:
    """Federated prompt tuning of Vision Transformers."""


class Warnings(logging.StreamHandler[TextIO]):
    """Writes warnings above a progress display, which takes the place of ``sys.stderr`` meanwhile.

    What goes to a file still goes there. A forked process writes past the display, as one of its locks
    may have been held when it was forked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own, self.process = self.stream, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Write where the display of this process is, or where warnings went from the start."""
        if record.name.startswith("huggingface_hub"):
            return  # which prints its own
        self.stream = sys.stderr if self.own.isatty() and os.getpid() == self.process else self.own
        super().emit(record)


def main() -> None:
    """Run the command line: a user's mistake is one message and exit code 2."""
    _open_what_is_closed()
    logging.basicConfig(format="fedcue: %(message)s", level=logging.WARNING, handlers=[Warnings()])
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        _check_folder()
        try:
            app(args=arguments, prog_name="fedcue")
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
    except FedcueError as error:
        if debug:
            raise
        _tell(str(error))
        sys.exit(2)
    except Interrupted as stop:
        sys.exit(128 + stop.signal_number)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _print_no_more()
        sys.exit(1)
    except OSError as error:
        place, full = error.filename2 or error.filename, error.errno in FULL
        if debug or not (full or place is not None):
            raise
        if place is None:
            _print_no_more()
            _tell(
                f"Cannot write the output: {error.strerror}. Free some space, or send the output elsewhere."
            )
        elif full:
            _tell(
                f"Cannot write {shown(str(place))}: {error.strerror}. Free some space, or give another place."
            )
        else:
            _tell(f"Cannot use {shown(str(place))}: {error.strerror}. Give a path that can be used.")
        sys.exit(2)


def _check_folder() -> None:
    """Refuse to start in a folder that was deleted: every relative path means nothing there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError("The folder this shell is in was deleted. Change to another one (cd).") from error


def _tell(message: str) -> None:
    text = "\n".join(map(printable, message.split("\n")))
    with suppress(OSError):  # where errors cannot be written either, the exit code tells
        Console(stderr=True, soft_wrap=True).print(f"[red]fedcue:[/] {escape(text)}")


def _open_what_is_closed() -> None:
    """Open streams that the caller closed (``>&-``) on the null device, before a file takes their place."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        if number == 1:
            sys.stdout = open(1, "w")  # noqa: SIM115
        elif number == 2:
            sys.stderr = open(2, "w")  # noqa: SIM115
    os.close(number)


def _print_no_more() -> None:
    """Send all further output to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

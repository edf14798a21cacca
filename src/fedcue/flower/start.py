"""``python -m fedcue.flower.start``: how ``run.sh`` starts a run, shows its log and ends with its code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from fedcue.errors import printable

STARTED = re.compile(r"Successfully started run (\d+)")
PATIENCE = 60.0
"""Seconds that Flower has to say how a run ended after the end of its log."""
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the app of a folder on a connection: 0 if the run was completed, 1 if it failed or was stopped.

    What ``flwr run`` itself ends with, if it is not 0, is passed on.
    """
    app, connection, *more = sys.argv[1:] if arguments is None else arguments
    command = ["flwr", "run", app, connection, "--stream", *more]
    try:
        code, run = shown(command)
        if code or run is None:
            return code or 1
        return ended(run, connection)
    except KeyboardInterrupt:
        print("fedcue: the run goes on; flwr list and flwr stop know it", file=sys.stderr)
        return _INTERRUPTED


def shown(command: Sequence[str]) -> tuple[int, str | None]:
    """Run a command and show what it prints; return its code and the id of the run that it started."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    options: dict[str, Any] = {"env": environment, "text": True, "errors": "replace"}
    run = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as flwr:
        assert flwr.stdout is not None
        for line in flwr.stdout:
            print(line, end="", flush=True)
            found = STARTED.search(line) if run is None else None
            run = found.group(1) if found else run
    return flwr.returncode, run


def ended(run: str, connection: str) -> int:
    """Return 0 if a run was completed, else say how it ended and return 1."""
    deadline = time.monotonic() + PATIENCE
    status, details = state(run, connection)
    while not status.startswith("finished") and time.monotonic() < deadline:
        time.sleep(1)
        status, details = state(run, connection)
    if status == "finished:completed":
        return 0
    print(f"fedcue: run {run} was not completed ({status}): {printable(details)}", file=sys.stderr)
    return 1


def state(run: str, connection: str) -> tuple[str, str]:
    """Return what Flower says of a run, such as ``finished:failed``, and why."""
    command = ["flwr", "list", connection, "--run-id", run, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["runs"][0]
        return str(found["status"]), str(found["status-details"])
    except (ValueError, LookupError, TypeError):
        return "unknown", "flwr list does not tell its state"


if __name__ == "__main__":
    sys.exit(main())

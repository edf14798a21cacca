"""``python -m fedcue.flower.gate``: how ``superlink.sh`` starts the SuperLink and the gate before it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fedcue.errors import FedcueError
from fedcue.flower.gate.rules import Limits
from fedcue.flower.gate.serve import Place, serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and serve; a user's mistake is one message and exit code 2."""
    logging.basicConfig(format="fedcue gate: %(message)s", level=logging.WARNING)
    parser = argparse.ArgumentParser("fedcue.flower.gate", description="A gate before Flower's SuperLink.")
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink-port", type=int, required=True, help="the SuperLink's port on loopback")
    for limit in fields(Limits):
        name = "--" + limit.name.replace("_", "-")
        parser.add_argument(name, type=type(limit.default), default=limit.default)
    parser.add_argument("command", nargs="+", help="-- and what starts the SuperLink")
    given = parser.parse_args(arguments)
    limits = Limits(**{limit.name: getattr(given, limit.name) for limit in fields(Limits)})
    place = Place(given.host, given.port, given.superlink_port, Path())
    try:
        return serve(place, given.command, limits)
    except FedcueError as error:
        sys.stderr.write(f"fedcue gate: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

"""Try mutated inputs in numbers: ``python tests/fuzz/fuzz.py --inputs 100000``.

Each input must work or end in a ``FedcueError`` that says what to do. An input fails if it ends in
any other way, takes more than ``CPU_SECONDS``, needs ``MEMORY`` bytes more than the process had, writes
a file outside its folder, starts a process or opens a connection. Input number N of a kind is always
the same: ``--only KIND --first N --inputs 1`` repeats it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from fedcue.errors import FedcueError

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it sees its own folder only
from fuzz_targets import TARGETS, Attempt

CPU_SECONDS = 20
MEMORY = 2**30
REMEDY = re.compile(
    r"\b(Give|give|Use|use|Start|start|Repeat|Resume|resume|Fetch|Mend|Choose|Name|Lower|Leave|Hold|Fill|Free|"
    r"Known|known|[Mm]ust|such as|[Ss]hould|[Ii]nput should|cannot be more|Did you mean)\b"
)


class Failed(BaseException):
    """What no reader may do, whatever it is given; no reader can catch it as an ordinary error."""


@dataclass
class Outcome:
    """How the inputs of one kind ended."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory_mb: float = 0.0
    seconds: float = 0.0


def fuzz(kind: str, inputs: int, first: int = 0, seed: int = 0, keep: int = 20) -> Outcome:
    """Try ``inputs`` of a kind in a process of their own."""
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    place = context.Value("q", first)
    process = context.Process(target=_child, args=(kind, inputs, first, seed, keep, theirs, place))
    process.start()
    theirs.close()
    try:
        outcome: Outcome = ours.recv()
    except EOFError:
        process.join()
        reason = f"{kind} {place.value}: the process ended with {process.exitcode}"
        return Outcome(Counter(failed=1), [reason])
    process.join()
    return outcome


def _child(
    kind: str, inputs: int, first: int, seed: int, keep: int, connection: Connection, place: Any
) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        os.chdir(root)
        tempfile.tempdir = folder
        outcome = Outcome()
        attempt = TARGETS[kind](root)
        _forbid(root)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.process_time()
        for number in range(first, first + inputs):
            place.value = number
            problem = _try(attempt, Random(f"{kind} {seed} {number}"), outcome.counts)
            if problem and len(outcome.failures) < keep:
                outcome.failures.append(f"{kind} {number}: {problem}")
        outcome.seconds = time.process_time() - started
        outcome.memory_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
    connection.send(outcome)
    connection.close()
    os._exit(0)


def _try(attempt: Attempt, random: Random, counts: Counter[str]) -> str:
    """Try one input; return what is wrong with how it ended."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    faulthandler.dump_traceback_later(30 * CPU_SECONDS, exit=True)
    try:
        verdict = attempt(random)
    except FedcueError as error:
        if REMEDY.search(str(error)) and len(str(error)) < 5000:
            counts["refused"] += 1
            return ""
        problem = f"a message without a remedy, or too long: {str(error)[:2000]!r}"
    except (Exception, Failed):
        problem = traceback.format_exc(limit=-6)
    else:
        counts["refused" if verdict is False else "worked"] += 1
        return ""
    counts["failed"] += 1
    return problem


def _forbid(root: Path) -> None:
    """From here on this process may write below ``root`` only, and has little time and memory."""
    sys.dont_write_bytecode = True
    faulthandler.enable()

    def too_long(number: int, frame: FrameType | None) -> None:
        raise Failed(f"took more than {CPU_SECONDS} s")

    signal.signal(signal.SIGPROF, too_long)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    changing = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
    leaving = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in leaving:
            raise Failed(f"{event} {arguments!r:.300}")
        if event in changing or (event == "open" and (arguments[2] or 0) & writing):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path) != os.devnull:
                inside = os.path.realpath(os.fsdecode(path)).startswith(str(root))
                if not inside:
                    raise Failed(f"{event} outside the folder: {path!r:.300}")

    sys.addaudithook(watch)


def shares(inputs: int, kinds: list[str]) -> dict[str, int]:
    """Spread inputs evenly over kinds."""
    return {kind: -(-inputs // len(kinds)) for kind in kinds}


def main() -> None:
    """Try inputs of every kind and print how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="over all kinds together")
    parser.add_argument("--only", choices=list(TARGETS), nargs="+", default=list(TARGETS), metavar="KIND")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="also write the counts here, as JSON")
    arguments = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    failures: list[str] = []
    print(f"{'kind':20}{'inputs':>8}{'worked':>8}{'refused':>8}{'failed':>8}{'memory':>9}{'cpu':>7}")
    for kind, number in shares(arguments.inputs, arguments.only).items():
        outcome = fuzz(kind, number, arguments.first, arguments.seed)
        counts = {name: outcome.counts[name] for name in ("worked", "refused", "failed")}
        table[kind] = {**counts, "memory_mb": round(outcome.memory_mb), "cpu_seconds": round(outcome.seconds)}
        row = "".join(f"{count:8}" for count in (outcome.counts.total(), *counts.values()))
        print(f"{kind:20}{row}{outcome.memory_mb:6.0f} MB{outcome.seconds:5.0f} s", flush=True)
        print(*outcome.failures, sep="\n", end="\n" * bool(outcome.failures), flush=True)
        failures += outcome.failures
    total = sum(row["worked"] + row["refused"] + row["failed"] for row in table.values())
    print(f"{total:,} inputs, {sum(row['failed'] for row in table.values())} failed")
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

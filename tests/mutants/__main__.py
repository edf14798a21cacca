"""Draw faults, try each against the tests related to it, report what none of them noticed.

Results are kept in ``.mutants/`` and a run goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import date
from io import StringIO
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from mutants.children import in_children
from mutants.faults import Fault, draw, targets
from mutants.suite import OPTIONS, Tests, attempt, heirs, measure, near, noted_copy, related

OVER = "methods aggregate train evaluate privacy data/partition *roster *transport *loop"
ROOMS = (
    "golden property unit unit/aggregate unit/clients unit/data unit/data/partition unit/evaluate unit/methods "
    "unit/privacy unit/record unit/rounds unit/train integration/test_run.py integration/test_transport.py"
)
"""Folders and files of the tests that are run: near the code. What only a test far away notices is luck."""
LEFT_OUT = ("test_secure.py", "flower", "readers")
"""Parts of the names of test files in these folders that test something else."""
HARMLESS = Path("tests/mutants/harmless.toml")
"""Survivors that cannot change an output: file, function, before, after and the argument."""


def main() -> None:
    """Try what was not tried yet, print the report."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--faults", type=int, default=400, help="how many faults must count")
    parser.add_argument("--seed", type=int, default=1, help="decides which faults are drawn")
    parser.add_argument(
        "--over", nargs="+", default=OVER.split(), help="modules and packages, such as train/sgd"
    )
    parser.add_argument("--tests", nargs="+", default=ROOMS.split(), help="folders and files below tests")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--budget", type=float, default=20, help="seconds of tests for one fault")
    parser.add_argument(
        "--near", action="store_true", help="measure nothing: whole test files that import the module"
    )
    parser.add_argument("--again", action="store_true", help="try survivors again, after tests were mended")
    parser.add_argument("--report", action="store_true", help="only print the report")
    parser.add_argument(
        "--preload", nargs="*", default=["torch", "torch._dynamo", "scipy", "pydantic", "hypothesis", "typer"]
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Path(".mutants").resolve() / f"seed-{options.seed}.jsonl"
    src = Path.cwd() / "src"
    faults = draw(src, targets(src, options.over), options.seed)
    if not options.report:
        prepare(results.parent, options.preload)
        try_faults(faults, results, options)
    print(report(faults, read(results), options.seed))


def prepare(folder: Path, modules: list[str]) -> None:
    """Import what every child needs, pytest's plugins too, but not the package; make tests repeat themselves."""
    folder.mkdir(exist_ok=True)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # a copy has what was compiled once
    compileall.compile_dir("src", quiet=1, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    os.environ |= {"OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}
    for name in modules:
        module = importlib.import_module(name)
        if name == "hypothesis":
            module.settings.register_profile("mutants", derandomize=True, deadline=None, database=None)
            module.settings.load_profile("mutants")
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only", *OPTIONS, str(folder)])
    gc.freeze()


def texts_of(root: Path, rooms: list[str]) -> dict[str, str]:
    """Return the files of tests in these folders, with their texts."""
    places = (root / "tests" / room for room in rooms)
    found = sorted(path for room in places for path in ([room] if room.is_file() else room.glob("test_*.py")))
    files = {path.relative_to(root).as_posix(): path.read_text() for path in found}
    return {file: text for file, text in files.items() if not any(part in file for part in LEFT_OUT)}


def measured(root: Path, texts: Mapping[str, str], folder: Path, jobs: int) -> Tests:
    """Return what every test calls; kept while the test's file stays as it is."""
    cache = folder / "tests.json"
    known = json.loads(cache.read_text()) if cache.exists() else {}
    files = {f"{file} {hashlib.sha256(text.encode()).hexdigest()}": file for file, text in texts.items()}
    missing = [key for key in files if key not in known]
    src = noted_copy(root, folder) if missing else root
    work = lambda key, own: measure(src, files[key], own)  # noqa: E731
    for key, tests in in_children(work, missing, folder, jobs, limit=900):
        known[key] = tests or {}
        cache.write_text(json.dumps(known))
        print(f"measured {len(known[key])} tests of {files[key]}", flush=True)
    return {test: value for key in files for test, value in known[key].items()}


def try_faults(faults: list[Fault], results: Path, options: argparse.Namespace) -> None:
    """Try faults in the order of the draw until enough of them count; write each result at once."""
    root, folder = Path.cwd(), results.parent
    texts = texts_of(root, options.tests)
    tests = {} if options.near else measured(root, texts, folder, options.jobs)
    done = {name: result["outcome"] for name, result in read(results).items()}
    if options.again:
        done = {name: outcome for name, outcome in done.items() if outcome != "survived"}
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()

    def work(fault: Fault, own: Path) -> dict[str, str]:
        if options.near:
            batches = near(fault, texts, heirs(root / "src", fault.file))
        else:
            batches = related(fault, tests, options.budget)
        return attempt(root, fault, batches, own)

    def wave() -> list[Fault]:
        counted = sum(done.get(fault.id) in ("caught", "survived") for fault in faults)
        return [fault for fault in faults if fault.id not in done][: max(0, options.faults - counted)]

    while next_faults := wave():
        for fault, answer in in_children(work, next_faults, folder, options.jobs, 300 + 10 * options.budget):
            result = answer or {"outcome": "caught", "test": "time limit"}
            done[fault.id] = result["outcome"]
            record = {**fault._asdict(), **result, "commit": commit}
            del record["source"], record["statement"]
            with results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            line = f"{fault.file}:{fault.line} {fault.before} -> {fault.after} [{result['test']}]"
            print(f"{result['outcome']:9}{line}", flush=True)


def read(results: Path) -> dict[str, dict[str, str]]:
    """Return the results so far by fault; a later line beats an earlier one."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {result["id"]: result for result in map(json.loads, lines)}


def report(faults: list[Fault], results: dict[str, dict[str, str]], seed: int) -> str:
    """Return the numbers and every survivor as Markdown."""
    tried = [results[fault.id] for fault in faults if fault.id in results]
    survivors = sorted((r for r in tried if r["outcome"] == "survived"), key=lambda r: (r["file"], r["line"]))
    entries = tomllib.loads(HARMLESS.read_text()).get("harmless", []) if HARMLESS.exists() else []
    keys = ("file", "function", "before", "after")
    arguments = {tuple(entry[key] for key in keys): entry["argument"] for entry in entries}
    why = [arguments.get(tuple(result[key] for key in keys), "") for result in survivors]
    counts = Counter(result["outcome"] for result in tried)
    judged = counts["caught"] + why.count("")
    lines = [
        f"`make mutants` on {date.today()}, commit {', '.join(sorted({r['commit'] for r in tried}))}, seed {seed}: "
        f"**{counts['caught']} of {judged} faults caught ({100 * counts['caught'] / max(judged, 1):.1f} %)**. "
        f"{len(why) - why.count('')} more are harmless; {counts['raises']} raised at once and do not count.",
        "",
        "| place | before | after | why it is harmless |",
        "|---|---|---|---|",
    ]
    for result, argument in zip(survivors, why, strict=True):
        place = f"{result['file']}:{result['line']} {result['function']}"
        cells = [place, f"`{result['before']}`", f"`{result['after']}`", argument or "**missed**"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

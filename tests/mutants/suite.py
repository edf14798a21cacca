"""Which tests can notice a fault, and whether they do: pytest on a copy of the package."""

from __future__ import annotations

import ast
import builtins
import compileall
import importlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mutants.faults import Fault, module_name

OPTIONS = ["--tb=no", "-m", "not flower", "-pno:cacheprovider", "-pno:randomly", "-pno:xdist", "--timeout=0"]
Tests = dict[str, tuple[float, float, list[str]]]
"""How many seconds of a processor a test takes, its file's slowest fixtures take, and what it calls."""


GOLDEN = "tests/golden/test_runs_against_oracle.py"
LONG = 60.0
"""Seconds that a file of tests may take where nothing was measured: ten times as many are a hang."""


class Batch(NamedTuple):
    """Tests of one file, or the file itself for those whose names hold a word, and the seconds they take."""

    tests: list[str]
    seconds: float
    word: str = ""


class Calls:
    """Notes how long each test of a file takes and which functions it calls."""

    def __init__(self) -> None:
        self.clock, self.setup = 0.0, 0.0
        self.tests = dict[str, tuple[float, set[str]]]()
        self.now, self.shared = set[str](), set[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Close a step of a test; what a fixture does counts for every test of the file."""
        before, self.clock = self.clock, sum(os.times()[:4])  # of processors, however busy they are
        if report.when == "setup":
            self.shared |= self.now
            self.setup = max(self.setup, self.clock - before)
        elif report.when == "call" and report.passed:
            self.tests[report.nodeid] = (self.clock - before, self.now)
        self.now = set()

    def pytest_runtest_logstart(self) -> None:
        self.clock = sum(os.times()[:4])


class Noting(ast.NodeTransformer):
    """Lets every function of a module say its name when it is called: far cheaper than a trace."""

    def __init__(self, module: str) -> None:
        self.names = [module]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        name = ".".join([*self.names, node.name])
        place = 1 if ast.get_docstring(node) else 0
        node.body.insert(place, ast.parse(f"__import__('builtins').noted({name!r})").body[0])
        return node


def noted_copy(root: Path, folder: Path) -> Path:
    """Return a copy of the sources in which every function says its name when it is called."""
    src = folder / "noted"
    shutil.rmtree(src, ignore_errors=True)
    for path in (root / "src").rglob("*.py"):
        file = path.relative_to(root / "src")
        tree = Noting(module_name(file.as_posix())).visit(ast.parse(path.read_text()))
        (src / file).parent.mkdir(parents=True, exist_ok=True)
        (src / file).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    for path in (root / "src").rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            (src / path.relative_to(root / "src")).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, src / path.relative_to(root / "src"))
    compileall.compile_dir(src, quiet=1)
    return src


def measure(src: Path, file: str, folder: Path) -> Tests:
    """Run the tests of a file on a copy of the sources that notes its calls."""
    calls = Calls()
    builtins.noted = lambda name: calls.now.add(name)  # type: ignore[attr-defined]
    sys.path.insert(0, str(src))
    pytest.main([file, f"--basetemp={folder}/tests", *OPTIONS], plugins=[calls])
    names = {module_name(path.relative_to(src).as_posix()) for path in src.rglob("*.py")}
    loaded = {f"{name}:" for name in names if name in sys.modules}
    found = calls.tests.items()
    return {
        test: (seconds, calls.setup, sorted(own | calls.shared | loaded)) for test, (seconds, own) in found
    }


def related(fault: Fault, tests: Tests, budget: float) -> list[Batch]:
    """Return the tests that may notice a fault, in the order to run them.

    Those seen to call the function (for a class or module: any of its functions) come first, the quickest
    before others, as many as fit into the budget of seconds. For a class, a module or a function that no
    test was seen to call, those that load the module follow.
    """
    module = module_name(fault.file)
    scope = f"{module}.{fault.function}".rstrip(".")
    called_itself = any(scope in calls for _, _, calls in tests.values())
    found = []
    for test, (seconds, setup, calls) in tests.items():
        called = any(call == scope or call.startswith(f"{scope}.") for call in calls)
        if called or (f"{module}:" in calls and not called_itself):
            found.append((not called, seconds, setup, test))
    batches: dict[tuple[bool, str], Batch] = {}
    for later, seconds, setup, test in sorted(found):
        key = (later, test.split("::")[0])
        batch = batches.get(key, Batch([], setup))
        cost = seconds + (0 if batch.tests else setup)
        if cost <= budget or not batches:
            budget -= cost
            batches[key] = Batch([*batch.tests, test], batch.seconds + seconds)
    return [batches[key] for key in sorted(batches, key=lambda key: (key[0], batches[key].seconds))]


def heirs(src: Path, file: str) -> list[str]:
    """Return the names of the modules beside one that import it, such as methods of their base."""
    line = f"from {module_name(file)} import "
    beside = sorted(path for path in (src / file).parent.glob("*.py") if line in path.read_text())
    return [path.stem for path in beside if path.stem != "__init__"]


def near(fault: Fault, texts: Mapping[str, str], heirs: Sequence[str] = ()) -> list[Batch]:
    """Return whole files of tests, given with their texts, that may notice a fault: nothing is measured.

    Those that import the module come first, led by those named after it, then those named after its heirs.
    Then follow golden runs, of the method and its heirs or of two methods, and the others of its room and of
    its properties; of methods only those tests of all methods that have its name. Tables of options come
    first where a class's own line is changed.
    """
    package, _, stem = module_name(fault.file).rpartition(".")
    room, own = package.partition(".")[2].replace(".", "/"), package.endswith(".methods")
    imports = re.compile(rf"(from|import) {package}\.{stem}\b|from {package} import [^#]*\b{stem}\b")
    named = [file for file in texts if Path(file).stem.endswith(f"_{stem}") or imports.search(texts[file])]
    found = sorted(named, key=lambda f: (stem not in f, len(texts[f])))
    found += [file for file in texts if Path(file).stem.removeprefix("test_") in heirs and file not in named]
    if fault.function.rpartition(".")[2][:1].isupper():  # a class's own line: perhaps an option
        found = list(dict.fromkeys([*(file for file in texts if "options.csv" in texts[file]), *found]))
    batches = [Batch([file], LONG) for file in found]
    if GOLDEN in texts:
        batches += [
            Batch([GOLDEN], LONG, f"[{word}]") for word in ([stem, *heirs] if own else ["pep", "cue"])
        ]
    if own:
        mates = [file for file in texts if "METHODS" in texts[file]]
    else:
        places = (f"tests/unit/{room}/", f"tests/property/test_{room.split('/')[-1]}")
        mates = [file for file in texts if file.startswith(places)]
    left = [file for file in mates if file not in found and file != GOLDEN]
    return batches + [Batch([file], LONG, stem if own else "") for file in left]


class Verdict:
    """Runs the wanted tests of a file and notes the first that fails, and how."""

    def __init__(self, fault: Fault, src: Path, wanted: list[str], word: str = "") -> None:
        self.fault, self.src, self.wanted, self.word = fault, src, wanted, word
        self.result: dict[str, str] = {}
        self.run = 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if self.is_wanted(item.nodeid)]
        self.run = len(items)

    def is_wanted(self, test: str) -> bool:
        """Tell whether a test is named itself, or its file and the word in its name."""
        return test in self.wanted or (test.split("::")[0] in self.wanted and self.word in test)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.result = {"outcome": "raises", "test": report.nodeid}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        report = yield
        if report.failed and not self.result:
            outcome = "raises" if self.raises_at_once(call.excinfo) else "caught"
            self.result = {"outcome": outcome, "test": item.nodeid}
        return report

    def raises_at_once(self, failure: Any) -> bool:
        """Return whether the fault broke the program: its statement raised, or wrong kinds of objects met."""
        package = self.fault.file.split("/")[0]
        if issubclass(failure.type, AssertionError | pytest.fail.Exception):
            return False
        own = [entry for entry in failure.traceback if Path(entry.path).is_relative_to(self.src)]
        if issubclass(failure.type, TypeError | AttributeError | NameError):
            return bool(own)
        first, last = self.fault.statement
        refused = failure.type.__module__.split(".")[0] == package
        here = [entry for entry in own if Path(entry.path) == self.src / self.fault.file]
        return not refused and any(first <= entry.lineno + 1 <= last for entry in here)


def attempt(root: Path, fault: Fault, batches: list[Batch], folder: Path) -> dict[str, str]:
    """Run tests on a copy of the package with a fault until one fails; processes they start get the copy too."""
    src = folder / "src"
    shutil.copytree(root / "src", src, copy_function=os.link)
    (src / fault.file).unlink()
    (src / fault.file).write_text(fault.source)
    sys.path.insert(0, str(src))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(src), os.environ.get("PYTHONPATH", "")])
    try:
        importlib.import_module(module_name(fault.file))
    except Exception as error:
        return {"outcome": "raises", "test": f"import: {type(error).__name__}"}
    signal.signal(signal.SIGPROF, lambda *_: pytest.fail("time is up"))
    run = 0
    for tests, seconds, word in batches:
        verdict = Verdict(fault, src, tests, word)
        signal.setitimer(signal.ITIMER_PROF, 20 + 10 * seconds)
        pytest.main(
            [tests[0].split("::")[0], "-x", f"--basetemp={folder}/tests", *OPTIONS], plugins=[verdict]
        )
        if verdict.result:
            return verdict.result
        run += verdict.run
    return {"outcome": "survived", "test": f"{run} tests"}

"""Which tests can notice a fault, and whether they do: pytest on a copy of the package."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mutants.faults import Fault, module_name

OPTIONS = ["--tb=no", "-m", "not flower", "-pno:cacheprovider", "-pno:randomly", "-pno:xdist", "--timeout=0"]
Tests = dict[str, tuple[float, float, list[str]]]
"""How many seconds of a processor a test takes, its file's slowest fixtures take, and what it calls."""


class Batch(NamedTuple):
    """Tests of one file and the seconds they should take."""

    tests: list[str]
    seconds: float


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


def measure(root: Path, changed: Iterable[str], file: str, folder: Path) -> Tests:
    """Run the tests of a file on a copy of the package whose ``changed`` modules note their calls."""
    calls, src = Calls(), folder / "src"
    shutil.copytree(root / "src", src, copy_function=os.link)
    for path in changed:
        tree = Noting(module_name(path)).visit(ast.parse((root / "src" / path).read_text()))
        (src / path).unlink()
        (src / path).write_text(ast.unparse(ast.fix_missing_locations(tree)))
    builtins.noted = lambda name: calls.now.add(name)  # type: ignore[attr-defined]
    sys.path.insert(0, str(src))
    pytest.main([file, f"--basetemp={folder}/tests", *OPTIONS], plugins=[calls])
    loaded = {f"{name}:" for name in map(module_name, changed) if name in sys.modules}
    found = calls.tests.items()
    return {
        test: (seconds, calls.setup, sorted(own | calls.shared | loaded)) for test, (seconds, own) in found
    }


def related(fault: Fault, tests: Tests, budget: float) -> list[Batch]:
    """Return the tests that may notice a fault, in the order to run them.

    Those seen to call the function (for a class or module: any of its functions) come first, then those
    that load the module; of each the quickest, as many as fit into the budget of seconds.
    """
    module = module_name(fault.file)
    scope = f"{module}.{fault.function}".rstrip(".")
    found = []
    for test, (seconds, setup, calls) in tests.items():
        called = any(call == scope or call.startswith(f"{scope}.") for call in calls)
        if called or f"{module}:" in calls:
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


class Verdict:
    """Runs the wanted tests of a file and notes the first that fails, and how."""

    def __init__(self, fault: Fault, src: Path, wanted: list[str]) -> None:
        self.fault, self.src, self.wanted = fault, src, wanted
        self.result: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.wanted]

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
    for tests, seconds in batches:
        verdict = Verdict(fault, src, tests)
        signal.setitimer(signal.ITIMER_PROF, 20 + 10 * seconds)
        pytest.main(
            [tests[0].split("::")[0], "-x", f"--basetemp={folder}/tests", *OPTIONS], plugins=[verdict]
        )
        if verdict.result:
            return verdict.result
    return {"outcome": "survived", "test": f"{sum(len(batch.tests) for batch in batches)} tests"}

"""Which tests can notice a fault, and whether they do: pytest on a copy of the package."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mutants.faults import Fault, module_name

OPTIONS = ["-q", "--tb=no", "-m", "not flower", "-pno:cacheprovider", "-pno:randomly", "-pno:xdist"]
Tests = dict[str, tuple[float, list[str]]]
"""How many seconds of a processor a test takes, and what it calls."""


class Calls:
    """Notes how long each test of a file takes and which functions below ``src`` it calls."""

    def __init__(self, src: Path) -> None:
        self.src, self.began, self.tests = f"{src}/", 0.0, dict[str, tuple[float, set[str]]]()
        self.modules, self.now, self.shared = dict[str, str](), set[str](), set[str]()

    def trace(self, frame: Any, event: str, argument: Any) -> None:
        """Note the function that begins; the body of a module as ``name:``."""
        code = frame.f_code
        module = self.modules.get(code.co_filename)
        if module is None:
            inside = code.co_filename.startswith(self.src)
            module = module_name(code.co_filename.removeprefix(self.src)) if inside else ""
            self.modules[code.co_filename] = module
        if module and code.co_name == "<module>":
            self.shared.add(f"{module}:")
        elif module and code.co_flags & 1:  # not the body of a class
            self.now.add(f"{module}.{code.co_qualname.split('.<locals>')[0]}")

    def pytest_runtest_logstart(self) -> None:
        self.began = sum(os.times()[:4])  # of processors, so that a busy machine counts for nothing

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Close a step of a test; what a fixture calls counts for every test of the file."""
        if report.when == "setup":
            self.shared |= self.now
        elif report.when == "call" and report.passed:
            self.tests[report.nodeid] = (sum(os.times()[:4]) - self.began, self.now)
        self.now = set()


def measure(root: Path, file: str, folder: Path) -> Tests:
    """Run the tests of a file on the package as it is."""
    calls = Calls(root / "src")
    sys.path.insert(0, str(root / "src"))
    threading.settrace(calls.trace)
    sys.settrace(calls.trace)
    pytest.main([file, f"--basetemp={folder}/tests", *OPTIONS], plugins=[calls])
    sys.settrace(None)
    return {test: (seconds, sorted(own | calls.shared)) for test, (seconds, own) in calls.tests.items()}


def related(fault: Fault, tests: Tests, budget: float) -> list[dict[str, float]]:
    """Return the tests that may notice a fault and their seconds, a batch per file, in the order to run them.

    Those seen to call the function (for a class or module: any of its functions) come first, then those
    that load the module; of each the quickest, as many as fit into the budget of seconds.
    """
    module = module_name(fault.file)
    scope = f"{module}.{fault.function}".rstrip(".")
    found = []
    for test, (seconds, calls) in tests.items():
        called = any(call == scope or call.startswith(f"{scope}.") for call in calls)
        if called or f"{module}:" in calls:
            found.append((not called, seconds, test))
    batches: dict[tuple[bool, str], dict[str, float]] = {}
    for later, seconds, test in sorted(found):
        budget -= seconds
        if budget > 0 or not batches:
            batches.setdefault((later, test.split("::")[0]), {})[test] = seconds
    return [batches[key] for key in sorted(batches, key=lambda key: (key[0], sum(batches[key].values())))]


class Verdict:
    """Runs the wanted tests of a file and notes the first that fails, and how."""

    def __init__(self, fault: Fault, src: Path, wanted: dict[str, float]) -> None:
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
        """Return whether the changed statement failed to run, instead of running to another effect."""
        package = self.fault.file.split("/")[0]
        judged = issubclass(failure.type, AssertionError | pytest.fail.Exception)  # the latter: time is up
        judged = judged or failure.type.__module__.split(".")[0] == package
        first, last = self.fault.statement
        own = [entry for entry in failure.traceback if Path(entry.path) == self.src / self.fault.file]
        return not judged and any(first <= entry.lineno + 1 <= last for entry in own)


def attempt(root: Path, fault: Fault, batches: list[dict[str, float]], folder: Path) -> dict[str, str]:
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
    for wanted in batches:
        verdict = Verdict(fault, src, wanted)
        file, limit = next(iter(wanted)).split("::")[0], 30 + 10 * max(wanted.values())
        options = ["-x", f"--timeout={limit:.0f}", f"--basetemp={folder}/tests", *OPTIONS]
        pytest.main([file, *options], plugins=[verdict])
        if verdict.result:
            return verdict.result
    return {"outcome": "survived", "test": f"{sum(map(len, batches))} tests"}

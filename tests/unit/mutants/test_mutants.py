"""The tool behind ``make mutants``: which faults it writes, which tests it runs, what it makes of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from mutants.children import in_children
from mutants.faults import Fault, draw, targets
from mutants.operators import sites
from mutants.suite import Batch, heirs, near, related

TESTS = Path(__file__).parents[2]


def changes(source: str) -> set[str]:
    """Return the texts of all modules that differ from this one by a fault."""
    data = source.encode()
    return {
        (data[: site.start] + choice.encode() + data[site.end :]).decode()
        for site in sites(source)
        for choice in site.choices
    }


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a is not b", {"a is b"}),
        ("a not in b", {"a in b"}),
        ("a + b", {"a - b"}),
        ("a - b", {"a + b", "b - a"}),
        ("a ** b", {"a * b", "b ** a"}),
        ("-a", {"a"}),
        ("not a", {"a"}),
        ("a and b and c", {"a or b and c", "a and b or c"}),
        ("True", {"False"}),
        ("a = 3", {"a = 4", "a = 2"}),
        ("a = 0.5", {"a = 1.0", "a = 0.25"}),
        ("a = 1e-12", {"a = 0.0", "a = 0.1"}),
        ("a == 'x'", {"a != 'x'", "a == 'x_'"}),
        ("a in ('x', b)", {"a not in ('x', b)", "a in ('x_', b)"}),
        ("a: Literal['x', 'y'] = 'x'", {"a: Literal['x', 'y'] = 'y'"}),
        ("a: Literal['x', 'y'] = Field('x', description='z')", {"a: Literal['x', 'y'] = Field('y', description='z')"}),
        ("def f(a, *, b: Literal['x', 'y'] = 'x'): ...", {"def f(a, *, b: Literal['x', 'y'] = 'y'): ..."}),
        ("a = f(b, c, d=e)", {"a = f(c, b, d=e)"}),
        ("a = x.mean(b)", {"a = x.sum(b)"}),
        ("a = min(b, c)", {"a = max(b, c)"}),
        ("a = range(b)", {"a = range(b + 1)", "a = range(b - 1)"}),
        ("a = b[:c]", {"a = b[:c + 1]", "a = b[:c - 1]"}),
        ("f(a)", {"pass"}),
        ("a.b = c", {"pass"}),
        ("a = b\na = a | c", {"a = b\npass", "a = b\na = a & c"}),
        ("a += b", {"a -= b", "pass"}),
        ("a if b else c", {"a if not b else c", "a if True else c", "a if False else c"}),
        ("[a for a in b if c]", {"[a for a in b if not c]", "[a for a in b if True]"}),
        ("while a: b", {"while not a: b"}),
        ("if a:\n  raise b", {"if not a:\n  raise b", "if True:\n  raise b", "if a:\n  pass", "pass"}),
        ("if a:\n  b\nelse:\n  c", {f"if {test}:\n  b\nelse:\n  c" for test in ("not a", "True", "False")}),
    ],
)  # fmt: skip
def test_each_kind_of_fault_is_written(source: str, faults: set[str]) -> None:
    assert changes(source) == faults


@pytest.mark.parametrize(
    "source",
    [
        '"""A text, 1 + 1."""',
        "a = 'text'",
        "a = f'{b + 1} texts'",
        "a: tuple[int, Literal[3]]",
        "def f(a: Literal['x', 'y']) -> Literal[1]: ...",
        "@dataclass(frozen=True)\nclass A(B[1]): ...",
        "log.info('text', 3)",
        "warnings.warn('text', 3)",
        "a = Error('text', 3)",
        "a = zip(b, strict=True)",
        "a = Field(b, description='x' 'y')",
        "assert a is not None",
        "if TYPE_CHECKING:\n  import a",
        "def __repr__(self): return 1",
        "import a",
    ],
)
def test_texts_types_and_what_has_no_effect_are_left_alone(source: str) -> None:
    assert changes(source) == set()


def test_a_site_knows_its_outermost_function_and_its_statement() -> None:
    source = (
        "class A:\n  x = 1\n  def f(self):\n    def g():\n      return [\n        2]\nif (3 <\n  y):\n  z\n"
    )
    found = {source[site.start : site.end]: site for site in sites(source) if site.operator == "constant"}
    assert {text: site.function for text, site in found.items()} == {"1": "A", "2": "A.f", "3": ""}
    assert {text: site.statement for text, site in found.items()} == {"1": (2, 2), "2": (5, 6), "3": (7, 8)}


TOY = {
    "src/toy/__init__.py": "",
    "src/toy/core.py": """
        def spread(values: list[float]) -> float:
            return max(values) - min(values)

        def unused(value: float) -> float:
            return value * 3

        def real(value: complex) -> float:
            return getattr(value, "real")
        """,
    "src/toy/deep/sampling.py": """
        from toy.core import spread

        def first(values: list[float], *, size: int = 2) -> float:
            return spread(values[:size])
        """,
    "tests/test_core.py": """
        from toy.core import real, spread

        def test_spread() -> None:
            assert spread([1.0, 4.0]) == 3.0

        def test_real() -> None:
            assert real(1j) == 0
        """,
    "tests/test_sampling.py": """
        import subprocess, sys

        def test_first_in_another_process() -> None:
            code = "from toy.deep.sampling import first; print(first([1.0, 3.0, 7.0]))"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            assert done.stdout == "2.0\\n"

        def test_loads() -> None:
            import toy.deep.sampling
        """,
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for name, text in TOY.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return tmp_path


def test_targets_are_found_wherever_they_are(toy: Path) -> None:
    assert targets(toy / "src", ["core"]) == ["toy/core.py"]
    assert targets(toy / "src", ["deep"]) == targets(toy / "src", ["*sampling"]) == ["toy/deep/sampling.py"]
    with pytest.raises(SystemExit, match="--over sampling names no module"):
        targets(toy / "src", ["core", "sampling"])


def test_the_seed_decides_the_order_and_a_change_elsewhere_does_not(toy: Path) -> None:
    src, core = toy / "src", toy / "src" / "toy" / "core.py"
    first = draw(src, ["toy/core.py"], 1)
    assert len({fault.id for fault in first}) == len(first) == 7
    assert draw(src, ["toy/core.py"], 1) == first
    assert [fault.id for fault in draw(src, ["toy/core.py"], 2)] != [fault.id for fault in first]
    core.write_text("def new(value: int) -> int:\n    return value + 1\n\n\n" + core.read_text())
    later = [fault for fault in draw(src, ["toy/core.py"], 1) if fault.function != "new"]
    assert [fault.id for fault in later] == [fault.id for fault in first]
    assert [fault.line for fault in later] == [fault.line + 4 for fault in first]


def test_a_fault_is_the_file_with_one_place_changed(toy: Path) -> None:
    source = (toy / "src" / "toy" / "core.py").read_text()
    for fault in draw(toy / "src", ["toy/core.py"], 1):
        assert fault.source == source.replace(fault.before, fault.after)
        assert source.splitlines()[fault.line - 1].strip() == fault.before


def fault(function: str) -> Fault:
    return Fault("id", "toy/core.py", function, 1, (1, 1), "before", "after", "source")


def test_tests_that_call_the_function_come_first_and_the_quickest_of_them() -> None:
    tests = {
        "a.py::loads": (0.5, 0.0, ["toy.core:"]),
        "a.py::calls": (3.0, 0.0, ["toy.core.A.f", "toy.core:"]),
        "b.py::calls": (2.0, 0.5, ["toy.core.A.f"]),
        "b.py::calls_another": (1.0, 0.5, ["toy.core.A.fg"]),
        "c.py::neither": (0.1, 0.0, ["toy.cores.A.f", "toy.cores:"]),
    }
    b_calls, a_calls, a_loads = (
        Batch(["b.py::calls"], 2.5),
        Batch(["a.py::calls"], 3.0),
        Batch(["a.py::loads"], 0.5),
    )
    assert related(fault("A.f"), tests, 60) == [b_calls, a_calls]
    assert related(fault("A.f"), tests, 3) == related(fault("A.f"), tests, 1) == [b_calls]
    both = Batch(["b.py::calls_another", "b.py::calls"], 3.5)
    assert related(fault("A"), tests, 60) == [a_calls, both, a_loads]
    assert related(fault("A.unseen"), tests, 60) == [Batch(["a.py::loads", "a.py::calls"], 3.5)]


def act(word: str, folder: Path) -> str:
    if word == "die":
        os._exit(1)
    if word == "raise":
        raise ValueError("a mistake of ours")
    if word == "hang":
        time.sleep(60)
    return word.upper()


def test_a_child_that_dies_or_hangs_has_no_result(tmp_path: Path) -> None:
    assert dict(in_children(act, ["die", "answer"], tmp_path, 2, limit=60)) == {
        "die": None,
        "answer": "ANSWER",
    }
    assert dict(in_children(act, ["hang"], tmp_path, 2, limit=0.1)) == {"hang": None}
    assert not list(tmp_path.iterdir())


def test_a_child_that_raises_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        list(in_children(act, ["hang", "raise"], tmp_path, 2, limit=60))
    assert not list(tmp_path.iterdir())


def test_faults_are_caught_survive_or_do_not_count_and_a_run_goes_on(toy: Path) -> None:
    results, harmless = toy / ".mutants" / "seed-1.jsonl", toy / "tests" / "mutants" / "harmless.toml"
    results.parent.mkdir()
    harmless.parent.mkdir()
    drawn = draw(toy / "src", ["toy/core.py", "toy/deep/sampling.py"], 1)
    unused = [fault for fault in drawn if fault.function == "unused"]
    spread = next(fault for fault in drawn if fault.after == "return min(values) - max(values)")
    earlier = [
        {**spread._asdict(), "outcome": "survived", "test": "", "commit": "earlier"},
        {**unused[0]._asdict(), "outcome": "caught", "test": "", "commit": "earlier"},
    ]
    results.write_text("".join(json.dumps(line) + "\n" for line in earlier))
    entry = {
        "file": "toy/core.py",
        "function": "unused",
        "before": unused[1].before,
        "after": unused[1].after,
    }
    values = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items())
    harmless.write_text(f'[[harmless]]\n{values}argument = "Nobody | calls it."\n')

    command = [
        sys.executable,
        "-m",
        "mutants",
        "--over",
        "core",
        "*sampling",
        "--tests",
        ".",
        "--again",
        "--preload",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{toy / 'src'}"}
    done = subprocess.run(
        command, cwd=toy, env=environment, capture_output=True, text=True, timeout=200, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert lines[:2] == json.loads(json.dumps(earlier))
    assert sorted(line["id"] for line in lines) == sorted(fault.id for fault in [*drawn, spread])
    outcome = {line["after"]: (line["outcome"], line["test"]) for line in lines}
    assert outcome.pop('return getattr("real", value)')[0] == "raises"
    assert outcome.pop(unused[0].after) == ("caught", "")
    assert outcome.pop(unused[1].after) == ("survived", "4 tests")
    assert {kind for kind, _ in outcome.values()} == {"caught"}
    assert outcome[spread.after] == ("caught", "tests/test_core.py::test_spread")
    assert outcome[next(after for after in outcome if "size: int" in after)][1].endswith("in_another_process")
    assert (
        f"**{len(drawn) - 2} of {len(drawn) - 2} faults caught (100.0 %)**. 1 more are harmless; 1 raised"
        in done.stdout
    )
    assert f"| `{unused[1].after}` | Nobody \\| calls it. |" in done.stdout


def test_tests_of_a_method_are_also_those_of_its_base(tmp_path: Path) -> None:
    folder = tmp_path / "fedcue" / "methods"
    folder.mkdir(parents=True)
    for name, text in {
        "base": "",
        "__init__": "from fedcue.methods.base import Base",
        "cue": "from fedcue.methods.base import Base",
        "head": "import fedcue.methods",
    }.items():
        (folder / f"{name}.py").write_text(text + "\n")
    base = fault("Base.f")._replace(file="fedcue/methods/base.py")
    assert heirs(tmp_path, base.file) == ["cue"]
    golden = "tests/golden/test_runs_against_oracle.py"
    texts = {"tests/unit/methods/test_cue.py": "", "tests/unit/methods/test_head.py": "", golden: ""}
    assert [(batch.tests[0].split("/")[-1], batch.word) for batch in near(base, texts, ["cue"])] == [
        ("test_cue.py", ""),
        ("test_runs_against_oracle.py", "[base]"),
        ("test_runs_against_oracle.py", "[cue]"),
    ]


def test_without_measuring_the_files_that_import_the_module_are_taken(tmp_path: Path) -> None:
    golden = "tests/golden/test_runs_against_oracle.py"
    texts = {
        "tests/unit/methods/test_base.py": "from fedcue.registry import METHODS",
        "tests/unit/methods/test_pep.py": "from fedcue.methods.pep import PEP",
        "tests/unit/methods/test_pep_variants.py": "from fedcue.methods.pep import PEP, more",
        "tests/unit/test_limits.py": "options.csv",
        "tests/unit/report/test_cost.py": "from fedcue.report import cost",
        "tests/unit/report/test_costs.py": "from fedcue.report.costs import Cost",
        "tests/unit/report/figures/test_curves.py": "from fedcue.report.figures import curves",
        "tests/property/test_report.py": "from fedcue import report",
        golden: "from fedcue.registry import METHODS",
    }
    pep = fault("PEP")._replace(file="fedcue/methods/pep.py")
    assert [(batch.tests[0].split("/")[-1], batch.word) for batch in near(pep, texts)] == [
        ("test_limits.py", ""),
        ("test_pep.py", ""),
        ("test_pep_variants.py", ""),
        ("test_runs_against_oracle.py", "[pep]"),
        ("test_base.py", "pep"),
    ]
    cost = fault("Cost.after")._replace(file="fedcue/report/cost.py")
    assert [(batch.tests[0], batch.word) for batch in near(cost, texts)] == [
        ("tests/unit/report/test_cost.py", ""),
        (golden, "[pep]"),
        (golden, "[cue]"),
        ("tests/unit/report/test_costs.py", ""),
        ("tests/unit/report/figures/test_curves.py", ""),
        ("tests/property/test_report.py", ""),
    ]

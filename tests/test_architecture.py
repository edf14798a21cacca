"""The house keeps its order: imports go one way, nothing executes what it reads, files stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fedcue"
ORDER = [
    "errors", "rng", "options", "registry", "types", "machine", "foreign", "data", "model", "train", "secure", "aggregate", "privacy",
    "methods", "config", "clients", "evaluate", "record", "rounds", "after", "plan", "grid", "report", "export",
    "flower", "cli",
]  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path: Path, whole: bool = True) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if whole else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_package_imports_only_those_above_it(path: Path) -> None:
    if path.parent == PACKAGE and path.stem in ("__init__", "__main__"):
        return
    rank = ORDER.index(layer(path))
    for name in imports(path):
        if name.startswith("fedcue."):
            assert ORDER.index(name.split(".")[1]) <= rank, f"{path.name} imports {name}"


SHARED = {"__init__", "base", "client", "tensors", "statistics_head", "optional_prompts"}
"""Modules of ``methods`` that are no method: what methods share."""


def test_methods_do_not_import_each_other() -> None:
    names = {path.stem for path in (PACKAGE / "methods").glob("*.py")} - SHARED
    for name in names:
        modules = [m for m in imports(PACKAGE / "methods" / f"{name}.py") if m.startswith("fedcue.methods.")]
        used = {module.split(".")[-1] for module in modules} & names
        assert used == ({"pep"} if name == "pep_variants" else set()), name


ENTRANCES = {"fedcue.cli.main"}
"""Modules that are used from outside."""


def test_every_module_is_imported_by_another_or_named_by_the_registry() -> None:
    named = (PACKAGE / "registry.py").read_text() + (PACKAGE / "record/track/base.py").read_text()
    named += "".join(
        (PACKAGE / name).read_text()
        for name in ("flower/deployment.py", "flower/scripts.py", "flower/forking.py", "__init__.py")
    )
    used = {module for path in FILES for module in _imported_modules(path)}
    for path in FILES:
        if path.stem in ("__init__", "__main__"):
            continue
        module = ".".join(("fedcue", *path.relative_to(PACKAGE).with_suffix("").parts))
        assert module in used or module in named or module in ENTRANCES, f"{module} is imported by nobody"


def _imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_tuple_or_list_is_multiplied_by_a_condition(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for part, other in ((node.left, node.right), (node.right, node.left)):
                text = ast.unparse(other)
                conditional = isinstance(other, ast.Compare | ast.BoolOp) or text.startswith("bool(")
                assert not (isinstance(part, ast.Tuple | ast.List) and conditional), ast.unparse(node)


def test_the_report_never_imports_model_or_methods() -> None:
    for path in (PACKAGE / "report").rglob("*.py"):
        assert not [
            m for m in imports(path) if m.startswith(("fedcue.model", "fedcue.methods", "torch.nn"))
        ], path


def test_only_flower_imports_flwr_and_nothing_imports_torchvision_or_ray_at_once() -> None:
    for path in FILES:
        roots = {module.split(".")[0] for module in imports(path)}
        assert "torchvision" not in roots
        assert "timm" not in roots
        assert layer(path) == "flower" or "flwr" not in roots, path
        assert "ray" not in roots, (
            f"{path}: Ray is imported in rounds/on_ray/cluster.py, when it is asked for"
        )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_can_execute_what_it_reads(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"} & set(imports(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "compile", "os.system", "torch.load", "__import__"}, called
            for keyword in node.keywords:
                text = f"{keyword.arg}={ast.unparse(keyword.value)}"
                assert text not in {"shell=True", "allow_pickle=True"}


def statements(path: Path) -> int:
    """Count the lines of code: without blank lines, comments and docstrings."""
    tree = ast.parse(path.read_text())
    texts = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text().splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and n not in texts for n, line in lines
    )


@pytest.mark.parametrize("path", sorted((PACKAGE / "methods").glob("[!b_]*.py")), ids=lambda path: path.stem)
def test_a_method_is_a_short_file(path: Path) -> None:
    limits = {"pep": 79, "pep_variants": 95, "sgpt": 115, "pfedpg": 124}
    assert statements(path) <= limits.get(path.stem, 90)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_fits_a_few_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 290


def test_a_round_fits_on_one_screen() -> None:
    tree = ast.parse((PACKAGE / "rounds" / "loop.py").read_text())
    rounds = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_round"]
    assert rounds[0].end_lineno is not None
    assert rounds[0].end_lineno - rounds[0].lineno < 60


def test_importing_fedcue_does_not_import_torch() -> None:
    code = "import sys, fedcue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

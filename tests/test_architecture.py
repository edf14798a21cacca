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
    "errors", "rng", "registry", "types", "memory", "settings", "config", "data", "model", "train", "aggregate", "methods",
    "evaluate", "record", "track", "federate", "report", "flower", "cli",
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


def test_methods_do_not_import_each_other() -> None:
    names = {path.stem for path in (PACKAGE / "methods").glob("*.py")} - {"base", "__init__"}
    for name in names:
        used = {
            module.split(".")[-1]
            for module in imports(PACKAGE / "methods" / f"{name}.py")
            if "methods." in module
        }
        assert not used & names


def test_the_report_never_imports_model_or_methods() -> None:
    for path in (PACKAGE / "report").rglob("*.py"):
        assert not [
            m for m in imports(path) if m.startswith(("fedcue.model", "fedcue.methods", "torch.nn"))
        ], path


def test_only_flower_imports_flwr_and_nothing_imports_torchvision() -> None:
    for path in FILES:
        roots = {module.split(".")[0] for module in imports(path)}
        assert "torchvision" not in roots
        assert "timm" not in roots
        assert layer(path) == "flower" or "flwr" not in roots, path


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


@pytest.mark.parametrize("path", sorted((PACKAGE / "methods").glob("[!b_]*.py")), ids=lambda path: path.stem)
def test_a_method_is_a_short_file(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 200


def test_importing_fedcue_does_not_import_torch() -> None:
    code = "import sys, fedcue; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""What there is to choose from, and what each thing can be set to, without waiting for torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fedcue.cli.main import app
from fedcue.config.recipes import recipes
from fedcue.errors import ConfigError
from fedcue.registry import METHODS

NO_TORCH = """
import sys
from fedcue.cli.main import main
sys.argv = ["fedcue", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {heavy} & set(sys.modules)
    assert not heavy, heavy
"""


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


TYPED = {"pydantic", "numpy"}
"""What only settings that are read need."""


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ("--help", TYPED),
        ("run --help", TYPED),
        ("list", TYPED),
        ("list methods", TYPED),
        ("show default", ()),
    ],
)
def test_looking_around_does_not_import_torch(arguments: str, more: set[str]) -> None:
    program = NO_TORCH.format(heavy={"torch", "torchvision", "scipy", "matplotlib", *more})
    command = [sys.executable, "-c", program, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_list_groups_the_recipes_by_dataset_one_line_each() -> None:
    group, groups = "", dict[str, dict[str, str]]()
    for line in shown("list").splitlines():
        if line.startswith("  "):
            name, _, about = line.strip().partition(" ")
            groups[group][name] = about.strip()
        elif line:
            group = line
            groups[group] = {}
    found = {name: about for names in groups.values() for name, about in names.items()}
    assert set(found) == set(recipes())
    assert all(found.values()), "each says what it is"
    assert "default" in groups["to start with"]
    assert {"pacs", "pacs-heldout"} <= set(groups["pacs"])
    assert all(name.startswith("cifar100-") for name in groups["cifar100"])


def test_list_methods_says_of_each_what_its_docstring_says() -> None:
    lines = shown("list", "methods").splitlines()
    for name in METHODS.names():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        first = (METHODS.get(name).__doc__ or "").splitlines()[0].replace("``", "")
        assert line.split(maxsplit=1)[1] == first


def test_list_of_what_there_is_not_names_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"Unknown list 'metods'.*Did you mean 'methods'"):
        shown("list", "metods")


def test_show_of_a_method_tells_settings_defaults_and_meaning() -> None:
    text = shown("show", "pep")
    assert "method.temperature" in text
    assert "0.05" in text
    for key, field in METHODS.get("pep").model_fields.items():
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [f"method.{key}"]]
        assert (field.description or "?") in line


def test_show_of_a_recipe_tells_its_values_beside_the_defaults_and_its_command() -> None:
    lines = shown("show", "cifar100-pathological").splitlines()
    found = {line.split()[0]: line for line in lines if line.strip()}
    assert found["evaluation.every"].split()[:3] == ["evaluation.every", "5", "1"]
    assert "rounds between evaluations" in found["evaluation.every"]
    assert "partition.classes_per_client" in found
    assert "fedcue compare cifar100-pathological" in "\n".join(lines)
    assert "scale=cpu" in "\n".join(lines), "the scales it has are named"


def test_show_takes_what_run_takes() -> None:
    assert "partition.alpha" in shown("show", "partition=dirichlet")
    assert "evaluation.validation_share" in shown("show", "evaluation")


@pytest.mark.parametrize("name", ["peep", "partition=dirchlet", "partition"])
def test_show_of_what_there_is_not_says_what_there_is(name: str) -> None:
    with pytest.raises(ConfigError, match="Unknown|Give"):
        shown("show", name)

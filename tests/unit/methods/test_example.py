"""The example of a method of your own, and the page that walks through it."""

from __future__ import annotations

import re

from support import ROOT

from fedcue.config.layers import dump, load
from fedcue.registry import METHODS

EXAMPLE = "01_a_method_of_your_own:SideBySide"
FILE = ROOT / "examples" / "01_a_method_of_your_own.py"


def test_a_recipe_takes_a_method_by_its_import_path():
    config = load("default", [f"method={EXAMPLE}", "method.prompts=3"])
    assert config.method.prompts == 3
    assert dump(config)["method"]["name"] == EXAMPLE
    assert METHODS.name_of(METHODS.get(EXAMPLE)) == EXAMPLE


def test_private_prompts_differ_by_client_and_shared_ones_do_not(federation):
    run = federation(METHODS.get(EXAMPLE)(prompts=2), images=8).run(2)
    assert set(run.updates[0][0].tensors) == {"head", "shared_prompts"}
    own = [run.memories[client].tensors["private_prompts"] for client in range(2)]
    assert own[0].shape == (2, 32)
    assert (own[0] != own[1]).any()


def test_the_page_quotes_the_code_as_it_is():
    page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    listings = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (example,) = [listing for listing in listings if "SideBySide" in listing]
    text = FILE.read_text(encoding="utf-8")
    assert example in text
    assert example.startswith("import fedcue.methods as fm\n")
    assert "class SideBySide" in example


def test_the_page_names_only_what_there_is():
    import fedcue.methods as fm

    page = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    for name in re.findall(r"`fm\.(\w+)", page):
        assert name in fm.__all__
    for step in re.findall(r"^\| `(\w+)\(", page, re.MULTILINE):
        assert callable(getattr(fm.Method, step))
    for line in re.findall(r"`TensorSpec\.(\w+)`", page):
        assert line in fm.TensorSpec.__annotations__


def test_the_example_imports_nothing_but_the_public_names_and_is_short():
    text = FILE.read_text(encoding="utf-8")
    assert set(re.findall(r"^(?:import|from) (fedcue\S*)", text, re.MULTILINE)) == {
        "fedcue",
        "fedcue.methods",
    }
    body = text[text.index("class SideBySide") : text.index("if __name__")].splitlines()
    assert sum(bool(line.strip()) and '"""' not in line for line in body) <= 14

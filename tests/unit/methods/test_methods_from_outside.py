"""The example of a new method, and the page that walks through it."""

from __future__ import annotations

import re

from support import ROOT

from fedcue.config.layers import dump, load
from fedcue.registry import METHODS

EXAMPLE = "02_new_method:SideBySide"


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
    fedvpt, example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert fedvpt == (ROOT / "src/fedcue/methods/fedvpt.py").read_text(encoding="utf-8")
    assert example.strip() in (ROOT / "examples/02_new_method.py").read_text(encoding="utf-8")


def test_the_new_method_is_about_twenty_lines():
    text = (ROOT / "examples/02_new_method.py").read_text(encoding="utf-8")
    body = text[text.index("class SideBySide") : text.index("if __name__")].splitlines()
    assert sum(bool(line.strip()) and '"""' not in line for line in body) <= 22

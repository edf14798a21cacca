"""The picture of the method is drawn from the code: its names are those of the code, and it is up to date."""

from __future__ import annotations

from xml.etree import ElementTree

from method_diagram import SIZES, diagram
from support import ROOT

from fedcue.methods.pep import PEP


def words(svg: str) -> str:
    return " ".join(text for text in ElementTree.fromstring(svg).itertext() if text.strip())


def test_every_tensor_that_travels_is_named() -> None:
    table, shown = PEP().table(SIZES), words(diagram(PEP()))
    for name in (*table.sent, *table.returned, *table.replied):
        assert name in shown


def test_another_method_gives_another_picture() -> None:
    shown = words(diagram(PEP(layers=(2, 9), period=7, temperature=0.5)))
    assert "m at blocks 2, 9" in shown
    assert "every 7 rounds" in shown
    assert "temperature 0.5" in shown
    assert "2 × C × d" in shown


def test_the_picture_in_the_docs_is_the_one_the_code_draws() -> None:
    kept = (ROOT / "docs" / "method.svg").read_text(encoding="utf-8")
    assert kept == diagram(PEP()), "run python scripts/method_diagram.py docs/method.svg"

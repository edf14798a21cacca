"""The page: self-contained, small enough, in order, and safe whatever names it is given."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import eight_methods, write_run

from fedcue.report.export import LIMIT
from fedcue.report.figures.catalogue import build
from fedcue.report.figures.draw import save
from fedcue.report.figures.figure import to_csv
from fedcue.report.groups import group_runs
from fedcue.report.page import SECTIONS, embed, render
from fedcue.report.runs import find_runs

EVIL = "</script><script>alert(1)</script>"
HOSTILE = [EVIL, "<img src=x onerror=alert(1)>", "\"'><b onmouseover=alert(1)>", "$\\frac{1}$ & _%#{}~^", "=cmd|' /C calc'!A0", "x" * 10_000, "‮ right to left", "a\nb\r\tc", "🦊 client", "../../etc/passwd"]  # fmt: skip


class Reader(HTMLParser):
    """Collects elements, their attributes and the embedded data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(find_runs([eight_methods(tmp_path_factory.mktemp("page"), seeds=(0, 1))]))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_the_page_needs_nothing_but_itself(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    for tag, attributes in Reader(page).elements:
        assert "src" not in attributes, tag
        if tag == "link":
            assert attributes["href"] == "data:,"
        if "http-equiv" in attributes:
            assert "connect-src 'none'" in (attributes["content"] or "")


def test_the_sections_come_in_order(page: str) -> None:
    found = [a["id"] for tag, a in Reader(page).elements if tag == "section"]
    assert found == [name for name in SECTIONS if name in found]
    assert {"run", "methods", "training", "clients", "partition", "inside", "privacy", "failures"} <= set(
        found
    )


def test_every_chart_has_words(page: str) -> None:
    charts = [
        a for tag, a in Reader(page).elements if tag == "div" and (a.get("class") or "").startswith("chart")
    ]
    assert len(charts) > 10
    assert all(chart["role"] == "img" and len(chart["aria-label"] or "") > 20 for chart in charts)


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    names = (HOSTILE * 2)[:20]
    classes = tuple(HOSTILE)
    folder = write_run(tmp_path / "run", classes=classes, names=names, domains=tuple(HOSTILE[:3]), data__name=EVIL,
                       recipe=EVIL, backbone__name=EVIL)  # fmt: skip
    write_run(tmp_path / "other", f"pkg:{EVIL}", done=2)
    runs = find_runs([tmp_path])
    page = render(runs)
    reader = Reader(page)
    assert [tag for tag, _ in reader.elements].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in reader.elements for name in attributes)
    assert "img" not in {tag for tag, _ in reader.elements}
    assert any(EVIL[:20] in text for text in reader.texts)
    assert EVIL in json.dumps(data_of(page)["clients"]["classes"]).replace("\\/", "/")
    assert "x" * 200 not in page
    series = group_runs(runs)
    for name in ("clients", "class-prompts", "mixing-weights"):
        save(build(name, series), tmp_path / f"{name}.png", tmp_path / f"{name}.svg")
        assert "<script" not in (tmp_path / f"{name}.svg").read_text()
    assert not re.search(r"(^|,)=cmd", to_csv(build("clients", series)), re.MULTILINE)
    assert {path.name for path in folder.parent.iterdir() if path.is_dir()} == {"run", "other"}


def test_embedded_data_cannot_close_its_element() -> None:
    text = embed({"name": "</script><!--\u2028", "n": 1.5})
    assert "<" not in text
    assert json.loads(text) == {"name": "</script><!--\u2028", "n": 1.5}


def test_a_large_federation_still_fits(tmp_path: Path) -> None:
    clients = 1018
    for method in ("fedvpt", "pep"):
        write_run(tmp_path / method, method, classes=tuple(map(str, range(1203))), partition__clients=clients)
    assert len(render(find_runs([tmp_path])).encode()) < LIMIT


def test_nothing_at_all_is_still_a_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("not toml at all [")
    page = render(find_runs([tmp_path]))
    assert "no readable run" in page
    assert "damaged" in page

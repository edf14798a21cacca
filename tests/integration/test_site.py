"""The documentation site builds without a warning, is whole, and needs no outside address to be read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from way_diagram import STEPS, diagram


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a copy as ``make docs`` does."""
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run(
        [str(program), "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made of."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    return folder


@pytest.fixture(scope="module")
def site(copy: Path) -> Path:
    """The built site."""
    done = built(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "site"


def test_every_page_is_built_and_stands_in_the_navigation(site: Path) -> None:
    pages = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    start = (site / "index.html").read_text()
    for page in pages:
        name = page.replace("README.md", "index.md").removesuffix(".md") + ".html"
        assert (site / name).is_file(), name
        assert re.search(rf'href="(\./)?{name}"', start), name


def test_tables_have_rules_of_their_own_on_every_page(site: Path) -> None:
    assert "white-space: nowrap" in (site / "tables.css").read_text()
    for page in (site / "index.html", site / "results" / "index.html"):
        assert re.search(r'<link[^>]*href="[^"]*tables\.css', page.read_text()), page


def test_reading_the_site_needs_no_outside_address(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(https?:[^\">\s]+)", page.read_text()
        )
        assert not loaded, f"{page.name} loads {loaded}"


def test_the_api_is_made_of_docstrings_and_mathematics_of_latex(site: Path) -> None:
    api = (site / "api.html").read_text()
    assert 'id="fedcue.run"' in api
    assert "and leave the result in the folder" in api
    concepts = (site / "concepts.html").read_text()
    assert "<math" in concepts
    assert "$$" not in concepts
    for module in STEPS.values():
        assert f'href="api.html#{module}"' in concepts
        assert f'id="{module}"' in api


def test_a_broken_link_fails_the_build(copy: Path, site: Path) -> None:
    page = copy / "docs" / "backbones.md"
    before = page.read_text()
    page.write_text(before + "\n[nowhere](no-such-page.md)\n")
    try:
        done = built(copy)
    finally:
        page.write_text(before)
    assert done.returncode != 0
    assert "page does not exist" in re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)


def test_the_way_of_the_data_is_drawn_from_the_modules() -> None:
    kept = (ROOT / "docs" / "way.svg").read_text()
    assert kept == diagram(), "run python scripts/way_diagram.py docs/way.svg"

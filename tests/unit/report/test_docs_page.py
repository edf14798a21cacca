"""The table of the paper's figures names figures, sections and recipes that exist, and misses none."""

from __future__ import annotations

import re
from pathlib import Path

from fedcue.config.recipes import recipes
from fedcue.report.figures.catalogue import FIGURES
from fedcue.report.page import SECTIONS

PAGE = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in PAGE.splitlines()
    if "`fedcue figure " in line and line.startswith("|")
]


def test_every_row_names_a_figure_its_section_and_recipes() -> None:
    assert len(ROWS) == 15  # one for each result the paper draws, or tabulates as a curve
    for _, named, command, section in ROWS:
        found = re.match(r"`fedcue figure (\S+)( --\w+ \S+)?`$", command)
        assert found, command
        entry = FIGURES[found.group(1)]
        shown = section.split(" (")[0]
        assert shown in SECTIONS.values()
        assert not entry.section or SECTIONS[entry.section] == shown
        assert set(re.findall(r"`([^`]+)`", named)) <= set(recipes())


def test_every_figure_is_on_the_page() -> None:
    for name in FIGURES:
        assert f"`{name}`" in PAGE or f"fedcue figure {name}`" in PAGE or f"fedcue figure {name} " in PAGE

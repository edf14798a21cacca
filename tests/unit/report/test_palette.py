"""Colours and marks tell methods apart."""

from __future__ import annotations

from pathlib import Path

from support.run_folders import METHODS, groups_in, write_run

from fedcue.report.figures.draw import MARKERS
from fedcue.report.palette import DARK, DARK_GROUND, LIGHT, LIGHT_GROUND, SYMBOLS, contrast


def test_every_method_of_ours_has_a_colour_and_a_mark_of_its_own(tmp_path: Path) -> None:
    for method in (*METHODS, "ncm", "cue"):
        write_run(tmp_path / method, method=method, rounds=2)
    slots = {series.slot for series in groups_in(tmp_path)}
    assert len(slots) == len({slot % len(LIGHT) for slot in slots}) == len(METHODS) + 2
    assert len(set(LIGHT)) == len(set(DARK)) == len(set(SYMBOLS)) == len(set(MARKERS)) == len(LIGHT)


def test_colours_stand_out_on_their_ground() -> None:
    assert min(contrast(colour, LIGHT_GROUND) for colour in LIGHT) >= 4.5
    assert min(contrast(colour, DARK_GROUND) for colour in DARK) >= 4.5

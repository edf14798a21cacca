"""TOML that would take gigabytes is refused in words."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from fedcue.config.layers import load, load_folder, parse
from fedcue.errors import ConfigError
from fedcue.foreign import MAX_BYTES, parse_toml

DEEP = {
    "50,000 dots": "a." * 50_000 + "a = 1",
    "1,500 parts": ".".join(["part"] * 1_500) + " = 1",
    "a table's name": f"[{'.'.join(['a'] * 1_500)}]",
    "spaces between": " . ".join(["a"] * 1_500) + " = 1",
    "quoted parts": '."\\"".'.join(["'x'"] * 800) + " = 1",
    "empty parts": ".".join(['""'] * 1_500) + " = 1",
    "an inline table": "x = {" + ".".join(["a"] * 1_500) + " = 1}",
    "dots in one quoted part": f'"{".".join(["a"] * 50_000)}" = 1',
    "too many bytes": "# " + "x" * MAX_BYTES,
}


@pytest.mark.parametrize("case", DEEP)
def test_deep_or_large_toml_is_refused_with_little_memory(tmp_path: Path, case: str) -> None:
    (tmp_path / "config.toml").write_text(DEEP[case])
    tracemalloc.start()
    try:
        for read in (load_folder, lambda folder: load(folder / "config.toml")):
            with pytest.raises(ConfigError, match="not readable TOML.*(64 dotted parts|2 MiB)"):
                read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()


def test_ordinary_numbers_lists_and_sentences_are_no_long_names() -> None:
    text = f"a = {[0.5] * 1000}\nb = 'One. Two. Three...... and so on.'\n" + "c.d.e.f = 1\n"
    assert parse_toml(text)["c"] == {"d": {"e": {"f": 1}}}


def test_a_text_of_one_long_word_is_searched_once() -> None:
    assert parse_toml(f"# {'a' * 1_000_000}") == {}


def test_a_deep_value_on_the_command_line_is_plain_text() -> None:
    text = "{" + ".".join(["a"] * 5_000) + " = 1}"
    assert parse([f"recipe={text}"]) == {"recipe": text}


def test_a_long_chain_of_bases_is_refused(tmp_path: Path) -> None:
    for number in range(3_000):
        (tmp_path / f"{number}.toml").write_text(f'base = "{number + 1}.toml"\n')
    with pytest.raises(ConfigError, match="more than 20 others"):
        load(tmp_path / "0.toml")

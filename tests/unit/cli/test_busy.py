"""What is being done is shown where somebody looks, and nowhere else."""

from __future__ import annotations

import pytest

from fedcue.cli.arguments import busy


@pytest.mark.parametrize("looks", [True, False])
def test_words_are_shown_in_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], looks: bool
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(looks)))
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    with busy("planning"):
        pass
    out, shown = capsys.readouterr()
    assert out == ""
    assert ("planning" in shown) == looks

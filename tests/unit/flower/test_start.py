"""How ``run.sh`` ends, with a ``flwr`` command that is faked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcue.flower import start

FLWR = """#!/bin/sh
echo "$@" >> {calls}
if [ "$1" = run ]; then
  echo "{line}"
  exit {code}
fi
echo '{state}'
"""


def faked(
    folder: Path,
    patch: pytest.MonkeyPatch,
    status: str,
    line: str = "Successfully started run 42",
    code: int = 0,
) -> Path:
    """Put a ``flwr`` on the path that starts run 42, which ends as asked; return where it notes its calls."""
    state = f'{{"runs": [{{"status": "{status}", "status-details": "no nodes came\\\\u001b[2J"}}]}}'
    command, calls = folder / "flwr", folder / "calls"
    command.write_text(FLWR.format(calls=calls, line=line, code=code, state=state))
    command.chmod(0o755)
    patch.setenv("PATH", str(folder), prepend=":")
    patch.setattr(start, "PATIENCE", 0.0)
    return calls


@pytest.mark.parametrize(
    ("status", "code"),
    [("finished:completed", 0), ("finished:failed", 1), ("finished:stopped", 1), ("running", 1)],
)
def test_the_runs_end_is_the_code(
    status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = faked(tmp_path, monkeypatch, status)
    assert start.main(["app", "fedcue", "--run-config", "a=1"]) == code
    assert calls.read_text().splitlines()[0] == "run app fedcue --stream --run-config a=1"
    shown = capfd.readouterr()
    assert "Successfully started run 42" in shown.out
    assert (f"run 42 was not completed ({status}): no nodes came" in shown.err) is bool(code)
    assert "\x1b" not in shown.err


def test_a_start_that_fails_keeps_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(tmp_path, monkeypatch, "finished:completed", line="cannot connect", code=3)
    assert start.main(["app", "fedcue"]) == 3


def test_a_run_whose_state_cannot_be_told_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faked(tmp_path, monkeypatch, "finished:completed")
    text = (tmp_path / "flwr").read_text()
    (tmp_path / "flwr").write_text(text[: text.rindex("echo")])
    assert start.main(["app", "fedcue"]) == 1


def test_a_start_without_a_run_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faked(tmp_path, monkeypatch, "finished:completed", line="nothing was started")
    assert start.main(["app", "fedcue"]) == 1

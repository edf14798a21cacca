"""The page while runs go on."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.run_folders import round_record, write_run

from fedcue.errors import RunFolderError
from fedcue.report import live
from fedcue.report.live import Following, serve
from fedcue.report.runs import RunRecord, read_run


def test_only_a_run_that_went_on_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "a", done=3)
    write_run(tmp_path / "b", "fedvpt", done=3)
    read: list[str] = []

    def reading(path: Path) -> RunRecord:
        read.append(path.name)
        return read_run(path)

    monkeypatch.setattr(live, "read_run", reading)
    following = Following(tmp_path)
    first = following.page()
    assert following.page() is first
    assert sorted(read) == ["a", "b"]
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(round_record(4, "pep", 0, 0.9)) + "\n")
    assert "4/20" in following.page()
    assert read[2:] == ["a"]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a folder. Give the folder that holds the runs"):
        serve(tmp_path / "nowhere", "127.0.0.1", 8765, lambda: pytest.fail("not ready"))


@pytest.mark.parametrize(
    ("host", "meant"),
    [
        ("127.0.0.1:8765", True),
        ("localhost:8765", True),
        ("10.1.2.3", True),
        ("[::1]:8765", True),
        (f"{socket.gethostname()}:8765", True),
        ("lab.example:8765", True),
        ("LAB.example", True),
        ("evil.example:8765", False),
        ("evil.example:127.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("lab.example.evil.example", False),
        ("", False),
    ],
)
def test_the_page_is_shown_under_names_of_this_machine_only(tmp_path: Path, host: str, meant: bool) -> None:
    """Another site could otherwise let its name lead here and read the page through the browser."""
    starlette = pytest.importorskip("starlette.testclient")
    client = starlette.TestClient(live.application(tmp_path, ["lab.example"]))
    assert live.is_meant(host, ["lab.example"]) is meant
    assert client.get("/", headers={"host": host}).status_code == (200 if meant else 400)
    if not meant:
        assert client.get("/events", headers={"host": host}).status_code == 400

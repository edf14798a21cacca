"""``fedcue watch`` says where the page is once it is there, and not before."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcue.cli.main import app
from fedcue.errors import ConfigError, RunFolderError


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_said_of_a_page_that_cannot_be_shown(tmp_path: Path, taken_port: int, there: bool) -> None:
    pytest.importorskip("uvicorn", reason="pip install 'fedcue[watch]'")
    folder = tmp_path if there else tmp_path / "nowhere"
    done = CliRunner().invoke(app, ["watch", str(folder), "--port", str(taken_port)])
    assert done.output == ""
    if there:
        assert isinstance(done.exception, ConfigError)
        assert f"Cannot listen on 127.0.0.1:{taken_port}" in str(done.exception)
    else:
        assert isinstance(done.exception, RunFolderError)

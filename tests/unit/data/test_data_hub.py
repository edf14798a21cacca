"""The hub path, against a small hub on this machine's loopback interface."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from data_files import encoded, write_parquet

from fedcue.data.named import fetch
from fedcue.errors import DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import sys
from fedcue.data.named import DomainNet, PACS, Parquet
from fedcue.errors import FedcueError
options = {"own": Parquet(hub="someone/owls"), "pacs": PACS(), "domainnet": DomainNet(classes=("bird",))}
try:
    dataset = options[sys.argv[1]].read()
    print(len(dataset.train), len(dataset.test), dataset.images.open(0).size)
except FedcueError as error:
    print("refused:", error)
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: the list of files and the files."""

    files: dict[str, bytes] = {}

    def log_message(self, *args: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/datasets/"):
            listing = {"id": "x/y", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            if "/tree/" in path:
                entries = [
                    {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
                    for name, data in self.files.items()
                ]
                return self.reply(json.dumps(entries).encode(), {"Content-Type": "application/json"}, body)
            return self.reply(json.dumps(listing).encode(), {"Content-Type": "application/json"}, body)
        data = self.files.get(path.split(f"/resolve/{COMMIT}/")[-1])
        if data is None:
            self.send_error(404)
            return None
        etag = hashlib.sha256(data).hexdigest()
        return self.reply(data, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)

    def reply(self, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "made.parquet"
    columns = {"label": [0, 1, 0], "domain": ["photo"] * 3}
    write_parquet(file, columns, [encoded(number) for number in range(3)], names={"label": ["bird", "ant"]})
    Hub.files = {"data/train-00000-of-00001.parquet": file.read_bytes(), "README.md": b"# owls"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def read(which: str, endpoint: str, home: Path, **more: str) -> str:
    """Read a dataset in a process of its own: the hub's address is fixed when its client is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        **more,
    }
    environment |= {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_ETAG_TIMEOUT": "5",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, which],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_dataset_is_downloaded_once_and_then_read_from_the_cache(hub: str, tmp_path: Path) -> None:
    assert read("own", hub, tmp_path / "home") == "3 0 (6, 6)"
    assert read("own", hub, tmp_path / "home", HF_HUB_OFFLINE="1") == "3 0 (6, 6)"
    assert not list((tmp_path / "home").rglob("README.md"))


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    said = read("own", "http://127.0.0.1:9", tmp_path / "home", HF_HUB_OFFLINE="1")
    assert said.startswith("refused: Dataset 'someone/owls' is not in the local cache")
    assert "data.root=FOLDER" in said


def test_an_incomplete_download_is_refused(hub: str, tmp_path: Path) -> None:
    said = read("pacs", hub, tmp_path / "home")
    assert said.startswith(
        "refused: The cached download of 'pacs' has 3 training and 0 test images instead of"
    )


def test_a_dataset_that_nobody_hosts_says_where_to_get_it() -> None:
    with pytest.raises(DataError, match=r"'inaturalist' cannot be downloaded for you\. Get it from https://"):
        fetch("inaturalist")

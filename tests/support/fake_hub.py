"""A small hub on this machine's loopback interface, with as much of its interface as a download needs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
        data = self.files.get(re.sub(r"^.*/resolve/[^/]+/", "", path))
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


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve one repository's files; give the hub's address."""
    Hub.files = dict(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_with_hub(script: str, endpoint: str, home: Path, *arguments: str, offline: bool = False) -> str:
    """Run Python in a process of its own: the hub's address is fixed when its client is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment |= {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": str(int(offline)),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
        "HF_HUB_ETAG_TIMEOUT": "5",
    }
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

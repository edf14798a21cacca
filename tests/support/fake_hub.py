"""A small hub on this machine's loopback interface: as much of its interface as up- and downloads need."""

from __future__ import annotations

import base64
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
    """One repository, whatever its name: the list of files, the files, and commits of small files."""

    files: dict[str, bytes] = {}

    def log_message(self, *args: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.split("?")[0]
        answer: dict[str, object] = {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(asked)["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        elif path == "/api/repos/create":
            made = json.loads(asked)
            answer = {"url": f"http://{self.headers['Host']}/{made['organization']}/{made['name']}"}
        elif path.endswith("/commit/main"):
            lines = [json.loads(line) for line in asked.splitlines()]
            for file in (line["value"] for line in lines if line["key"] == "file"):
                self.files[file["path"]] = base64.b64decode(file["content"])
            answer = {"commitUrl": f"http://{self.headers['Host']}/x/y/commit/{COMMIT}", "commitOid": COMMIT}
        self.reply(json.dumps(answer).encode(), {"Content-Type": "application/json"}, body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith(("/api/datasets/", "/api/models/")):
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
        "HF_TOKEN": "hf_of_nobody",
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

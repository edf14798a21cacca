"""The gate before a real SuperLink: a node trains through it, and nothing else gets in from outside."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SMALL

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

import httpx
from flower_deployment import OUTSIDE, Deployment, children, environment, until
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from gate_tricks import GOOD, TRICKS, head, is_refused, received

from fedcue.flower.gate.rules import PATHS

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]
LEGACY = {"FLWR_INTERNAL_GRPC_CONTROL_API": "1", "FLWR_INTERNAL_GRPC_FLEET_API": "1"}
"""With these in its environment, Flower opens two more ports on all addresses."""
SETTINGS = [
    *SMALL, "method=fedvpt", "rounds=1", "snapshots=[]", "data.train_per_class=6", "data.test_per_class=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("gate") / "here", 1)
    try:
        deployment.init()
        deployment.start_superlink(**LEGACY)
        yield deployment
    finally:
        deployment.close()


def trusted(deployment: Deployment) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(deployment.folder / "node-1" / "ca.crt"))


def trusting() -> ssl.SSLContext:
    """Trust anybody, as somebody without the CA's certificate would."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def routes() -> set[tuple[str, str]]:
    """Return every method and path that Flower's SuperLink serves, from its own routers."""
    from fastapi.routing import iter_route_contexts
    from flwr.superlink.main import create_app

    found = set()
    for context in iter_route_contexts(create_app().routes):
        found |= {(method, context.path) for method in context.methods or {"GET"}}
    return found


def asked(context: ssl.SSLContext, place: tuple[str, int], text: bytes) -> bytes:
    """Send bytes as they are over TLS and return all that comes back."""
    plain = socket.create_connection(place, timeout=30)
    with context.wrap_socket(plain, server_hostname=place[0]) as outside:
        outside.sendall(text)
        return received(outside)


def listening(pid: int) -> set[tuple[str, int]]:
    """Return where a process and its descendants listen."""
    sockets = set()
    for process in [pid, *children(pid)]:
        for link in Path(f"/proc/{process}/fd").iterdir():
            with_number = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)) if link.is_symlink() else None
            sockets |= {with_number.group(1)} if with_number else set()
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def test_only_the_gate_listens_outside(deployment: Deployment) -> None:
    here = listening(deployment.processes["superlink"].pid)
    assert here == {(OUTSIDE, deployment.port), ("127.0.0.1", deployment.superlink_port)}


def test_the_superlink_cannot_be_reached_from_outside(deployment: Deployment) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OUTSIDE, deployment.superlink_port), timeout=10)


def test_the_gate_knows_every_call_that_nodes_have() -> None:
    """A release of Flower with other calls fails here, before it fails a node."""
    fleet = {(method, path) for method, path in routes() if path.startswith("/v1/fleet/")}
    itself = {("POST", "/v1/fleet/register-node"), ("POST", "/v1/fleet/unregister-node")}
    assert fleet == {("POST", path) for path in PATHS.values()} | itself


@pytest.mark.parametrize("with_authority", [True, False], ids=["with the CA", "without the CA"])
def test_every_other_path_of_flower_is_refused_from_outside(
    deployment: Deployment, with_authority: bool
) -> None:
    others = {(method, path) for method, path in routes() if path not in PATHS.values()}
    assert len([path for _, path in others if path.startswith("/v1/control/")]) >= 40
    assert len([path for _, path in others if path.startswith("/v1/runtime/")]) >= 20
    context = trusted(deployment) if with_authority else trusting()
    headers = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    with (
        httpx.Client(verify=context, trust_env=False) as client,
        httpx.Client(verify=trusted(deployment), trust_env=False) as inside,
    ):
        for method, path in sorted(others):
            answer = client.request(
                method, f"https://{OUTSIDE}:{deployment.port}{path}", content=b"", headers=headers
            )
            assert (answer.status_code, answer.text[:8]) == (404, "" if method == "HEAD" else "refused:"), (
                path
            )
        open_inside = f"https://127.0.0.1:{deployment.superlink_port}/v1/control/list-runs"
        assert inside.post(open_inside, content=b"", headers=headers).status_code == 200


def test_whoever_does_not_trust_the_authority_does_not_connect(deployment: Deployment) -> None:
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        httpx.post(f"https://{OUTSIDE}:{deployment.port}{GOOD}", content=b"", trust_env=False)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{OUTSIDE}:{deployment.port}{GOOD}", content=b"", trust_env=False)


def test_every_trick_is_refused(deployment: Deployment) -> None:
    before = deployment.log("superlink").count('HTTP/1.1"')
    for name, text in TRICKS.items():
        answer = asked(trusted(deployment), (OUTSIDE, deployment.port), text)
        assert is_refused(answer), (name, answer[:200])
    assert deployment.log("superlink").count('HTTP/1.1"') == before, "nothing reached the SuperLink"
    passed = asked(trusted(deployment), (OUTSIDE, deployment.port), head(GOOD, "Content-Length: 0"))
    assert passed.startswith(b"HTTP/1.1 4")
    assert deployment.log("superlink").count('HTTP/1.1"') == before + 1, "which would be seen"


def test_flowers_own_commands_do_nothing_from_outside(deployment: Deployment, tmp_path: Path) -> None:
    """A stranger with the CA's certificate, and even with all of the server's folder, starts and registers nothing."""
    stranger = tmp_path / "stranger"
    shutil.copytree(
        deployment.folder / "server", stranger, ignore=shutil.ignore_patterns("state.db*", "runs")
    )
    config = stranger / "config.toml"
    inside = f"127.0.0.1:{deployment.superlink_port}"
    for place, expected in ((f"{OUTSIDE}:{deployment.port}", False), (inside, True)):
        config.write_text(re.sub(r'address = ".*"', f'address = "{place}"', config.read_text()))
        for command in (["supernode", "list", "fedcue"], ["list", "fedcue"]):
            done = subprocess.run(
                [str(Path(sys.executable).with_name("flwr")), *command],
                env=at_home(stranger),
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert (done.returncode == 0) is expected, (place, command, done.stdout, done.stderr)
    config.write_text(config.read_text().replace(inside, f"{OUTSIDE}:{deployment.port}"))
    for command in (
        ["run", str(stranger / "app"), "fedcue"],
        ["supernode", "register", str(stranger / "keys" / "node-1.pub"), "fedcue"],
    ):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("flwr")), *command],
            env=at_home(stranger),
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0, (command, done.stdout)


def at_home(folder: Path) -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return environment(FLWR_HOME=str(folder), **quiet)


def test_a_node_behind_the_gate_trains_and_run_sh_says_so(deployment: Deployment) -> None:
    assert deployment.start("register", "server/register.sh").wait(120) == 0
    deployment.start_node(1)
    run = deployment.run("trained", " ".join(SETTINGS))
    folder = deployment.result("trained")
    assert run.wait(120) == 0, deployment.log("run-trained")
    assert (folder / "model.safetensors").is_file()
    assert "mean accuracy" in deployment.log("run-trained")
    assert "refused" not in deployment.log("superlink").split("/v1/fleet/activate-node")[-1]


def test_run_sh_ends_with_the_code_of_a_run_that_failed(deployment: Deployment) -> None:
    run = deployment.run("failed", "method=nonsense")
    assert run.wait(300) == 1
    assert "was not completed (finished:failed)" in deployment.log("run-failed")
    assert "Unknown method 'nonsense'" in deployment.log("run-failed").splitlines()[-1]


def test_gate_and_superlink_end_together(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "here", 1)
    deployment.init()
    places = [(OUTSIDE, deployment.port), ("127.0.0.1", deployment.superlink_port)]

    def closed() -> bool:
        return all(socket.socket().connect_ex(place) for place in places)

    try:
        for ending, expected in (("terminate", 0), ("kill the gate", -signal.SIGKILL), ("kill Flower", None)):
            deployment.start_superlink()
            assert not closed()
            process = deployment.processes["superlink"]
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
            if ending == "terminate":
                process.terminate()
            else:
                os.kill(process.pid if ending == "kill the gate" else first, signal.SIGKILL)
            code = process.wait(60)
            assert code == expected if expected is not None else code > 0, ending
            until(closed, f"both to end after: {ending}", 60)
        deployment.start_superlink()
        second = subprocess.run(
            [str(deployment.folder / "server" / "superlink.sh")],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode == 2
        assert f"The gate cannot listen on https://{OUTSIDE}:{deployment.port}" in second.stderr
    finally:
        deployment.close()

"""Processes of messages are forked: from a template, then from a keeper; whoever dies, the others go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from support import ROOT

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec

from fedcue.flower import forking, superexec

STAND_IN = """
import os, signal, sys, time
from pathlib import Path
from fedcue.flower import template
from fedcue.machine import shared_zeros

HELD = {}

def read_again(text):
    if text == "broken":
        raise OSError("the images are gone")
    if text == "slow":
        time.sleep(600)
    HELD[text] = shared_zeros([1])

def message():
    file, action = sys.argv[1:]
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action.startswith("read "):
        template.holdings.was_read.append(action[5:])
    for value in HELD.values():
        value += 1
    counts = {name: int(value) for name, value in HELD.items()}
    found = {"pid": os.getpid(), "parent": os.getppid(), "held": counts}
    threads = len(os.listdir("/proc/self/task"))
    Path(file + ".part").write_text(repr({**found, "threads": threads}))
    os.rename(file + ".part", file)
    sys.exit(3)

template.holdings.read_again, template.flwr_clientapp = read_again, message
template.main()
"""
PATIENCE = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Serving:
    """A template at work on messages that only say where they run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        script = folder / "stand_in.py"
        script.write_text(STAND_IN)
        self.orders, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, str(script), str(there.fileno())]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, pass_fds=[there.fileno()], env=environment)
        there.close()

    def order(self, action: str = "say") -> Path:
        self.count += 1
        file = self.folder / f"said-{self.count}"
        self.orders.sendall(json.dumps([str(file), action]).encode())
        return file

    def said(self, file: Path) -> dict[str, object]:
        until(file.exists, "a message was not carried out")
        return dict(eval(file.read_text()))

    def kept(self, text: str) -> int:
        """Let a keeper be made, and return its process once messages come from there."""
        self.said(self.order(f"read {text}"))
        parent = self.process.pid

        def moved() -> bool:
            nonlocal parent
            parent = self.said(self.order())["parent"]  # type: ignore[assignment]
            return parent != self.process.pid

        until(moved, "no keeper was made")
        return parent


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("template"))
    yield serving
    serving.orders.close()
    serving.process.kill()
    serving.process.wait()


@pytest.fixture
def serving(process: Serving) -> Serving:
    """Return the template, which takes a second or more to start, without a keeper."""
    process.said(process.order("read broken"))
    until(lambda: process.said(process.order())["parent"] == process.process.pid, "a keeper stays")
    return process


def test_every_message_has_a_process_of_its_own_that_may_die(serving: Serving) -> None:
    first = serving.said(serving.order())
    serving.order("die")
    second = serving.said(serving.order())
    assert first["parent"] == second["parent"] == serving.process.pid
    assert first["pid"] != second["pid"]
    assert first["held"] == {}
    assert first["threads"] == 1, "it must be safe to fork"


def test_what_one_message_read_is_there_for_the_next_and_they_share_it(serving: Serving) -> None:
    keeper = serving.kept("run 1")
    held = [serving.said(serving.order())["held"] for _ in range(3)]
    assert [set(one) for one in held] == [{"run 1"}] * 3  # type: ignore[call-overload]
    counts = [one["run 1"] for one in held]  # type: ignore[index]
    assert counts == sorted(set(counts)), "each finds what those before it computed"
    assert alive(keeper)


def test_another_run_takes_the_place_of_the_first(serving: Serving) -> None:
    first = serving.kept("run 1")
    serving.said(serving.order("read run 2"))
    until(lambda: "run 2" in serving.said(serving.order())["held"], "no other keeper")  # type: ignore[operator]
    assert set(serving.said(serving.order())["held"]) == {"run 2"}  # type: ignore[call-overload]
    until(lambda: not alive(first), "the first keeper goes on holding memory")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_keeper_that_is_killed_is_done_without(serving: Serving, how: int) -> None:
    keeper = serving.kept("run 1")
    os.kill(keeper, how)
    until(lambda: not alive(keeper), "the keeper lives")
    time.sleep(0.1)
    assert serving.said(serving.order())["parent"] == serving.process.pid
    assert serving.kept("run 1") != keeper


@pytest.mark.parametrize("text", ["broken", "slow"])
def test_messages_go_on_while_a_keeper_cannot_read(serving: Serving, text: str) -> None:
    serving.said(serving.order(f"read {text}"))
    for _ in range(3):
        assert serving.said(serving.order())["parent"] == serving.process.pid


def test_nothing_stays_when_nobody_gives_orders(serving: Serving) -> None:
    keeper = serving.kept("run 1")
    serving.orders.close()
    assert serving.process.wait(PATIENCE) == 0
    until(lambda: not alive(keeper), "the keeper outlives the template")


ONE_AT_A_TIME = """
import json, os, socket, sys
orders = socket.socket(fileno=int(sys.argv[1]))
while order := orders.recv(1000):
    (file,) = json.loads(order)
    with open(file + ".part", "w") as written:
        written.write(str(os.getpid()))
    os.rename(file + ".part", file)
"""


def test_a_killed_template_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand_in.py").write_text(ONE_AT_A_TIME)
    monkeypatch.setattr(forking, "TEMPLATE", (sys.executable, str(tmp_path / "stand_in.py")))
    monkeypatch.setattr(forking, "arguments", lambda spec: [spec.token])
    executor = forking.ForkingExecutor()

    def carried_out(name: str) -> int:
        executor.launch(spec(str(tmp_path / name)))
        until((tmp_path / name).exists, "a message was not carried out")
        return int((tmp_path / name).read_text())

    try:
        first = carried_out("one")
        assert carried_out("two") == first
        os.kill(first, signal.SIGKILL)
        until(lambda: not alive(first), "the template lives")
        assert carried_out("three") != first
    finally:
        executor.close()


def spec(token: str, **more: object) -> ExecutionSpec:
    given: dict[str, object] = {
        "task_type": TaskType.CLIENT_APP, "runtime_api_address": "127.0.0.1:9094", "token": token,
        "insecure": True, "root_certificates_path": None, "runtime_dependency_install": False,
        "parent_pid": 7, "suppress_output": False, "task_id": 1,
    }  # fmt: skip
    return ExecutionSpec(**{**given, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"insecure": False, "root_certificates_path": "ca.crt"}])
def test_flower_is_told_what_its_own_executor_tells_it(
    more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.supercore.superexec.executor import subprocess_executor

    started: list[list[str]] = []
    monkeypatch.setattr(subprocess_executor.subprocess, "Popen", started.append)
    subprocess_executor.SubprocessExecutor().launch(spec("secret", **more))
    assert started == [["flwr-clientapp", *forking.arguments(spec("secret", **more))]]


def test_another_version_of_flower_runs_its_own_superexec_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.supercore.superexec import run_superexec

    def replaced(file: str, command: list[str]) -> NoReturn:
        raise SystemExit(" ".join([file, *command]))

    monkeypatch.delattr(run_superexec, "get_executor")
    monkeypatch.setattr(superexec, "end_with_parent", lambda: None)
    monkeypatch.setattr(superexec.os, "execvp", replaced)
    monkeypatch.setattr(sys, "argv", ["superexec", "--parent-pid", str(os.getppid())])
    with pytest.raises(SystemExit) as own:
        superexec.main()
    assert own.value.code == f"flower-superexec flower-superexec --parent-pid {os.getppid()} --insecure"
    assert "which is slower. Give Flower 1.41." in caplog.text


def test_a_superexec_ends_with_its_supernode_even_before_anybody_asks_how_that_ended(tmp_path: Path) -> None:
    """The SuperNode here is a shell that lives for a moment, and is not waited for."""
    command = (
        f"{sys.executable} -P -m fedcue.flower.superexec --runtime-api-address 127.0.0.1:9 --parent-pid $$ &"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "FLWR_TELEMETRY_ENABLED": "0"}
    for seconds in (0, 8):
        started = subprocess.Popen(
            ["sh", "-c", f"{command} echo $!; exec sleep {seconds}"],
            env={**environment, "FLWR_DISABLE_UPDATE_CHECK": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert started.stdout is not None
        superexec_pid = int(started.stdout.readline())
        until(lambda: not alive(started.pid), "the SuperNode goes on")  # noqa: B023
        until(lambda: not alive(superexec_pid), "its SuperExec outlives it")  # noqa: B023
        until(lambda: started.stdout.read() == "", "somebody still holds its output")  # noqa: B023
        assert started.wait(10) == 0

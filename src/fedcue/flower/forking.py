"""What Flower's SuperExec starts message processes with: a template forks them."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor

log = logging.getLogger(__name__)
TEMPLATE = (sys.executable, "-P", "-m", "fedcue.flower.template")


class ForkingExecutor(SubprocessExecutor):
    """Starts the processes of messages as forks of a template; a template that ended is replaced."""

    def __init__(self) -> None:
        self._template = self._begin()

    def _begin(self) -> socket.socket:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = there.fileno()
        subprocess.Popen([*TEMPLATE, str(number)], pass_fds=[number], stdin=subprocess.DEVNULL)
        there.close()
        return here

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Let a process carry out what a message asks for."""
        if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        order = json.dumps(arguments(spec)).encode()
        try:
            self._template.sendall(order)
        except OSError:
            log.warning("the template of message processes has ended; another is started")
            self._template.close()
            self._template = self._begin()
            self._template.sendall(order)
        return LaunchResult.accepted()

    def close(self) -> None:
        """Let the template end."""
        self._template.close()


def arguments(spec: ExecutionSpec) -> list[str]:
    """Return what Flower's own executor gives ``flwr-clientapp``."""
    words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.insecure:
        words.append("--insecure")
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    if spec.parent_pid is not None:
        words += ["--parent-pid", str(spec.parent_pid)]
    return words

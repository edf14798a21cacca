"""``python -m fedcue.flower.superexec``: Flower's SuperExec, whose message processes are forked.

A SuperNode with ``--isolation process`` leaves it to a SuperExec to start a process for each message.
Flower's own starts Python anew every time. This one asks a template (``fedcue.flower.template``) to fork.
Flower has no setting for that: its function that chooses the executor is replaced. A version of Flower
without that function runs its own SuperExec, which is slower and does the same.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib.metadata import version

from fedcue.machine import end_with_parent

log = logging.getLogger(__name__)


def main() -> None:
    """Run Flower's SuperExec with forked processes, without TLS: a SuperNode listens on loopback alone.

    It ends with its SuperNode. Flower's own watch takes one that has ended for alive until somebody asks how.
    """
    end_with_parent()
    if str(os.getppid()) not in sys.argv:  # it has ended already
        return
    sys.argv.append("--insecure")
    try:
        from flwr.supercore.cli import flower_superexec
        from flwr.supercore.superexec import run_superexec

        from fedcue.flower.forking import ForkingExecutor

        if not hasattr(run_superexec, "get_executor"):
            raise ImportError("run_superexec has no get_executor")
    except ImportError as error:
        log.warning(
            "Flower %s starts its message processes in a way that fedcue does not know (%s). Every message "
            "starts Python anew, which is slower. Give Flower 1.41.",
            version("flwr"),
            error,
        )
        os.execvp("flower-superexec", ["flower-superexec", *sys.argv[1:]])
    run_superexec.get_executor = lambda *given, **more: ForkingExecutor()
    flower_superexec()


if __name__ == "__main__":
    main()

"""Methods that bring trouble to a Ray cluster, in the middle of a visit and once only."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedcue.errors import ClientError
from fedcue.methods.client import Client
from fedcue.methods.fedvpt import FedVPT
from fedcue.types import Tensors, Update


def first(path: str) -> bool:
    """Tell whether nobody has been here before: the first to come leaves a file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Deadly(FedVPT):
    """In the second round, one client's work ends its worker and another's ends its node, with -9."""

    name: ClassVar[str] = "deadly"
    marks: str = Field(default="", description="folder of marks; head says which node must live")

    def update(self, client: Client, sent: Tensors) -> Update:
        update = super().update(client, sent)
        if client.round == 1:
            self._strike()
        return update

    def _strike(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        if first(f"{self.marks}/worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if ray.get_runtime_context().get_node_id() == Path(self.marks, "head").read_text():
            self._leave_the_others_to_other_nodes()
        elif first(f"{self.marks}/node"):
            os.kill(os.getppid(), signal.SIGKILL)  # the raylet that started this worker
            time.sleep(60)

    def _leave_the_others_to_other_nodes(self) -> None:
        """Wait until another node had a visit, whose worker may take longer to start than all visits here."""
        for _ in range(600):
            if Path(self.marks, "node").exists():
                return
            time.sleep(0.1)


class Buggy(FedVPT):
    """A bug at the clients."""

    name: ClassVar[str] = "buggy"

    def update(self, client: Client, sent: Tensors) -> Update:
        raise ZeroDivisionError(f"a line of the author's at client {client.id}")


class Frail(FedVPT):
    """Every client but one fails honestly in the first round."""

    name: ClassVar[str] = "frail"

    def update(self, client: Client, sent: Tensors) -> Update:
        if client.round == 0 and client.id != 1:
            raise ClientError("its disk is full")
        return super().update(client, sent)

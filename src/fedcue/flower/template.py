"""The process from which a node's message processes are forked: it has imported everything and is idle.

It keeps nothing of any run. A message process that has read a node's images and backbone says so when it
ends. Then the template forks a *keeper*, which reads them, too, and from which further processes are forked
as soon as it is ready: they find images, weights and what the frozen backbone computes without prompts in
memory that all of them share. A message of another run reads anew and gets a keeper of its own. What a
client must remember lies on the disk, as before, and a process that fails takes nothing with it.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

import fedcue.flower.client_app  # noqa: F401  (so that no message process imports it)
from fedcue.flower import holdings
from fedcue.machine import end_with_parent

_REST = 600.0
"""Seconds without a message after which a keeper ends and frees its memory."""
LONGEST = 2**20
"""Bytes of an order, or of the words that say what was read."""
READY = b"ready"


def main() -> None:
    """Serve the SuperExec at the other end of a socket until it is gone."""
    end_with_parent()
    torch.set_num_threads(1)  # a process forked from one that used more would wait for them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears up after children
    Template(socket.socket(fileno=int(sys.argv[1]))).serve()


@dataclass
class Keeper:
    """A forked process that holds what a run needs of a node, and forks message processes itself."""

    orders: socket.socket
    ready: bool = False


class Template:
    """Forks a process for every order, from the keeper if there is one."""

    def __init__(self, orders: socket.socket) -> None:
        self.orders = orders
        self.heard, self.told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.keeper: Keeper | None = None

    def serve(self) -> None:
        """Take orders until the other end is closed."""
        while True:
            readable, _, _ = select.select(self._own(), [], [])
            if self.keeper and self.keeper.orders in readable:
                self._listen(self.keeper)
            if self.heard in readable:
                self._keep(self.heard.recv(LONGEST))
            if self.orders in readable:
                order = self.orders.recv(LONGEST)
                if not order:
                    return
                self._start(order)

    def _own(self) -> list[socket.socket]:
        """Return what only the template listens to."""
        return [self.orders, self.heard, *([self.keeper.orders] if self.keeper else [])]

    def _listen(self, keeper: Keeper) -> None:
        """Learn that the keeper is ready, or that it has ended."""
        try:
            keeper.ready = keeper.orders.recv(LONGEST) == READY
        except OSError:
            keeper.ready = False
        if not keeper.ready:
            self._forget()

    def _forget(self) -> None:
        """Let the keeper end; processes that it has forked go on."""
        if self.keeper:
            self.keeper.orders.close()
            self.keeper = None

    def _start(self, order: bytes) -> None:
        if self.keeper and self.keeper.ready:
            try:
                self.keeper.orders.sendall(order)
                return
            except OSError:
                self._forget()
        forked(lambda: carry_out(order, self.told), self._own())

    def _keep(self, what: bytes) -> None:
        """Fork a keeper of what a process has read, in place of the one there is."""
        self._forget()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        forked(lambda: keep(what, there, self.told), [here, *self._own()])
        there.close()
        self.keeper = Keeper(here)


def keep(what: bytes, orders: socket.socket, told: socket.socket) -> None:
    """Read what another process has read, then fork a process for every order until no more come."""
    end_with_parent()
    logging.disable()  # whatever there is to say of the images was said
    holdings.read_again(what.decode())
    logging.disable(logging.NOTSET)
    orders.settimeout(_REST)
    with suppress(OSError):
        orders.sendall(READY)
        while order := orders.recv(LONGEST):
            forked(partial(carry_out, order, told), [orders])


def carry_out(order: bytes, told: socket.socket) -> None:
    """Run ``flwr-clientapp`` for one message; then report what was read for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = ["flwr-clientapp", *json.loads(order)]
    holdings.was_read.clear()
    try:
        flwr_clientapp()
    finally:
        for text in holdings.was_read[-1:]:
            with suppress(OSError):  # too long to be sent, or the other end is closed
                told.sendall(text.encode())


def forked(work: Callable[[], None], foreign: Sequence[socket.socket]) -> None:
    """Let a new process do some work and end; it closes the foreign sockets."""
    sys.stdout.flush()
    sys.stderr.flush()
    if not os.fork():
        for one in foreign:
            one.close()
        _end(work)


def _end(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

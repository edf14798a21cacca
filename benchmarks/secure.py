"""What secure summation costs in bytes and seconds: ``python benchmarks/secure.py``.

All clients and the server take turns in one process; seconds are those of a processor's core, without
waiting. A vector has as many words as PEP-FedPT sends floats on CIFAR-100. A tenth of the clients drop
out after their keys are shared, when a drop-out costs the server most; ``--dropped 0`` has none.
"""

from __future__ import annotations

import argparse
import secrets
import time
from collections import defaultdict

import numpy as np

from fedcue.secure import keys
from fedcue.secure.client import Client
from fedcue.secure.fixed_point import Words
from fedcue.secure.server import Server
from fedcue.secure.session import Session, Step

WORDS = 384_768
COLUMNS = (
    "clients", "dropped", "MB up, each", "MB down, each", "up, times float32", "s, a client", "of it masking",
    "s, server", "of it unmasking",
)  # fmt: skip


class Costs:
    """Bytes of one client (its largest way through) and seconds by who worked at which step."""

    def __init__(self) -> None:
        self.up: dict[int, int] = defaultdict(int)
        self.down: dict[int, int] = defaultdict(int)
        self.client: dict[Step, float] = defaultdict(float)
        self.server: dict[Step, float] = defaultdict(float)

    def row(self, clients: int, dropped: int, words: int) -> str:
        """Return the costs as a line of the table."""
        up, down = max(self.up.values()) / 1e6, max(self.down.values()) / 1e6
        client, server = sum(self.client.values()) / clients, sum(self.server.values())
        masking, unmasking = self.client[Step.MASK] / (clients - dropped), self.server[Step.UNMASK]
        times = up * 1e6 / (4 * words)
        numbers = (
            f"{up:.3f}",
            f"{down:.3f}",
            *(f"{x:.2f}" for x in (times, client, masking, server, unmasking)),
        )
        return line(str(clients), str(dropped), *numbers)


def line(*cells: str) -> str:
    """Return cells as a line of a table."""
    return f"| {' | '.join(cells)} |"


def answer(client: Client, request: bytes, words: Words) -> bytes:
    """Return the client's reply to a request."""
    if client.step == Step.MASK:
        return client.mask(request, words)
    steps = {Step.SHARE: client.share_keys, Step.CONFIRM: client.confirm, Step.UNMASK: client.unmask}
    return client.advertise() if client.step == Step.ADVERTISE else steps[client.step](request)


def measure(number: int, dropped: int, words: int) -> Costs:
    """Play one round and check its sum."""
    identities = {client: secrets.token_bytes(32) for client in range(number)}
    public = {client: keys.identity_key(secret) for client, secret in identities.items()}
    session = Session("benchmark", 0, 0, public, 2 * number // 3 + 1, words)
    clients = {client: Client(session, client, secret) for client, secret in identities.items()}
    server, costs, vector = Server(session), Costs(), np.arange(words, dtype=np.uint64)
    requests = dict.fromkeys(clients, b"")
    while server.step != Step.DONE:
        step = server.step
        if step == Step.MASK:
            requests = {client: request for client, request in requests.items() if client >= dropped}
        for client, request in requests.items():
            begun = time.process_time()
            reply = answer(clients[client], request, vector)
            replied = time.process_time()
            server.receive(client, reply)
            costs.client[step] += replied - begun
            costs.server[step] += time.process_time() - replied
            costs.up[client] += len(reply)
            costs.down[client] += len(request)
        begun = time.process_time()
        requests = server.advance()
        costs.server[step] += time.process_time() - begun
    assert np.array_equal(server.total, vector * np.uint64(number - dropped))
    return costs


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--words", type=int, default=WORDS)
    parser.add_argument("--dropped", type=float, nargs="+", default=[0.0, 0.1], help="shares of the clients")
    arguments = parser.parse_args()
    print(line(*COLUMNS), line(*["---"] * len(COLUMNS)), sep="\n")
    for number in arguments.clients:
        for share in arguments.dropped:
            dropped = int(share * number)
            print(measure(number, dropped, arguments.words).row(number, dropped, arguments.words), flush=True)


if __name__ == "__main__":
    main()

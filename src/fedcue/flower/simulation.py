"""A run on Flower's own simulator (Ray), to compare it with ours."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedcue.config.layers import load
from fedcue.errors import FedcueError
from fedcue.flower.client_app import app as client_app
from fedcue.flower.server_app import Deployment, LogObserver, serve, tell_the_log
from fedcue.rounds.result import Result
from fedcue.rounds.resume import default_folder


def simulate(recipe: str, overrides: Sequence[str], out: Path | None, nodes: int) -> Result:
    """Run a recipe with its clients on simulated nodes, one core each."""
    if find_spec("ray") is None:
        raise FedcueError("Flower's simulator needs Ray: pip install 'fedcue[flower-simulation]'.")
    folder = (out or default_folder(load(recipe, overrides))).absolute()
    deployment = Deployment(recipe=recipe, settings=shlex.join(overrides), out=str(folder), bind_nodes=False)
    results: list[Result] = []
    logging.getLogger("flwr").setLevel(logging.ERROR)
    tell_the_log()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        results.append(serve(grid, deployment, LogObserver()))

    run_simulation(server, client_app, nodes, backend_config={"client_resources": {"num_cpus": 1}})
    if not results:
        raise FedcueError("Flower's simulation did not finish; its log says why.")
    return results[0]

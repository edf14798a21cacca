"""The tuned contender on Flower's simulator (flwr 1.41 with Ray): only trainable tensors travel."""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import torch
from contenders import Outcome
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Task

import fedcue

HERE = str(Path(__file__).parent)


@cache
def task_here(settings: tuple[str, ...]) -> Task:
    """Return the task, made once in each of Ray's processes and kept there."""
    torch.set_num_threads(1)
    return Task(fedcue.configure("default", list(settings)))


def client_app() -> ClientApp:
    """Return the app that trains whichever client a message names."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sys.path.insert(0, HERE)  # in Ray's process, which has its own
        from on_flower import task_here as task_of

        content: Any = message.content
        config, values = content["config"], content["arrays"].to_torch_state_dict()
        task = task_of(tuple(config["settings"]))
        trained = task.tuned_visit(int(config["client"]), int(config["round"]), values)
        done: Any = {"arrays": ArrayRecord(trained), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(done), reply_to=message)

    return app


class Sampled(FedAvg):
    """FedAvg with fedcue's sample of clients, and a note of when each round started and ended."""

    def __init__(self, task: Task, settings: list[str], nodes: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=nodes)
        self.task, self.settings = task, settings
        self.starts: list[float] = []
        self.ends: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """Send the parameters to any node for each sampled client."""
        self.starts.append(time.time())
        nodes = sorted(grid.get_node_ids())
        for number, client in enumerate(self.task.sampled(server_round - 1)):
            values: Any = {"client": client, "round": server_round - 1, "settings": self.settings}
            content = RecordDict({"arrays": arrays, "config": ConfigRecord(values)})
            yield Message(content, dst_node_id=nodes[number % len(nodes)], message_type=MessageType.TRAIN)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average as FedAvg does."""
        result = super().aggregate_train(server_round, replies)
        self.ends.append(time.time())
        return result


def run(task: Task, settings: list[str], rounds: int, workers: int) -> Outcome:
    """Run some rounds on ``workers`` of Ray's processes."""
    server, kept = ServerApp(), {}
    nodes = task.config.clients_per_round
    strategy = Sampled(task, settings, nodes)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.05)
        result = strategy.start(grid, ArrayRecord(task.start), num_rounds=rounds)
        kept["values"] = dict(result.arrays.to_torch_state_dict())

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    start = {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False}
    backend: Any = {"client_resources": resources, "init_args": start}
    run_simulation(server, client_app(), num_supernodes=nodes, backend_config=backend)
    return list(zip(strategy.starts, strategy.ends, strict=True)), kept["values"]

"""The tuned contender on pfl (0.6): its simulated backend, its federated averaging, our batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from contenders import Outcome
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import Mixing, Parameters, Task, plain_logits
from torch import Tensor, nn

TEST_BATCH = 10**9


class Prompted(nn.Module):
    """The plain blocks with trainable tensors beside them, with the two methods pfl asks for."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.backbone, self.task = task.backbone, task
        self.mixing: Mixing | None = None
        for name, tensor in task.start.items():
            setattr(self, name, nn.Parameter(tensor.clone()))
        self.trained = {name: getattr(self, name) for name in task.start}

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """Return the mean cross-entropy."""
        with self.task.autocast():
            logits = plain_logits(self.backbone, self.trained, images, self.mixing)
        return nn.functional.cross_entropy(logits.float(), labels)

    def metrics(self, images: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:
        """Return nothing worth computing."""
        return {"images": Weighted(len(labels), 1)}


class Epochs(Dataset):
    """A client's images in the batches of each epoch, one epoch per call of ``iter``."""

    def __init__(self, task: Task, client: int, round_: int) -> None:
        images, labels = task.images(client)
        super().__init__(raw_data=[images, labels], user_id=str(client))
        self.orders = iter(task.orders(client, round_))

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        """Yield the next epoch's batches; pfl's test before round 0 gets all, and costs nothing."""
        images, labels = self.raw_data
        if batch_size == TEST_BATCH:
            yield [images, labels]
            return
        for rows in next(self.orders).split(batch_size or len(labels)):
            yield [images[rows], labels[rows]]


class Rounds(TrainingProcessCallback):
    """Notes when each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, **kwargs: Any
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        self.ends.append(time.time())
        return False, Metrics()


def run(task: Task, rounds: int) -> Outcome:
    """Run some rounds in this process."""
    return federated(task, [task.sampled(round_) for round_ in range(rounds)])


def visit(task: Task, client: int, round_: int, values: Parameters) -> Parameters:
    """Let one client be a round by itself."""
    task.describe(lambda: plain_logits(task.backbone, values, task.images(client)[0], task.mixing(client)))
    return federated(task, [[client]], round_)[1]


def federated(task: Task, sampled: list[list[int]], first: int = 0) -> Outcome:
    """Run a round with each list of clients."""
    training, module, rounds = task.config.training, Prompted(task), len(sampled)
    visits = iter([(client, first + place) for place, own in enumerate(sampled) for client in own])
    round_now = [first]

    def dataset_of(visit: tuple[int, int]) -> Epochs:
        round_now[0], module.mixing = visit[1], task.mixing(visit[0])
        return Epochs(task, *visit)

    def optimiser(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return task.optimiser(module.trained, round_now[0])

    model = PyTorchModel(module, optimiser, torch.optim.SGD(module.trained.values(), lr=1.0))
    data = FederatedDataset(dataset_of, lambda: next(visits))
    backend = SimulatedBackend(training_data=data, val_data=data)
    parameters = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds + 1,
        train_cohort_size=len(sampled[0]),
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(
        local_num_epochs=training.epochs,
        local_learning_rate=training.lr,
        local_batch_size=training.batch_size,
        local_max_grad_norm=training.clip_norm,
    )
    watch, started = Rounds(), time.time()
    FederatedAveraging().run(
        algorithm_params=parameters,
        backend=backend,
        model=model,
        model_train_params=local,
        model_eval_params=NNEvalHyperParams(local_batch_size=TEST_BATCH),
        callbacks=[watch],
    )
    spans = list(zip([started, *watch.ends[:-1]], watch.ends, strict=True))
    return spans, {name: tensor.detach().clone() for name, tensor in module.trained.items()}

"""A trained model as one module, and that module as one traced program: from pixels to probabilities."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node

from fedcue.after.predict import Model
from fedcue.errors import ConfigError, FedcueError


class Deployed(nn.Module):
    """Backbone, prompts, mixing and head: ``uint8 [N, S, S, 3]`` to probabilities ``[N, C]``.

    With a client, its priors and its own tensors are constants. Without one, priors are an input, and
    tensors are those of somebody who may hold every class.
    """

    def __init__(self, model: Model, client: int | None = None) -> None:
        super().__init__()
        _check(model, client)
        self.trained, self.backbone = model, model.model.backbone
        self.log_priors = model.log_priors(None, client)
        self.tensors = model.tensors(self.log_priors, client)

    def forward(self, images: Tensor, priors: Tensor | None = None) -> Tensor:
        """Classify images; priors ``[C]`` need not sum to 1. Where they are none, no number comes out."""
        log_priors = self.log_priors
        if priors is not None:
            total = priors.sum()
            usable = (priors >= 0).all() & (total > 0) & (total < torch.inf)
            log_priors = torch.where(usable, self.trained.smoothed(priors).log(), -torch.inf)
        batch = self.trained.one_pass(images.permute(0, 3, 1, 2)).whole(log_priors)
        return self.trained.method.predict(self.tensors, batch).softmax(1)


def _check(model: Model, client: int | None) -> None:
    """Refuse a model without client of a method whose clients have tensors of their own."""
    if client is None and model.method.table(model.sizes).kept:
        raise ConfigError(
            f"With {model.method.name} each client has tensors of its own: give --client ID. "
            + model.trained_clients()
        )


@torch.no_grad()
def trace(module: Deployed, *, client: bool) -> ExportedProgram:
    """Return the program for any number of images; priors are its input where they matter."""
    program = _traced(module, priors=not client)
    return program if client or _matters(program, "priors") else _traced(module, priors=False)


def _traced(module: Deployed, *, priors: bool) -> ExportedProgram:
    size, classes = module.backbone.architecture.image_size, len(module.trained.classes)
    images = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    given = (images, torch.full((classes,), 1 / classes)) if priors else (images,)
    shapes = {"images": {0: Dim("N")}, **({"priors": None} if priors else {})}
    try:
        return torch.export.export(module, given, dynamic_shapes=shapes, strict=False)
    except torch._dynamo.exc.UserError as error:
        raise FedcueError(
            f"The method {module.trained.method.name} cannot be traced for any number of images: "
            f"{str(error)[:300]} In a method write tensor.shape[0] instead of len(tensor), and decide "
            "nothing by a tensor's values."
        ) from error


def _matters(program: ExportedProgram, name: str) -> bool:
    """Tell whether an input's values reach the output; its shape alone does not count."""
    reached: set[Node] = set()
    for node in program.graph.nodes:  # each after those it follows from
        takes_values = "_like" not in str(node.target) and "sym_size" not in str(node.target)
        if node.name == name or (takes_values and not reached.isdisjoint(node.all_input_nodes)):
            reached.add(node)
    return any(node.op == "output" for node in reached)


def takes_priors(program: ExportedProgram) -> bool:
    """Tell whether a program wants priors beside the images."""
    return "priors" in program.graph_signature.user_inputs

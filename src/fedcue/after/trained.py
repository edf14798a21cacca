"""The tensors of a finished run, whoever made its folder: they must be as large as its method says."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from fedcue.foreign import ordinary
from fedcue.types import ClientMemory, Tensors, TensorTable


def load_state(folder: Path) -> dict[str, Tensor]:
    """Return the server's tensors of a finished run."""
    tensors: dict[str, Tensor] = load_file(ordinary(folder / "model.safetensors"))
    return tensors


def load_memories(folder: Path) -> dict[int, ClientMemory]:
    """Return what the clients of a finished run remember."""
    path = folder / "clients.safetensors"
    tensors = load_file(path) if ordinary(path).exists() else {}
    memories: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        client, _, own = name.partition("/")
        memories.setdefault(int(client), {})[own] = tensor
    return {client: ClientMemory(own) for client, own in memories.items()}


def check_sizes(table: TensorTable, *found: Tensors) -> None:
    """Refuse, as a ValueError, sizes that a method does not declare: a million prompts never end."""
    for tensors in found:
        for name, tensor in tensors.items():
            if name not in table:
                continue
            shape = [tensor.shape[0] if size is None and tensor.ndim else size for size in table[name].shape]
            if list(tensor.shape) != shape:
                raise ValueError(f"its {name} has the sizes {list(tensor.shape)[:8]} instead of {shape}")

"""One contender's job in a process of its own.

    python benchmarks/job.py CONTENDER ROUNDS WORKERS OUT KEY=VALUE...

Writes when each round started and ended and the resulting parameters; ``round.py`` starts it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import fedcue


def main() -> None:
    """Do the job."""
    name, rounds, workers, out, *settings = sys.argv[1:]
    torch.set_num_threads(1)
    from task import Task

    task = Task(fedcue.configure("default", settings))
    if name == "flower":
        import on_flower

        spans, values = on_flower.run(task, settings, int(rounds), int(workers))
    elif name == "pfl":
        import on_pfl

        spans, values = on_pfl.run(task, int(rounds))
    else:
        import contenders

        job = {"typical": contenders.typical, "tuned": contenders.tuned, "fedcue": contenders.ours}[name]
        spans, values = job(task, int(rounds), int(workers))
    tensors = {f"values/{key}": tensor.contiguous() for key, tensor in values.items()}
    save_file({**tensors, "spans": torch.tensor(spans, dtype=torch.float64)}, Path(out))


if __name__ == "__main__":
    main()

"""``fedcue bench``: how close to this machine's limit training runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedcue.cli.arguments import Json

if TYPE_CHECKING:
    from fedcue.plan.bench import BenchOptions


def bench(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Any of backbone, image_size, batch, classes, held, seconds, workers, precision, engine.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure training, prototypes and evaluation against the machine's matrix multiplication.

    Weights are random, so that only the shape of the backbone must be known. For example:

      fedcue bench backbone=timm/vit_tiny_patch16_224 image_size=128 batch=50

    With engine=ray it measures what a Ray cluster adds to a visit, and what the start of a worker takes.
    """
    from pydantic import ValidationError

    from fedcue.config.layers import parse
    from fedcue.errors import ConfigError, unknown
    from fedcue.plan.bench import BenchOptions
    from fedcue.plan.bench import bench as measure

    given = parse(settings or [])
    for key in given:
        if key not in BenchOptions.model_fields:
            raise ConfigError(unknown("key", key, BenchOptions.model_fields))
    try:
        job = BenchOptions(**given)
    except ValidationError as error:
        problems = [f"{p['loc'][0]}={p['input']!r}: {p['msg']}" for p in error.errors()]
        raise ConfigError("; ".join(problems)) from error
    on_ray = job.engine == "ray"
    result = _on_ray(job) if on_ray else measure(job)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        Console(soft_wrap=True).print(_ray_table(result) if on_ray else _table(result))


def _on_ray(job: BenchOptions) -> dict[str, Any]:
    from fedcue.plan.bench_ray import bench_ray

    return bench_ray(job)


def _ray_table(result: dict[str, Any]) -> Table:
    from fedcue.plan.bench_ray import ROWS

    table = Table("what", "measured", box=None)
    for name, text in ROWS.items():
        table.add_row(name, text(result))
    return table


def _table(result: dict[str, Any]) -> Table:
    """Return the measurements with their units, the counts of multiplications below them."""
    table = Table("what", "measured", box=None)
    size, batch, workers = result["image_size"], result["batch"], result["workers"]
    rows = {
        "backbone": f"{result['backbone']} at {size} px, {result['precision']}, random weights",
        "work": f"batches of {batch}, {workers} processes of one thread, rates summed",
        "matrix products": f"{result['matmul_gflops']:.1f} GFLOP/s in {result['precision']}",
        "training": f"{result['train_samples_per_second']:.1f} images/s",
        "plain training": f"{result['plain_train_samples_per_second']:.1f} images/s",
        "prototypes": f"{result['prototype_samples_per_second']:.1f} images/s",
        "evaluation": f"{result['evaluate_samples_per_second']:.1f} images/s",
        "plain-equivalent share": f"{result['plain_equivalent_share']:.2f} of the products' rate",
        "  over a whole round": f"{result['round_equivalent_share']:.2f}",
        "  of the plain step": f"{result['plain_share']:.2f}",
        "peak memory": f"{result['peak_memory_mb']:.0f} MiB",
        f"mixing {result['classes']} classes' prompts": f"{result['mixing_macs'] / 1e6:.3f} M multiply-adds",
        "  of the forward pass": f"{result['mixing_share_of_forward']:.4%} "
        f"of {result['forward_macs'] / 1e9:.2f} G, counted",
        "  by the paper's formula": f"{result['mixing_share_by_the_papers_formula']:.4%} "
        f"of {result['forward_macs_by_the_papers_formula'] / 1e9:.2f} G (no perceptron, fewer products)",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table

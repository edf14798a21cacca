"""``fedcue run --dry-run``: what a run would do and cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcue.cli.arguments import busy
from fedcue.errors import many
from fedcue.rounds.progress import size

if TYPE_CHECKING:
    from fedcue.config.settings import RunConfig
    from fedcue.plan.dry_run import Plan, Ratios

Rows = list[tuple[str, str]]


def show_plan(config: RunConfig, as_json: bool) -> None:
    """Plan a run and print the plan."""
    from fedcue.plan.dry_run import plan

    with busy("planning"):
        planned = plan(config)
    if as_json:
        typer.echo(json.dumps(planned.plain()))
        return
    console = Console(soft_wrap=True)
    console.print(
        f"[bold]{escape(planned.method)}[/] on {escape(planned.dataset)}, "
        f"{many(planned.rounds, 'round')} of {many(planned.clients_per_round, 'client')}, seed {config.seed} "
        "(nothing is run)",
        highlight=False,
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    sections = (_clients, _ratios, _backbone, _traffic, _arithmetic, _memory, _privacy, _time)
    for section in sections:
        for number, (name, text) in enumerate(section(planned)):
            title = "" if number else f"[bold]{section.__name__.removeprefix('_')}[/]"
            table.add_row(title, name, escape(text))
    console.print(table, highlight=False)


def _clients(plan: Plan) -> Rows:
    people = plan.population
    source = "its description; give data.root=FOLDER to count" if people.described else "its files"
    return [
        ("number", f"{people.clients:,}, of which {people.heldout:,} never train"),
        ("images", f"{people.train_images:,} to train, {people.test_images:,} to test"),
        ("a client", f"{_spread(people.images_per_client)} training images"),
        ("classes", f"{people.classes:,}, of which a client holds {_spread(people.classes_per_client)}"),
        ("known from", source),
    ]


def _ratios(plan: Plan) -> Rows:
    """Return the ratios that tell how like another scale this one is, beside those of the recipe's own."""
    own, whole = plan.ratios, _recipes_ratios(plan.recipe)
    names = {
        "classes_to_width": "classes / width",
        "share_held": "share of the classes a client holds",
        "visits_of_a_class": "visits of a class in a round",
        "steps_of_a_visit": "steps of a visit",
    }
    rows = []
    for key, words in names.items():
        text = f"{getattr(own, key):.3g} {words}"
        if whole is not None and whole != own:
            text += f" (recipe without a scale: {getattr(whole, key):.3g})"
        rows.append(("", text))
    return rows


def _recipes_ratios(recipe: str) -> Ratios | None:
    from fedcue.config.layers import load
    from fedcue.config.recipes import read_recipe, recipes
    from fedcue.plan.dry_run import ratios
    from fedcue.plan.stand_ins import stand_in

    scaled = recipe in recipes() and "scale" in read_recipe(recipe)[1]
    return ratios(stand_in(load(recipe))) if scaled else None


def _spread(values: tuple[int, int, int]) -> str:
    low, middle, high = values
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {middle:,})"


def _backbone(plan: Plan) -> Rows:
    shape = plan.architecture
    return [
        ("name", plan.backbone),
        (
            "shape",
            f"{many(shape.depth, 'block')} of width {shape.width}, patches of {shape.patch} in "
            f"{shape.image_size} px",
        ),
    ]


def _traffic(plan: Plan) -> Rows:
    travel = plan.travel
    rows = [
        ("down", f"{travel.download_floats:,} floats, {size(travel.download_bytes)} per client and round"),
        ("up", f"{travel.upload_floats:,} floats, {size(travel.upload_bytes)} per client and round"),
        ("a round", f"{size(travel.round_bytes)}, both ways, all clients of the round"),
        ("the run", f"{travel.total_floats:,} floats, {size(travel.total_bytes)}"),
    ]
    if travel.warm_up_bytes:
        rows.insert(3, ("warm start", f"{size(travel.warm_up_bytes)} up, once"))
    return rows


def _arithmetic(plan: Plan) -> Rows:
    arithmetic = plan.arithmetic
    parts = ", ".join(f"{name} {_flop(value)}" for name, value in arithmetic.pflop.items() if value)
    return [
        ("an image", f"{arithmetic.forward_gmac:.2f} GMAC forward, {arithmetic.backward_gmac:.2f} backward"),
        ("steps", f"{arithmetic.image_steps:,} images trained, all clients tested {arithmetic.evaluations}x"),
        ("the run", f"{_flop(arithmetic.total_pflop)} ({parts})"),
        ("by formula", f"{_flop(arithmetic.formula_pflop)}, every token in every block, nothing kept"),
    ]


def _memory(plan: Plan) -> Rows:
    memory = plan.memory
    kept = {
        "projected": "tokens and their first projection",
        "tokens": "tokens",
        "nothing": "too large, computed anew at every use (cache.limit_mb)",
    }
    place = ", in a temporary file" if memory.pixels_in_file else ""
    rows = [
        ("weights", size(memory.weights)),
        ("images", f"{size(memory.pixels)} decoded{place}"),
        ("cache", f"{size(memory.frozen)} of the frozen backbone: {kept[memory.frozen_level]}"),
    ]
    if memory.client_memories:
        rows.append(("clients keep", size(memory.client_memories)))
    return rows


def _privacy(plan: Plan) -> Rows:
    spent = plan.privacy
    if spent.get("name") != "dp":
        return [("", spent["label"])] if spent else []
    rows = [
        ("spends", f"epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} ({spent['accountant']})"),
        ("protects", f"{spent['unit']} ({spent['neighbours']}) against {spent['against']}"),
        ("noise", f"{spent['noise_multiplier']:.3g} times the sensitivity"),
    ]
    if spent["epsilon_before_rounds"] and plan.rounds:
        before = f"epsilon {spent['epsilon_before_rounds']:.3g} alone"
        rows.append(("before round 0", f"{before}, noise {spent['noise_multiplier_before_rounds']:.3g}"))
    return rows


def _time(plan: Plan) -> Rows:
    return [
        (
            "here",
            f"about {duration(plan.seconds)} on {many(plan.workers, 'core')} of {plan.gflops:.0f} GFLOP/s in "
            f"{plan.precision} at {plan.efficiency:.0%} of that, if nothing else runs; decoding not counted",
        )
    ]


def _flop(petaflop: float) -> str:
    """Return an amount of arithmetic as people read it."""
    return f"{petaflop:.3g} PFLOP" if petaflop >= 1 else f"{1000 * petaflop:.3g} TFLOP"


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * length:
            return many(round(seconds / length), unit)
    return many(round(seconds), "second")

"""Fill the tables of ``docs/performance.md`` from the JSON of real runs in ``benchmarks/results``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
MISSING = "Not measured yet."


def read(name: str) -> Any:
    """Return a result, or nothing if that was not measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() and path.stat().st_size else None


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def when(result: dict[str, Any]) -> str:
    """Say on what and when a result was measured."""
    load = f"load {result['load_before']:.1f} before and {result['load_after']:.1f} after"
    job = f"{result['rounds']} rounds, {result['workers']} worker(s). " if "rounds" in result else ""
    return (
        f"{job}{result['machine']}; {result['date']}; commit {result['environment']['commit']}; "
        f"torch {result['environment']['torch']}; {load}."
    )


def limit() -> str:
    """Return the table of ``fedcue bench``."""
    names = [f"bench-{size}{precision}" for size in ("base", "tiny") for precision in ("", "-bfloat16")]
    found = [result for name in names if (result := read(name))]
    rows = [
        (
            f"{r['backbone'].removeprefix('timm/')}, {r['image_size']} px, {r['precision']}",
            f"{r['matmul_gflops']:.0f}",
            f"{r['train_samples_per_second']:.1f}",
            f"{r['plain_train_samples_per_second']:.1f}",
            f"{r['prototype_samples_per_second']:.1f}",
            f"{r['evaluate_samples_per_second']:.1f}",
            f"**{r['plain_equivalent_share']:.2f}**",
            f"**{r['round_equivalent_share']:.2f}**",
            f"{r['plain_share']:.2f}",
            f"{r['peak_memory_mb']:.0f}",
        )
        for r in found
    ]
    head = [
        "shape",
        "GFLOP/s",
        "training",
        "plain",
        "prototypes",
        "evaluation",
        "share",
        "round",
        "plain",
        "MiB",
    ]
    return table(head, rows) + "\n\n" + when(found[0])


def profile() -> str:
    """Return where the time of a step goes."""
    found = {name: result for name in ("tiny", "base") if (result := read(f"profile-{name}"))}
    if not found:
        return MISSING
    kinds = list(dict.fromkeys(kind for result in found.values() for kind in result["shares"]))
    rows = [(kind, *(f"{r['shares'].get(kind, 0):.1%}" for r in found.values())) for kind in kinds]
    return table(["", *(r["backbone"].removeprefix("timm/") for r in found.values())], rows)


def measured(name: str, head: Sequence[str], rows: Callable[[Any], Iterable[Sequence[object]]]) -> str:
    """Return the table of a result, and on what it was measured."""
    result = read(name)
    return MISSING if result is None else table(head, rows(result)) + "\n\n" + when(result)


def contest(name: str) -> str:
    """Return the table of a comparison."""
    head = [
        "contender", "s per round", "times fedcue", "start-up s", "end to end s", "times fedcue", "peak MiB",
        "largest difference",
    ]  # fmt: skip

    def rows(result: Any) -> Iterable[Sequence[object]]:
        times = result["times_fedcue"]
        for contender, r in result["contenders"].items():
            yield (
                contender,
                f"{r['seconds_per_round']:.2f}",
                f"{times['seconds_per_round'][contender]:.2f}",
                f"{r['start_up_seconds']:.1f}",
                f"{r['seconds_end_to_end']:.1f}",
                f"{times['seconds_end_to_end'][contender]:.2f}",
                f"{r['peak_memory_mb']:.0f}",
                f"{r['largest_difference_of_parameters']:.0e}",
            )

    return measured(name, head, rows)


def visits() -> str:
    """Return the table of single visits, turn by turn."""
    head = [
        "contender", "median s", "best s", "times fedcue in the same turn", "largest difference from tuned",
    ]  # fmt: skip

    def rows(result: Any) -> Iterable[Sequence[object]]:
        for contender, r in result["contenders"].items():
            yield (
                contender,
                f"{r['median_seconds']:.2f}",
                f"{r['best_seconds']:.2f}",
                f"**{r['times_fedcue']:.2f}**",
                f"{r['largest_difference_from_tuned']:.0e}",
            )

    return measured("visits", head, rows)


METHODS = {"fedvpt": "FedVPT", "fedvpt_deep": "FedVPT-D", "pep": "PEP-FedPT", "head": "Head-Tuning"}


def peers() -> str:
    """Return visits of every method and precision: how many times as long as fedcue others take."""
    head = ["method", "precision", "turns", "fedcue, s", "typical", "tuned", "pfl"]
    found = [
        result
        for precision in ("float32", "bfloat16")
        for method in METHODS
        if (result := read(f"visits-{method}-{precision}"))
    ]
    rows = []
    for result in found:
        all_of_them = result["contenders"]
        times = (
            f"{r['times_fedcue']:.2f} ± {r['interval']:.2f}" if (r := all_of_them.get(name)) else "–"
            for name in head[4:]
        )
        ours = all_of_them["fedcue"]
        turns, seconds = len(ours["all_seconds"]), f"{ours['median_seconds']:.2f}"
        rows.append((METHODS[result["method"]], result["precision"], turns, seconds, *times))
    return f"{table(head, rows)}\n\n{when(found[0])}" if found else MISSING


def scale() -> str:
    """Return the table of growth."""
    head = [
        "method", "clients", "per round", "s per round", "best round s", "sampling ms", "start-up s",
        "peak MiB",
    ]  # fmt: skip

    def rows(result: Any) -> Iterable[Sequence[object]]:
        for row in result["runs"]:
            yield (
                row["method"],
                f"{row['clients']:,}",
                row["clients_per_round"],
                f"{row['seconds_per_round']:.2f}",
                f"{row['best_round']:.2f}",
                f"{row['sampling_milliseconds']:.2f}",
                f"{row['start_up_seconds']:.2f}",
                f"{row['peak_memory_mb']:.0f}",
            )

    return measured("scale", head, rows)


def classes() -> str:
    """Return the table of what class prompts cost."""
    head = [
        "classes", "step ms", "mixing, of the step", "head, of the step",
        "mixing, counted, of the forward pass",
    ]  # fmt: skip

    def rows(result: Any) -> Iterable[Sequence[object]]:
        for row in result["runs"]:
            yield (
                f"{row['classes']:,}",
                f"{row['step_milliseconds']:.0f}",
                f"{row['mixing_share_of_step']:.2%}",
                f"{row['head_share_of_step']:.2%}",
                f"{row['mixing_share_of_forward_counted']:.3%}",
            )

    return measured("classes", head, rows)


def _filled(content: str, found: re.Match[str]) -> str:
    return f"{found.group(1)}{content}\n{found.group(2)}"


def main() -> None:
    """Write the page anew."""
    text = PAGE.read_text()
    sections = {
        "limit": limit(),
        "profile": profile(),
        "visits": visits(),
        "peers": peers(),
        "round": contest("round"),
        "head": contest("head"),
        "scale": scale(),
        "classes": classes(),
    }
    for name, content in sections.items():
        pattern = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text, count = pattern.subn(partial(_filled, content), text)
        if count != 1:
            raise SystemExit(f"{PAGE} must have one section {name!r}, found {count}")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()

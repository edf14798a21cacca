"""Write docs/settings.md: every setting there is, its default and its meaning, read from the code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedcue.config.recipes import NAMED
from fedcue.config.scope import FREE_AT_RESUME, scope_of
from fedcue.config.sections import CommonSettings
from fedcue.config.words import typed
from fedcue.options import Options
from fedcue.registry import Registry

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
START = """\
# Settings

Every setting there is, made from the code by `python scripts/settings_page.py`. Give one on the command line
by its dotted name (`rounds=20 training.epochs=2`), in a recipe (TOML), or in Python
(`fedcue.configure("default", ["rounds=20"])`). `fedcue show NAME` prints one table of this page. A dash means
that there is no value unless you give one. A setting marked with \\* may be changed when a run is resumed.
"""
CHOICES = {
    "method": "Methods",
    "data": "Datasets",
    "partition": "Partitions",
    "aggregate": "Aggregation",
    "privacy": "Privacy",
}
"""Sections with a name to choose, and their headings."""


def page() -> str:
    """Return the whole page."""
    parts = [START, "## Of every run\n", _table("", CommonSettings, sections=False)]
    for key, options in _sections():
        parts += [f"## {key}\n", f"{_about(options)}\n", _table(key, options)]
    for section, heading in CHOICES.items():
        registry = NAMED[section]
        assert registry is not None
        parts += [f"## {heading}\n", *_choices(section, registry)]
    return "\n".join(parts)


def _choices(section: str, registry: Registry) -> Iterator[str]:
    """Yield what all choices share, then what each has of its own."""
    classes = {name: registry.get(name) for name in registry.builtin}
    common = set.intersection(*(set(options.model_fields) for options in classes.values()))
    first = next(iter(classes.values()))
    shared = [key for key in first.model_fields if key in common and _same(key, list(classes.values()))]
    if shared:
        yield f"All of them have:\n\n{_table(section, first, only=shared)}"
    for name, options in classes.items():
        yield f"### {section}={name}\n\n{_about(options)}\n"
        own = [key for key in options.model_fields if key not in shared]
        if own:
            yield _table(section, options, only=own)


def _same(key: str, classes: list[type[Options]]) -> bool:
    return len({repr(options.model_fields[key]) for options in classes}) == 1


def _sections() -> Iterator[tuple[str, type[Options]]]:
    for key, field in CommonSettings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            yield key, field.annotation


def _about(options: type[Options]) -> str:
    return (options.__doc__ or "").partition("\n")[0].replace("``", "`")


def _table(section: str, options: type[Options], only: list[str] | None = None, sections: bool = True) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    inner = dict(_sections())
    for key, field in options.model_fields.items():
        if (only is not None and key not in only) or (not sections and key in inner):
            continue
        name = f"{section}.{key}".removeprefix(".")
        mark = r"\*" if scope_of(name) in FREE_AT_RESUME else ""
        value = (
            "required"
            if field.is_required()
            else _default(field.get_default(call_default_factory=True, validated_data={}))
        )
        lines.append(f"| `{name}`{mark} | {value} | {_plain(field.description or '')} |")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    return "-" if value is None else f"`{_plain(typed(value))}`"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page())

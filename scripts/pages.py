"""Fill the generated parts of README and docs from what they show: a listing, the demo, tables of results."""

from __future__ import annotations

import re
from pathlib import Path

import results
import results_mixing
import results_paper

ROOT = Path(__file__).parents[1]
DEFAULT = ROOT / "docs" / "results" / "default"
MINIATURE = ROOT / "docs" / "results" / "miniature"
SECTIONS = {
    "README.md": ["demo", "headline"],
    "docs/add-a-method.md": ["fedvpt"],
    "docs/results/README.md": [
        "overview",
        "differences",
        "one-rate",
        "claims",
        "rounds",
        "target",
        "mixing",
        "splits",
    ],
    "docs/reproduce.md": list(results_paper.pages()),
}


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between the markers of the section ``name``."""
    pattern = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda found: f"{found.group(1)}{content.strip()}\n{found.group(2)}", text)
    if count != 1:
        raise SystemExit(f"a page must have one section {name!r}, found {count}")
    return filled


def filled() -> dict[Path, str]:
    """Return each page with its sections as they should be."""
    listing = (ROOT / "src" / "fedcue" / "methods" / "fedvpt.py").read_text()
    contents = {
        **results.pages(MINIATURE),
        "mixing": results_mixing.table(results.Results(MINIATURE)),
        **results_paper.pages(),
        "fedvpt": f"```python\n{listing.strip()}\n```",
        "demo": f"```\n{(DEFAULT / 'demo.txt').read_text().strip()}\n```",
    }
    pages = {}
    for name, sections in SECTIONS.items():
        text = (ROOT / name).read_text()
        for section in sections:
            text = fill(text, section, contents[section])
        pages[ROOT / name] = text
    return pages


def main() -> None:
    """Write the pages anew."""
    for path, text in filled().items():
        path.write_text(text)


if __name__ == "__main__":
    main()

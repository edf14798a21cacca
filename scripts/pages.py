"""Fill README's generated parts from the files they show: FedVPT's listing, the demo, the results."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results" / "default"


def fill(text: str, name: str, content: str) -> str:
    """Replace what stands between the markers of the section ``name``."""
    pattern = re.compile(rf"(<!-- {name}:start -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda found: f"{found.group(1)}{content.strip()}\n{found.group(2)}", text)
    if count != 1:
        raise SystemExit(f"README.md must have one section {name!r}, found {count}")
    return filled


def main() -> None:
    """Write README.md anew."""
    path = ROOT / "README.md"
    listing = (ROOT / "src" / "fedcue" / "methods" / "fedvpt.py").read_text()
    text = fill(path.read_text(), "fedvpt", f"```python\n{listing.strip()}\n```")
    text = fill(text, "demo", f"```\n{(RESULTS / 'demo.txt').read_text().strip()}\n```")
    text = fill(text, "results", (RESULTS / "table.md").read_text())
    path.write_text(text)


if __name__ == "__main__":
    main()

"""Take the screenshots in this folder: python docs/report/take_screenshots.py REPORT.html.

Needs Debian's chromium and the Python package playwright.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
SHOTS = {
    "light": ({"width": 1280, "height": 1350}, "light", "#methods"),
    "dark": ({"width": 1280, "height": 1500}, "dark", "#clients"),
    "phone": ({"width": 390, "height": 1100}, "light", "#training"),
}
HERE = Path(__file__).parent


def main(report: Path) -> None:
    """Show a part of the page in three ways and keep small pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, (viewport, scheme, place) in SHOTS.items():
            context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
            context.set_default_timeout(180_000)
            page = context.new_page()
            page.goto(report.resolve().as_uri())
            page.evaluate(f"document.querySelector('{place}').scrollIntoView()")
            page.wait_for_function(
                "[...document.querySelectorAll('.chart')].every(c => c.firstChild || "
                "c.getBoundingClientRect().top > innerHeight || c.getBoundingClientRect().bottom < 0)"
            )
            page.wait_for_timeout(500)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.save(HERE / f"{name}.png", optimize=True)
            context.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The page and the live page in a real browser (Debian's chromium, driven by Playwright)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import METHODS, round_record, write_run

from fedcue.report.page import render
from fedcue.report.runs import find_runs

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright for the browser tests")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium for the browser tests"),
    pytest.mark.timeout(600),
]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 120_000
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'"


def eventually(attempt: Callable[[], bool]) -> None:
    """Try until it is so: a browser beside busy tests may take its time."""
    end = time.monotonic() + PATIENCE / 1000
    while not attempt():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    names = [f"client-{i}" for i in range(18)] + [HOSTILE, "x" * 10_000]
    classes = (HOSTILE, "x" * 10_000, *"23456789")
    for method in METHODS:
        write_run(folder / "runs" / method, method, names=names, classes=classes)
    write_run(folder / "runs" / HOSTILE.replace("/", "|"), HOSTILE, done=2)
    path = folder / "report.html"
    path.write_text(render(find_runs([folder / "runs"])), encoding="utf-8")
    return path.as_uri()


class Visit:
    """A page that remembers what it asked for and what it complained about."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **options
        )
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def draw_everything(self) -> None:
        """Bring every figure near the screen once."""
        for i in range(self.page.locator("[data-figure]").count()):
            figure = self.page.locator("[data-figure]").nth(i)
            figure.scroll_into_view_if_needed()
            figure.locator(".chart > *").first.wait_for()


@pytest.fixture(scope="module")
def visit(browser: Any, report: str) -> Iterator[Visit]:
    visit = Visit(browser, report)
    yield visit
    visit.context.close()


def test_draws_everything_without_complaint_or_request(visit: Visit) -> None:
    visit.draw_everything()
    drawn = visit.page.locator(".chart > *").count()
    assert drawn >= visit.page.locator(".chart").count() > 10
    assert visit.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in visit.requests)


def test_hostile_names_stay_text(visit: Visit) -> None:
    assert visit.page.evaluate("window.hacked") is None
    assert visit.page.locator("main img").count() == 0
    visit.page.locator("#client-choice").select_option("18")
    expect(visit.page.locator(".client-name")).to_contain_text("</script>")
    width = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0


def test_the_table_sorts_by_a_heading(visit: Visit) -> None:
    page = visit.page
    heading = page.locator("#method-table thead th", has_text="mean").first

    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#method-table tbody tr th").first).to_have_text("PEP-FedPT")
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    means = page.locator("#method-table tbody td:nth-child(3)").evaluate_all(
        "cells => cells.map(c => +c.dataset.key)"
    )
    assert means == sorted(means)


def test_a_legend_switches_a_line_off_and_on(visit: Visit) -> None:
    page = visit.page
    page.locator("#figure-accuracy-rounds").scroll_into_view_if_needed()
    button = page.locator("#training .legend button", has_text="SGPT")
    strokes = "c => new Set([...c.querySelectorAll('path')].map(p => p.getAttribute('stroke'))).size"
    chart = page.locator("#figure-accuracy-rounds .chart")
    chart.locator("path").first.wait_for(state="attached")
    before = chart.evaluate(strokes)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    eventually(lambda: chart.evaluate(strokes) == before - 1)
    button.click()
    eventually(lambda: chart.evaluate(strokes) == before)


def test_hovering_shows_values(visit: Visit) -> None:
    chart = visit.page.locator("#figure-accuracy-rounds .chart")
    chart.scroll_into_view_if_needed()

    def hover() -> bool:
        box = chart.bounding_box()
        visit.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
        visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        return bool(
            visit.page.locator("#figure-accuracy-rounds .tip-row", has_text="PEP-FedPT").first.is_visible()
        )

    eventually(hover)


def test_a_click_on_a_client_opens_it(visit: Visit) -> None:
    page = visit.page
    figure = page.locator("#figure-clients")
    figure.scroll_into_view_if_needed()
    page.locator("#client-choice").select_option("0")

    def click() -> bool:
        figure.locator("svg path[fill='#0b62a4']").last.click()
        return page.locator("#client-choice").input_value() != "0"

    eventually(click)
    page.locator("#client-view table.bars tr").nth(3).wait_for()
    page.locator("#client-view table.confusion tbody tr").first.wait_for()


def test_values_of_a_figure_open_as_a_table(visit: Visit) -> None:
    details = visit.page.locator("#figure-accuracy-rounds details.values")
    details.locator("summary").click()
    expect(details.locator("tbody tr")).to_have_count(8 * 20 + 2)
    details.locator("summary").click()


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    page = visit.page
    page.locator(".skip").focus()
    reached = {"0"}
    everything = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button, select, summary, [tabindex="0"]')]
            .filter(e => e.checkVisibility({ contentVisibilityAuto: true }))
            .map((e, i) => e.dataset.stop = String(i))"""
    )
    for _ in range(len(everything) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.stop ?? ''"))
    assert set(everything) <= reached
    page.locator("#figure-accuracy-rounds .chart").focus()

    def show_values() -> bool:
        page.keyboard.press("ArrowRight")
        return bool(page.locator("#figure-accuracy-rounds .tip-row").first.is_visible())

    eventually(show_values)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious(browser: Any, report: str, scheme: str, width: int) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python"
    )
    visit = Visit(browser, report, color_scheme=scheme, bypass_csp=True)
    visit.page.set_viewport_size({"width": width, "height": 900})
    visit.draw_everything()
    found = axe.Axe().run(visit.page).response["violations"]
    serious = [
        (v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert serious == []
    over = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert over <= 0
    visit.context.close()


def test_the_theme_can_be_chosen_and_paper_is_light(browser: Any, report: str) -> None:
    visit = Visit(browser, report, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = visit.page.evaluate(ground)
    visit.page.locator("#theme").click()
    eventually(lambda: visit.page.evaluate(ground) != dark)
    assert len(visit.page.pdf()) > 50_000
    assert visit.complaints == []
    visit.context.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    pytest.importorskip("starlette", reason="pip install 'fedcue[watch]'")
    pytest.importorskip("uvicorn", reason="pip install 'fedcue[watch]'")
    run = write_run(tmp_path / "runs" / "pep-0", "pep", done=3)
    write_run(tmp_path / "runs" / "fedvpt-0", "fedvpt", done=5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from fedcue.cli.main import main; main()"
    arguments = ["watch", str(tmp_path / "runs"), "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/", run
    finally:
        process.terminate()
        process.wait(30)


def append_round(run: Path, number: int) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(round_record(number, "pep", 0, 0.955)) + "\n")


def test_the_live_page_shows_a_new_round_by_itself(browser: Any, live: tuple[str, Path]) -> None:
    address, run = live
    visit = Visit(browser, address)
    page = visit.page
    row = page.locator(".runs tbody tr", has_text="pep-0")
    row.get_by_text("3/20").wait_for()
    button = page.locator("#training .legend button", has_text="FedVPT")
    button.click()
    visit.page.wait_for_timeout(1500)
    append_round(run, 4)
    row.get_by_text("4/20").wait_for()
    expect(page.locator("#training .legend button", has_text="FedVPT")).to_have_attribute(
        "aria-pressed", "false"
    )
    append_round(run, 5)
    row.get_by_text("5/20").wait_for()
    expect(page.locator("#live")).to_contain_text("updated")
    assert visit.complaints == []
    assert all(url.startswith((address, "data:")) for url in visit.requests)
    visit.context.close()


def test_the_live_page_answers_to_this_machine_only(live: tuple[str, Path]) -> None:
    import http.client

    address, _ = live
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(address.rsplit(":", 1)[1].strip("/")), timeout=60
    )
    connection.request("GET", "/", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 400
    connection.close()

"""What README and docs say is true: their commands run, their listings are the files, their numbers recur."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pages
import pytest
from PIL import Image
from support import REAL_BACKBONE, ROOT, SHARED_DATA, SMALL

import fedcue

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [
    *PAGES,
    *sorted((ROOT / "docs").glob("results/*.md")),
    *sorted((ROOT / "docs").glob("decisions/*.md")),
]
TOO_LARGE = ("inaturalist", "domainnet", "office-home", "timm/", "scale=paper", "package.module")


def section(name: str) -> str:
    found = re.search(rf"<!-- {name}:start -->(.*?)<!-- {name}:end -->", README, re.DOTALL)
    assert found, f"README has no section {name}"
    return re.sub(r"^```\w*$", "", found.group(1), flags=re.MULTILINE).strip()


def commands(path: Path) -> list[str]:
    """Return the fedcue commands in a page's fenced blocks, comments cut off."""
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    lines = [
        line.split("  #")[0].removeprefix("$ ").strip() for block in blocks for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("fedcue ")]


CASES = [(path.name, command) for path in PAGES for command in commands(path)]


def fedcue_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedcue", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=280, check=False)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and an image, under the names the pages use."""
    folder = tmp_path_factory.mktemp("docs")
    fedcue.run(fedcue.configure("default", SMALL), folder / "runs" / "NAME")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    for number in range(96):  # photographs of one's own: two domains of two classes
        place = folder / "FOLDER" / ("photo", "sketch")[number % 2] / ("cat", "dog")[number // 2 % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.roll(pixels, number) // (1 + number // 2 % 2)).save(place / f"{number}.png")
    return folder


REAL = [
    "rounds=1",
    "clients_per_round=1",
    "data.train_per_class=10",
    "data.test_per_class=10",
    "training.epochs=1",
]


def smaller(command: str) -> list[str]:
    """Return a page's command with the same words and less work; what the page sets stays as it is."""
    real = command.replace("PATH/vit_tiny_patch16_224", str(REAL_BACKBONE)).replace(
        "PATH/", f"{SHARED_DATA}/"
    )
    words = shlex.split(real)[1:]
    if words[:2] == ["run", "own"]:
        return [*words, "backbone=embedded", "rounds=1"]  # no hub here
    if words[0] not in ("run", "compare", "tune") or "--dry-run" in words:
        return words
    given = dict(word.split("=", 1) for word in words if "=" in word)
    settings = dict(word.split("=", 1) for word in (REAL if "data.root" in given else SMALL))
    if "clients_per_round" in given:
        settings["partition.clients"] = str(int(given["clients_per_round"]) + 2)
    if words[0] != "run":
        words = [word if word != "0,1,2" else "0" for word in words]
        settings["rounds"] = "1"
    return words + [
        f"{key}={value}" for key, value in settings.items() if key not in {**given, "snapshots": ""}
    ]


@pytest.mark.parametrize(("page", "command"), CASES, ids=[f"{page}: {command}" for page, command in CASES])
def test_a_command_in_the_docs_runs(page: str, command: str, workplace: Path) -> None:
    if any(part in command for part in TOO_LARGE):
        pytest.skip("needs data or a package that is not here")
    if "PATH/" in command and not SHARED_DATA.is_dir():
        pytest.skip(f"no real data at {SHARED_DATA}")
    if "engine=ray" in command:
        pytest.skip("starts a Ray cluster; make test-ray does")
    if "--port" in command or command.startswith("fedcue watch"):
        pytest.skip("serves until it is stopped; tested elsewhere")
    done = fedcue_command(*smaller(command), cwd=workplace)
    assert done.returncode == 0, done.stdout + done.stderr


PYTHON = [
    (path.name, code)
    for path in PAGES
    for code in re.findall(
        r"^```python\n(import fedcue\n.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE
    )
]


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page for page, _ in PYTHON])
def test_python_in_the_docs_runs(page: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout.split()[0]) <= 1


def test_listings_and_tables_in_the_docs_are_what_they_show() -> None:
    for path, text in pages.filled().items():
        assert path.read_text() == text, f"{path.name} is out of date: run make pages"


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """Another processor may round differently, so numbers may differ a little."""
    done = fedcue_command("run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown, printed = (re.search(r"mean accuracy ([\d.]+)%", text) for text in (section("demo"), done.stdout))
    assert shown
    assert printed
    assert float(printed.group(1)) == pytest.approx(float(shown.group(1)), abs=2)
    assert printed.group(0).split()[0] in section("demo")


def test_the_list_of_decisions_names_every_note() -> None:
    folder = ROOT / "docs" / "decisions"
    notes = {path.name for path in folder.glob("*.md")} - {"README.md"}
    listed = re.findall(
        r"^\| \[(\d+)\. [^\]]+\]\(([^)]+)\)", (folder / "README.md").read_text(), re.MULTILINE
    )
    assert {name for _, name in listed} == notes
    assert len(listed) == len(notes)
    for number, name in listed:
        title = (folder / name).read_text().splitlines()[0]
        assert re.match(rf"# {number}\. ", title), f"{name} is called {title}"


@pytest.mark.parametrize("path", LINKED, ids=lambda path: path.name)
def test_links_and_pictures_in_the_docs_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"

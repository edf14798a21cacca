"""The journal of releases: whatever paths, names and settings a run uses, no image was released more often than it says."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("flwr")

from fedcue.config.layers import load
from fedcue.errors import BudgetSpent, ClientError
from fedcue.flower.journal import Images, Journal
from fedcue.flower.node import Node, open_node
from fedcue.flower.terms import Terms
from fedcue.model.shapes import shape_of
from fedcue.privacy.differential import DifferentialPrivacy

NOISE = 2.0
PRIVACY = DifferentialPrivacy(noise=NOISE, max_epsilon=1e6)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_image_was_released_more_often_than_its_client_is_told(data: Any, tmp_path_factory: Any) -> None:
    """Six images, dealt to clients anew by each of three divisions of two places, one inside the other."""
    journal = Journal(tmp_path_factory.mktemp("journal") / "releases.jsonl")
    part = st.lists(st.sampled_from("abc"), min_size=6, max_size=6)
    dealt = {
        (place, number): data.draw(part) for place, number in itertools.product(("/x", "/x/y"), range(3))
    }
    true: Counter[int] = Counter()
    for place, number in data.draw(st.lists(st.sampled_from(list(dealt)), max_size=8)):
        client, count = data.draw(st.sampled_from("abc")), data.draw(st.integers(1, 3))
        journal.release(Images(place, str(number), client), PRIVACY, count, "run")
        true.update({image: count for image in range(6) if dealt[place, number][image] == client})
    for (place, number), owners in dealt.items():
        for image, owner in enumerate(owners):
            assert journal.spent(Images(place, str(number), owner)) >= true[image] / NOISE**2


def test_within_a_division_clients_do_not_pay_for_each_other(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "releases.jsonl")
    one, other = (Images("/x", "0", client) for client in "ab")
    for images, count in ((one, 1), (one, 2), (other, 5), (Images("/z", "0", "a"), 7)):
        journal.release(images, PRIVACY, count, "run")
    assert journal.spent(one) == 3 / NOISE**2
    assert journal.spent(other) == 5 / NOISE**2
    assert journal.spent(Images("/x", "1", "a")) == 5 / NOISE**2, "whose they were is not known"
    assert journal.spent(Images("/x/y", "0", "a")) == 5 / NOISE**2, "a part of the folder"
    assert journal.spent(Images("/", "0", "a")) == 12 / NOISE**2, "all folders"
    assert journal.spent(Images("/xy", "0", "a")) == 0


def test_the_lines_of_the_first_journals_count(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "releases.jsonl")
    journal.file.write_text('{"images": "/srv/a: b: north", "releases": 3, "noise": 2.0, "run": "r"}\n')
    assert journal.spent(Images("/srv/a: b", "0", "south")) == 3 / NOISE**2
    assert journal.spent(Images("/srv", "0", "")) == 3 / NOISE**2
    assert journal.spent(Images("/srv/c", "0", "north")) == 0


@pytest.mark.parametrize(
    "line", ["{}", "[]", "1", "?", '{"place": "/x", "division": "0", "client": "a", "releases": 1.5, "noise": 1}',
             '{"place": "/x", "division": "0", "client": "a", "releases": 1, "noise": NaN}',
             '{"place": "/x", "division": "0", "client": "a", "releases": 1, "noise": 1e-400}',
             '{"place": "/x", "division": "0", "client": "a", "releases": 1, "noise": 1e-200}',
             '{"place": "/x", "division": "0", "client": "a", "releases": 1' + "0" * 400 + ', "noise": 1.5}', "[" * 100_000,
             '{"division": "0", "client": "a", "releases": 1, "noise": 1}']
)  # fmt: skip
def test_a_damaged_journal_is_not_believed(line: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "releases.jsonl")
    journal.file.write_text(line + "\n")
    with pytest.raises(ClientError, match="damaged"):
        journal.spent(Images("/x", "0", "a"))


def test_a_last_line_that_is_whole_counts_and_one_cut_short_does_not(tmp_path: Path) -> None:
    journal, images = Journal(tmp_path / "releases.jsonl"), Images("/x", "0", "a")
    journal.release(images, PRIVACY, 1, "run")
    line = journal.file.read_text()
    journal.file.write_text(line * 3 + line[:-9])  # the disk was full
    assert journal.spent(images) == 3 / NOISE**2
    journal.file.write_text(line * 2 + line.rstrip("\n"))  # an editor left the end of the line away
    journal.release(images, PRIVACY, 2, "run")
    assert journal.spent(images) == 5 / NOISE**2


@pytest.mark.timeout(20)  # what opens a pipe waits for ever
@pytest.mark.parametrize("kind", ["pipe", "folder", "no folder", "full"])
def test_without_a_journal_to_write_nothing_is_released(kind: str, tmp_path: Path) -> None:
    journal, images = Journal(tmp_path / "memory" / "releases.jsonl"), Images("/x", "0", "a")
    if kind == "no folder":
        (tmp_path / "memory").write_text("")
    else:
        (tmp_path / "memory").mkdir()
    if kind == "pipe":
        os.mkfifo(journal.file)
    if kind == "folder":
        journal.file.mkdir()
    if kind == "full":
        journal.file.symlink_to("/dev/full")
    with pytest.raises(ClientError, match="cannot be written, so that nothing is released"):
        journal.release(images, PRIVACY, 1, "run")
    if kind != "no folder":
        with pytest.raises(ClientError):
            journal.spent(images)


def site(folder: Path | str, memory: Path, setting: str = "", **config: Any) -> Node:
    """Open a site with images of its own for a run under privacy=dp."""
    pytest.importorskip("dp_accounting")
    run = load(
        "default",
        ["data=folder", 'data.classes=["a", "b"]', "method=head", "privacy=dp", f"privacy.noise={NOISE}",
         "privacy.max_epsilon=1000", *setting.split()],
    )  # fmt: skip
    terms = Terms.of("run", run, ("a", "b"), shape_of(run.backbone.name, run.backbone.image_size), 2)
    return open_node(
        terms, {"data": str(folder), "partition-id": 0, "num-partitions": 1, "memory": str(memory), **config}
    )


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two clients with two classes each."""
    root = tmp_path / "images"
    for client, label, number in itertools.product(("north", "south"), "ab", range(4)):
        place = root / client / label / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(place)
    return root


def test_the_same_images_are_known_whatever_a_run_or_a_path_calls_them(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other layouts, settings, names; links, relative paths, slashes, dots; a part of the folder."""
    memory = tmp_path / "memory"
    node = site(images, memory, "data.layout=clients")
    assert [member.spent for member in node.members()] == [0, 0]
    node.release(0, first=False)
    node.release(0, first=False)
    (tmp_path / "link").symlink_to(images)
    monkeypatch.chdir(tmp_path)
    spent = 2 / NOISE**2
    assert [member.spent for member in site(images, memory, "data.layout=clients seed=3").members()] == [
        spent,
        0,
    ]
    for path in ("link", "images/", "./images/../images", "images//", str(tmp_path / "link") + "/."):
        again = site(path, memory, "data.layout=clients data.augment=none")
        assert [member.spent for member in again.members()] == [spent, 0], path
    assert site(images, memory, "data.layout=domains").members()[0].spent == spent
    renamed = site(images, memory, "data.layout=domains", name="somebody else")
    assert renamed.members()[0].spent == spent
    renamed.release(0, first=False)
    assert site(images, memory, "data.layout=domains", name="a third").members()[0].spent == 1.5 * spent
    assert site(images / "north", memory, "data.layout=classes").members()[0].spent == 1.5 * spent
    assert [member.spent for member in site(images, memory, "data.layout=clients").members()] == [
        1.5 * spent,
        spent / 2,
    ]


def test_a_budget_holds_over_all_names_of_the_images(images: Path, tmp_path: Path) -> None:
    memory, layouts = tmp_path / "memory", ("clients", "domains")

    def release(number: int) -> None:
        setting = f"data.layout={layouts[number % 2]} privacy.clip={number + 1}"
        site(images, memory, setting, **{"max-epsilon": 5.0, "name": str(number)}).release(0, first=False)

    for number in range(5):
        release(number)
    for number in (5, 6):
        with pytest.raises(BudgetSpent, match="in other runs too"):
            release(number)

"""Clients and classes of a finished run as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.run_folders import write_run

from fedcue.report.outcome import MANY_CLASSES, MANY_LINES, class_table, client_table, confusion_table
from fedcue.report.run_files import Client
from fedcue.report.runs import RunRecord, read_run
from fedcue.report.tables import Table


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    found = read_run(write_run(tmp_path / "run", classes=("cat", "dog", "猫")))
    found.analysis["confusion"] = np.array([[8, 2, 0], [1, 4, 0], [0, 0, 0]])
    return found


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [[cell.text for cell in line] for line in table.lines]


def test_precision_recall_and_f1_are_those_of_the_confusions(run: RunRecord) -> None:
    cat, dog, nothing = texts(class_table(run))
    assert cat == ["cat", "10", "88.9%", "80.0%", "84.2%", "dog (2)"]
    assert dog == ["dog", "5", "66.7%", "80.0%", "72.7%", "cat (1)"]
    assert nothing == ["猫", "0", "n/a", "n/a", "n/a", ""]


def test_what_cannot_be_measured_is_no_zero(run: RunRecord) -> None:
    run.analysis["confusion"] = np.array([[8, 0, 2], [5, 0, 0], [0, 0, 0]])
    cat, dog, absent = texts(class_table(run))
    assert cat[2:5] == ["61.5%", "80.0%", "69.6%"]
    assert dog[2:5] == ["n/a", "0.0%", "0.0%"], "never taken for, always missed"
    assert absent[2:5] == ["0.0%", "n/a", "n/a"], "without test images, taken for twice"


def test_of_many_classes_the_worst_are_shown(run: RunRecord) -> None:
    many = replace(run, model={"classes": [f"c{n}" for n in range(30)]})
    right = np.arange(30)[::-1]
    many.analysis["confusion"] = np.diag(right) + 5 * np.eye(30, k=1, dtype=int)
    shown = texts(class_table(many))
    shares = [float(line[4].rstrip("%")) for line in shown if line[4] != "n/a"]
    assert len(shown) == MANY_LINES
    assert shares == sorted(shares)
    assert shown[0][0] == "c28", "right once, wrong five times"


def test_confusions_are_shown_where_classes_are_few(run: RunRecord) -> None:
    assert texts(confusion_table(run))[0] == ["cat", "8", "2", "0"]
    many = replace(run, model={"classes": [str(n) for n in range(MANY_CLASSES + 1)]})
    assert confusion_table(many) is None


def test_clients_come_worst_first_and_say_who_was_held_out(run: RunRecord) -> None:
    lines = texts(client_table(run))
    shares = [float(line[-1].rstrip("%")) for line in lines]
    assert shares == sorted(shares)
    assert {line[1] for line in lines} == {"trains", "held out"}
    assert {line[0] for line in lines} <= {client.name for client in run.clients}


def test_a_run_without_confusions_has_empty_ones(run: RunRecord) -> None:
    run.analysis["confusion"] = np.ones((2, 2))
    assert {line[1] for line in texts(class_table(run))} == {"0"}


def test_a_clients_line_says_its_part_its_images_and_its_accuracy(run: RunRecord) -> None:
    clients = [
        Client(0, "a", "", False, 1200, 30, 0.5),
        Client(1, "b", "", True, 40, 2000, 0.25),
        Client(2, "nobody asked", "", False, 7, 8, None),
    ]
    lines = texts(client_table(replace(run, clients=clients)))
    assert lines == [["b", "held out", "40", "2,000", "25.0%"], ["a", "trains", "1,200", "30", "50.0%"]]


def test_of_many_clients_the_worst_are_shown(run: RunRecord) -> None:
    clients = [Client(n, str(n), "", False, 1, 1, n / 100) for n in range(MANY_LINES + 5)]
    shown = texts(client_table(replace(run, clients=clients[::-1])))
    assert [line[0] for line in shown] == [str(n) for n in range(MANY_LINES)]


def test_a_class_is_mistaken_most_for_what_most_of_its_images_are_taken_for(run: RunRecord) -> None:
    run.analysis["confusion"] = np.array([[1, 2, 3], [4, 0, 0], [0, 0, 9]])
    assert [line[-1] for line in texts(class_table(run))] == ["猫 (3)", "cat (4)", ""]

"""Workers that stop, hang or die: the step goes on, or ends in words, and never waits for ever."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcue.errors import ClientError, FedcueError, Interrupted
from fedcue.machine import StopFlag
from fedcue.rounds import workers
from fedcue.rounds.workers import Workers, begin_visit


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, so that nothing here takes long; a worker has two seconds to show signs of life."""
    monkeypatch.setattr(workers, "LOOK", 0.05)
    monkeypatch.setattr(workers, "SILENT", 40)
    monkeypatch.setattr(workers, "GRACE", 10)


@pytest.fixture
def stop() -> StopFlag:
    return StopFlag()


@pytest.fixture
def two(stop: StopFlag) -> Iterator[Workers]:
    processes = Workers(2, stop)
    yield processes
    processes.close()


def square(number: int) -> int:
    return number * number


def square_but_stand_still(number: int, times: Path) -> int:
    """Stop this process at the number 3, as often as there are lines."""
    lines = times.read_text().splitlines() if number == 3 else []
    if lines:
        times.write_text("\n".join(lines[1:]))
        os.kill(os.getpid(), signal.SIGSTOP)
    return number * number


def square_slowly(clients: list[int], slow: int) -> str:
    try:
        begin_visit(clients)
        if slow in clients:
            time.sleep(1000)  # as reading from a disk that is gone
    except ClientError as error:
        if len(clients) == 1:
            return f"{clients[0]}: {error}"
        return "; ".join(square_slowly([client], slow) for client in clients)
    return f"{clients}: fine"


def test_results_come_in_order(two: Workers) -> None:
    assert list(two.map(square, ((n,) for n in range(30)))) == [n * n for n in range(30)]


def gone() -> None:
    raise TimeoutError("the share did not answer")


def test_a_timeout_in_a_worker_is_its_error_and_not_a_reason_to_wait(two: Workers) -> None:
    with pytest.raises(TimeoutError, match="the share did not answer"):
        list(two.map(gone, [()]))


def test_a_stopped_worker_is_replaced_and_its_work_done_again(two: Workers, tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("once")
    results = list(two.map(square_but_stand_still, ((n, times) for n in range(12))))
    assert results == [n * n for n in range(12)]
    assert times.read_text() == ""


def test_a_worker_that_always_stops_ends_the_step_in_words(
    two: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "REPLACEMENTS", 1)
    times = tmp_path / "times"
    times.write_text("again\n" * 9)
    with pytest.raises(FedcueError, match=r"Worker process \d+ stands still.*resume"):
        list(two.map(square_but_stand_still, ((n, times) for n in range(12))))


def test_a_hung_client_is_left_out_after_its_time_and_only_in_that_step(stop: StopFlag) -> None:
    processes = Workers(2, stop, client_timeout=0.1)
    late = "it took longer than client_timeout and did not stop by itself"
    assert list(processes.map(square_slowly, (([n], 2) for n in range(4)))) == [
        "[0]: fine",
        "[1]: fine",
        f"2: {late}",
        "[3]: fine",
    ]
    assert list(processes.map(square_slowly, [([2], 9)])) == ["[2]: fine"]
    assert list(processes.map(square_slowly, [([4, 5], 5)])) == [f"[4]: fine; 5: {late}"]
    processes.close()
    others = Workers(2, stop)  # of another run in the same process
    assert list(others.map(square_slowly, [([2], 9)])) == ["[2]: fine"]
    others.close()


def test_a_stop_is_not_held_up_by_a_hung_worker(two: Workers, stop: StopFlag) -> None:
    stop._number[0] = signal.SIGINT
    with pytest.raises(Interrupted):
        list(two.map(square_slowly, [([1], 1)]))


def test_a_stopped_worker_does_not_hold_up_the_end(two: Workers) -> None:
    assert list(two.map(square, [(3,)])) == [9]
    os.kill(int(two._board[0, workers.PID]), signal.SIGSTOP)

"""The same run on a Ray cluster of three nodes: same bits, whatever comes and goes (make test-ray)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from soak import assert_same_run, config
from support import SMALL
from typer.testing import CliRunner

import fedcue
from fedcue.cli.grid_output import GridProgress
from fedcue.cli.main import app
from fedcue.cli.run import start
from fedcue.clients.federation import load_federation
from fedcue.errors import WorkersLost
from fedcue.grid.cells import Cell
from fedcue.grid.execute import run_grid
from fedcue.record.folder import read_metrics, read_summary
from fedcue.registry import METHODS
from fedcue.rounds.on_ray import cluster as clusters
from fedcue.rounds.on_ray.engine import RayEngine
from fedcue.rounds.on_ray.pool import Member, Pool, Visit
from fedcue.types import ClientMemory, Download, Tensors, pack

pytestmark = pytest.mark.ray
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_log_monitor": False}
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}
"""A node that was killed is noticed after two seconds."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes of one core each, all addresses on loopback, ended with the tests."""
    ray = clusters._imported("local")
    from ray.cluster_utils import Cluster

    head = {"include_dashboard": False, "no_monitor": True, "_system_config": QUICK}
    started = Cluster(initialize_head=True, head_node_args={**NODE, **head})
    try:
        for _ in range(2):
            started.add_node(**NODE)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def on_ray(cluster: Any, method: str, *more: str) -> fedcue.RunConfig:
    return config(method, "engine=ray", f"engine.address={cluster.address}", "engine.workers=0", *more)


@pytest.mark.parametrize("method", METHODS.builtin)
def test_every_method_gives_the_bits_of_one_process(cluster: Any, method: str, tmp_path: Path) -> None:
    one = fedcue.run(config(method, "rounds=2"), tmp_path / "one")
    many = fedcue.run(on_ray(cluster, method, "rounds=2", "workers=2"), tmp_path / "many")
    assert_same_run(one.folder, many.folder)
    assert many.summary["workers"] >= 1


def test_a_worker_and_a_node_that_are_killed_in_a_visit_change_no_bit(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "head").write_text(cluster.head_node.node_id)
    settings = ["clients_per_round=4", "rounds=3", f"method.marks={tmp_path}"]
    seen = Seen()
    whole = fedcue.run(config("support.ray_faults:Deadly", *settings), tmp_path / "whole")
    struck = fedcue.run(
        on_ray(cluster, "support.ray_faults:Deadly", *settings), tmp_path / "struck", observer=seen
    )
    assert (tmp_path / "worker").exists()
    assert (tmp_path / "node").exists()
    dead = [node for node in cluster.worker_nodes if raylet_of(node) not in descendants()]
    assert len(dead) == 1
    cluster.remove_node(dead[0], allow_graceful=False)
    cluster.add_node(**NODE)
    assert_same_run(whole.folder, struck.folder)
    assert [record["nodes"] for record in seen.records] == [3, 2, 2]
    assert not any("failures" in record for record in read_metrics(struck.folder))


@pytest.mark.parametrize("moment", ["warm_up", "first train", "last train", "test", "last test"])
def test_a_worker_that_is_killed_at_any_moment_changes_no_bit(
    cluster: Any, moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PEP asks clients before round 0; tests come after every round and at the end."""
    settings = ["rounds=3", "evaluation.every=1", "clients_per_round=3"]
    whole = fedcue.run(config("pep", *settings), tmp_path / "whole")
    step, hit = moment.split()[-1], []
    count = 0 if moment.startswith("last") else 1

    def strike(pool: Pool, member: Member, visit: Visit) -> None:
        nonlocal count
        if visit.step != step or hit:
            return
        if moment == "last train":
            (sent, _), _ = visit.job[1][0]
            count = int(sent.round == 2)
        elif moment == "last test":
            count = int(visit.job[3])  # whether it is the run's last
        if count:
            assert member.arrival is not None
            hit.append(member.arrival.process)
            os.kill(member.arrival.process, signal.SIGKILL)

    after_giving(strike, monkeypatch)
    struck = fedcue.run(on_ray(cluster, "pep", *settings), tmp_path / "struck")
    assert hit
    assert_same_run(whole.folder, struck.folder)
    assert not any("failures" in record for record in read_metrics(struck.folder))


def test_two_nodes_that_are_killed_at_once_change_no_bit(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = ["rounds=60", "clients_per_round=4"]  # enough for slow workers to be there before the end
    whole = fedcue.run(config("fedvpt", *settings), tmp_path / "whole")
    doomed = list(cluster.worker_nodes)
    assert len(doomed) == 2
    hit: list[int] = []

    def strike(pool: Pool, member: Member, visit: Visit) -> None:
        if visit.step == "train" and pool.ready == 3 and not hit:
            hit.extend(raylet_of(node) for node in doomed)
            for process in hit:
                os.kill(process, signal.SIGKILL)

    after_giving(strike, monkeypatch)
    try:
        struck = fedcue.run(on_ray(cluster, "fedvpt", *settings, "workers=3"), tmp_path / "struck")
    finally:
        for node in doomed:
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(**NODE)
    assert hit
    assert_same_run(whole.folder, struck.folder)


def test_two_runs_at_once_on_one_cluster_do_not_disturb_each_other(cluster: Any, tmp_path: Path) -> None:
    settings = [*SMALL, "rounds=2", "method=fedvpt"]
    whole = fedcue.run(config("fedvpt", "rounds=2"), tmp_path / "whole")
    alone = fedcue.run(fedcue.configure("default", settings), tmp_path / "alone")
    command = [
        sys.executable,
        "-m",
        "fedcue",
        "run",
        *settings,
        "engine=ray",
        "--out",
        str(tmp_path / "other"),
    ]
    other = subprocess.Popen(
        command,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        here = fedcue.run(on_ray(cluster, "fedvpt", "rounds=2"), tmp_path / "here")
        output, _ = other.communicate(timeout=300)
    finally:
        other.kill()
    assert other.returncode == 0, output
    assert_same_run(whole.folder, here.folder)
    assert (tmp_path / "other" / "model.safetensors").read_bytes() == (
        alone.folder / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("address", ["127.0.0.1:9"])
def test_an_address_where_nothing_is_ends_in_words(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedcue", "run", *SMALL, "engine=ray", f"engine.address={address}"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    found = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        env={**environment, "RAY_TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 2, found.stdout + found.stderr
    assert f"No Ray cluster answers at {address} (" in (found.stdout + found.stderr).replace("\n", " ")
    assert "Traceback" not in found.stdout + found.stderr


def after_giving(strike: Callable[[Pool, Member, Visit], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something whenever a worker was given a visit."""
    give = Pool._give

    def given(self: Pool, member: Member, visit: Visit) -> None:
        give(self, member, visit)
        strike(self, member, visit)

    monkeypatch.setattr(Pool, "_give", given)


def test_a_node_that_joins_is_used_for_the_next_visits(cluster: Any) -> None:
    federation = load_federation(on_ray(cluster, "fedvpt"))
    roster, method = federation.roster, federation.roster.method
    state = method.start(roster.sizes, 0, roster.protection.adding({}, "warm up").sums())
    sent = method.download(state, 0, roster.sizes, 0)
    with RayEngine(federation) as engine:
        first = list(engine.train([(Download(0, 0, sent), ClientMemory())]))
        until(lambda: len(list(engine.train(jobs(sent)))) and engine.pool.ready == 3)
        joined = cluster.add_node(**NODE)
        try:
            until(lambda: len(list(engine.train(jobs(sent)))) and engine.pool.ready == 4)
            assert engine.news()["nodes"] == 4
            again = list(engine.train([(Download(0, 0, sent), ClientMemory())]))
            assert pack(first[0][0].tensors) == pack(again[0][0].tensors)
        finally:
            cluster.remove_node(joined)


def test_with_no_room_left_a_run_stops_with_its_checkpoint_and_goes_on_later(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = fedcue.run(config("fedvpt", "rounds=2"), tmp_path / "whole")
    fedcue.run(on_ray(cluster, "fedvpt", "rounds=1", "workers=1"), tmp_path / "part")
    nowhere = on_ray(cluster, "fedvpt", "rounds=2", "engine.cpus_per_worker=64", "engine.timeout=1")
    with pytest.raises(WorkersLost, match="engine.timeout=1 s: no node has room"):
        start(nowhere, tmp_path / "part", overwrite=False, resume=True, quiet=True, as_json=False)
    command = f"RAY_ADDRESS={cluster.address} fedcue resume {tmp_path / 'part'}"
    assert f"stopped; go on with: {command}" in capsys.readouterr().out
    fedcue.run(on_ray(cluster, "fedvpt", "rounds=2", "workers=1"), tmp_path / "part", resume=True)
    assert_same_run(whole.folder, tmp_path / "part")


def test_a_bug_ends_the_run_with_its_traceback(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        fedcue.run(on_ray(cluster, "support.ray_faults:Buggy", "workers=1"), tmp_path / "run")
    assert "a line of the author's at client" in str(caught.value)
    assert "ray_faults.py" in str(caught.value)
    assert "This is a bug, not a failure of the client: training of client" in str(caught.value)


def test_a_client_that_fails_honestly_is_left_out(cluster: Any, tmp_path: Path) -> None:
    settings = ["clients_per_round=3", "rounds=2"]
    one = fedcue.run(config("support.ray_faults:Frail", *settings), tmp_path / "one")
    many = fedcue.run(on_ray(cluster, "support.ray_faults:Frail", *settings, "workers=1"), tmp_path / "many")
    assert "its disk is full" in str(read_metrics(many.folder)[0]["failures"])
    assert_same_run(one.folder, many.folder)


def test_runs_of_a_grid_share_the_cluster(cluster: Any, tmp_path: Path) -> None:
    one = fedcue.run(config("fedvpt", "rounds=1"), tmp_path / "one")
    cells = [
        Cell(method, {}, 0, on_ray(cluster, method, "rounds=1"), tmp_path / method)
        for method in ("head", "fedvpt")
    ]
    assert run_grid(cells, GridProgress(Console(quiet=True), quiet=True)) == {}
    assert_same_run(one.folder, tmp_path / "fedvpt")
    assert {read_summary(cell.folder)["workers"] for cell in cells} == {1}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_a_run_that_is_stopped_or_killed_leaves_no_process(tmp_path: Path, number: int, code: int) -> None:
    settings = [*SMALL, "rounds=500", "evaluation.every=0", "engine=ray", "method=fedvpt"]
    command = [sys.executable, "-m", "fedcue", "run", *settings, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: (metrics.exists() and metrics.stat().st_size) or process.poll() is not None)
    started = descendants(process.pid)
    assert started
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C does: to the cluster's processes, too
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert (f"go on with: fedcue resume {tmp_path / 'run'}" in output) == (number != signal.SIGKILL)
    until(lambda: not any(alive(one) for one in started))


def alive(process: int) -> bool:
    """Tell whether a process lives, whoever its parent is."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_bench_measures_what_ray_adds(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    found = CliRunner().invoke(app, ["bench", "engine=ray", "batch=2", "seconds=0", "--json"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    assert result["visits"] == 2
    assert 0 < result["added_seconds"] < result["worker_start_seconds"]
    assert result["added_share"] == pytest.approx(result["added_seconds"] / result["visit_seconds"])
    assert result["worker_prepare_seconds"] < result["worker_start_seconds"]
    assert result["worker_memory_mb"] > 50


def test_a_cluster_started_here_listens_on_loopback_alone_and_leaves_nothing(cluster: Any) -> None:
    before = set(descendants())
    with clusters.joined(config("fedvpt", "engine=ray", "workers=5")) as here:
        assert here.address.startswith("127.0.0.1:")
        assert here.address != cluster.address
        assert here.room() == dict.fromkeys(here.room(), 5)
        own = set(descendants()) - before
        assert own
        assert {address for address in listening(own) if not address.startswith("127.0.0.1:")} == set()
        folder = Path(here.ray._private.worker._global_node.get_temp_dir_path())
        assert folder.is_dir()
    until(lambda: not own & set(descendants()))
    assert not folder.exists()


def descendants(of: int | None = None) -> list[int]:
    """Return all living processes that this one or another started, and that those started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found = [of or os.getpid()]
    for parent in found:
        found += [process for process, above in parents.items() if above == parent]
    return found[1:]


def listening(processes: set[int]) -> set[str]:
    """Return the addresses at which some processes listen."""
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    own = [line for line in lines if {int(pid) for pid in re.findall(r"pid=(\d+)", line)} & processes]
    assert own
    return {line.split()[3].replace("[::ffff:127.0.0.1]", "127.0.0.1") for line in own}


def until(true: Callable[[], Any]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def jobs(sent: Tensors) -> list[tuple[Download, ClientMemory]]:
    return [(Download(client, 0, sent), ClientMemory()) for client in range(4)]


def raylet_of(node: Any) -> int:
    [raylet] = node.all_processes["raylet"]
    return int(raylet.process.pid)


class Seen:
    """Keeps what a progress display is told."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def started(self, *_: Any) -> None:
        pass

    def stage(self, *_: Any) -> None:
        pass

    def finished_round(self, record: dict[str, Any]) -> None:
        self.records.append(record)

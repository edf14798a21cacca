"""What a round writes down: who was asked, what travelled, what failed, when was tested, at which rates."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.tiny_federation import Recorder, TinyFederation

from fedcue.clients.federation import Federation
from fedcue.clients.host import Host
from fedcue.clients.roster import Roster
from fedcue.errors import BudgetSpent, ClientError, ConfigError, FedcueError, RunFolderError
from fedcue.methods.fedvpt import FedVPT
from fedcue.methods.head import HeadTuning
from fedcue.methods.pep import PEP
from fedcue.methods.ppt import PPT
from fedcue.privacy.accounting import Ledger
from fedcue.record.folder import RunFolder
from fedcue.rounds import loop, observers
from fedcue.rounds.loop import Run
from fedcue.rounds.round_record import Patience
from fedcue.train.settings import Training

FILES = {
    "config.toml", "metrics.jsonl", "clients.csv", "summary.json", "model.safetensors", "model.json", "checkpoints",
    "analysis.safetensors", ".lock",
}  # fmt: skip
HEAD = 4 * 32
"""Floats of the head of a tiny federation."""


class Stumbling(Host):
    """Clients 1 and 2 fail at their first visit, client 2 at its second one, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.left = {1: 1, 2: 2}

    def train(self, download, memory):
        if self.left.get(download.client, 0):
            self.left[download.client] -= 1
            raise ClientError("it stumbled")
        return super().train(download, memory)


def test_a_round_that_is_drawn_again_counts_the_last_draw_alone():
    run = TinyFederation(HeadTuning(), images=8, host_kind=Stumbling, settings=["min_updates=2"]).run(
        1, (0, 1, 2)
    )
    (record,) = run.result.rounds
    assert record["clients"] == [0, 1, 2]
    assert (record["upload_floats"], record["download_floats"]) == (2 * HEAD, 3 * HEAD)
    assert run.result.summary["total_upload_floats"] == 2 * HEAD
    losses = [update.loss for update in run.updates[0]]
    assert len(losses) == 3, "one of the first draw, two of the second"
    assert record["train_loss"] == pytest.approx(sum(losses[1:]) / 2)
    failed = [(one["attempt"], one["client"], one["step"]) for one in record["failures"]]
    assert failed == [(0, 1, "train"), (0, 2, "train"), (1, 2, "train")]


def test_under_differential_privacy_every_draw_is_counted_and_a_resumed_run_counts_it_again():
    """All three are drawn both times: whoever failed may have sent something, and the others did."""
    pytest.importorskip("dp_accounting")
    settings = ["min_updates=2", "privacy=dp", "privacy.noise=1.5", "privacy.max_epsilon=50"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=Stumbling, settings=settings)
    (record,) = tiny.run(1, (0, 1, 2)).result.rounds
    assert record["attempts"] == 2
    twice = Ledger(releases=dict.fromkeys(range(3), 2))
    assert record["epsilon"] == twice.epsilon(1.5, 1e-5)
    again = tiny.made(1, (0, 1, 2)).roster.budget.fresh()
    again.schedule = tiny.made(1, (0, 1, 2)).roster.schedule
    again.replay([record], 10)
    assert again.ledger.releases == twice.releases


@pytest.mark.parametrize(("every", "tested"), [(0, [3]), (1, [1, 2, 3]), (2, [2, 3])])
def test_clients_are_tested_every_so_many_rounds_and_after_the_last(every, tested):
    run = TinyFederation(HeadTuning(), images=8, settings=[f"evaluation.every={every}"]).run(3)
    assert [record["round"] for record in run.result.rounds if "mean_accuracy" in record] == tested
    last = run.result.rounds[-1]
    assert last["mean_accuracy"] == run.result.summary["mean_accuracy"]


def test_each_round_says_its_own_rates_of_prompts_and_head_and_totals_are_of_all_rounds():
    training = Training(head_lr=0.05, prompt_lr=0.2, lr_decay=0.5, epochs=1)
    result = TinyFederation(HeadTuning(), training=training, images=8).run(2).result
    assert [(record["lr"], record["head_lr"]) for record in result.rounds] == [(0.2, 0.05), (0.1, 0.025)]
    for name in ("upload_floats", "download_floats"):
        assert [record[name] for record in result.rounds] == [3 * HEAD] * 2
        assert result.summary[f"total_{name}"] == 6 * HEAD


class Failing(Host):
    """Clients that never get through, counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked = 0

    def train(self, download, memory):
        self.asked += 1
        raise ClientError("it stumbled")


def test_a_round_in_which_all_clients_fail_is_drawn_ten_times():
    tiny, made = TinyFederation(HeadTuning(), images=8, host_kind=Failing), []
    build = tiny.made
    tiny.made = lambda *given: made.append(build(*given)) or made[-1]
    with pytest.raises(
        FedcueError, match=r"Round 1 got fewer than min_updates=1 updates in 10 draws \(client"
    ):
        tiny.run(1)
    assert made[0].host.asked == 10 * 3


class Watching(observers.Silent):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[Roster, Path]] = []
        self.stages: list[tuple[str, int, int]] = []
        self.records: list[dict[str, object]] = []

    def started(self, roster, folder):
        self.begun.append((roster, folder))

    def stage(self, name, done=0, total=0):
        self.stages.append((name, done, total))

    def finished_round(self, record):
        self.records.append(dict(record))


class Counting(Recorder):
    """Notes of each test whether it was the last one, and has something to say of every round."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.tests: list[bool] = []

    def evaluate(self, state, memories, final):
        self.tests.append(final)
        return super().evaluate(state, memories, final)

    def news(self):
        return {"nodes": 3}


def complete(tiny, path, rounds, *, resume=False, patience=None, observer=None, given=None):
    """Do a run in this folder; return its result and when it was tested."""
    folder = RunFolder(path)
    folder.open(resume=resume)
    try:
        with Counting(tiny.made(rounds, given)) as engine:
            run = Run(engine, folder, observer or observers.Silent())
            run.patience = Patience(patience)
            return run.complete(resume), engine.tests
    finally:
        folder.close()


def not_repeating(tiny, repeats=False):
    """Let the noise of a federation be such that nobody can draw it again."""
    build = tiny.made

    def made(*given):
        federation = build(*given)
        federation.roster.repeats_noise = repeats
        return federation

    tiny.made = made


@pytest.mark.parametrize(
    ("rounds", "every", "tests"),
    [(2, 0, [True]), (2, 1, [False, True]), (3, 2, [False, True]), (0, 1, [True])],
)
def test_a_run_is_tested_as_often_as_it_says_and_once_at_its_end(tmp_path, rounds, every, tests):
    tiny = TinyFederation(HeadTuning(), images=8, settings=[f"evaluation.every={every}"])
    result, asked = complete(tiny, tmp_path, rounds)
    assert asked == tests
    assert result.summary["rounds"] == rounds
    for absent in ("ended_early", "warm_up_failures", "changed_settings", "releases", "privacy"):
        assert absent not in result.summary
    seconds = sum(record["seconds"] for record in result.rounds)
    assert seconds < result.summary["seconds"] < seconds + 60
    assert result.summary["workers"] == 1
    assert result.summary["peak_memory_mb"] > 0


def test_rounds_that_get_no_better_end_a_run_which_is_then_tested_for_the_last_time(tmp_path):
    settings = ["evaluation.every=1"]
    tiny = TinyFederation(HeadTuning(), images=8, training=Training(lr=0, head_lr=0), settings=settings)
    result, tests = complete(tiny, tmp_path, 9, patience=2)
    assert (result.summary["rounds"], tests) == (3, [False, False, False, True])
    assert result.summary["ended_early"].startswith("2 evaluated rounds were no better")
    result, tests = complete(tiny, tmp_path, 9, patience=4, resume=True)
    assert (result.summary["rounds"], tests) == (5, [False, False, True]), "earlier rounds count"


def test_an_observer_is_told_what_begins_each_stage_and_each_round_also_of_a_resumed_run(tmp_path):
    tiny, first, second = TinyFederation(PEP(), images=8), Watching(), Watching()
    complete(tiny, tmp_path, 1, observer=first)
    ((roster, folder),) = first.begun
    assert (len(roster), folder) == (4, tmp_path)
    assert first.stages == [(name, done, 3) for name in ("warm start", "training") for done in range(4)]
    assert [(record["round"], record["nodes"]) for record in first.records] == [(1, 3)]
    complete(tiny, tmp_path, 2, observer=second, resume=True)
    assert [(record["round"], record.get("nodes")) for record in second.records] == [(1, None), (2, 3)]


def test_what_was_sent_before_round_0_is_counted_and_costs_what_was_planned(tmp_path):
    pytest.importorskip("dp_accounting")
    tiny = TinyFederation(PEP(), images=8, settings=["privacy=dp", "privacy.max_epsilon=50"])
    run = tiny.run(1, (0, 1, 2))
    (record,) = run.result.rounds
    planned = tiny.made(1, (0, 1, 2)).roster.budget.planned()
    assert record["epsilon"] == planned.epsilon == run.result.summary["privacy"]["epsilon"]
    keys = ["round", "clients", "train_loss", "upload_floats", "download_bytes", "epsilon", "seconds"]
    assert [key for key in record if key in keys] == keys, "a reader finds them in this order"
    sent = [tensor for reply in run.replies for tensor in reply.tensors.values()]
    summary = run.result.summary
    assert summary["warm_up_upload_floats"] == sum(t.numel() for t in sent if t.is_floating_point())
    assert summary["warm_up_upload_bytes"] == sum(t.numel() * t.element_size() for t in sent)


def test_a_run_that_was_killed_before_round_0_counts_what_its_journal_says(tmp_path):
    pytest.importorskip("dp_accounting")
    settings = ["privacy=dp", "privacy.noise=1.5", "privacy.max_epsilon=50"]
    tiny = TinyFederation(HeadTuning(), images=8, settings=settings)
    not_repeating(tiny)
    folder = RunFolder(tmp_path)
    folder.open()
    folder.write_config({})
    folder.append_release([0, 1, 2], 1)
    folder.close()
    result, _ = complete(tiny, tmp_path, 1, resume=True, given=(0, 1, 2))
    assert result.rounds[0]["epsilon"] == Ledger(releases={0: 2}).epsilon(1.5, 1e-5)


def test_a_private_run_that_is_gone_on_with_has_spent_what_it_had_spent():
    pytest.importorskip("dp_accounting")
    settings = ["privacy=dp", "privacy.noise=1.5", "privacy.max_epsilon=50"]
    run = TinyFederation(HeadTuning(), images=8, settings=settings).run(1, (0, 1, 2)).more(1, (0, 1, 2))
    spent = [Ledger(releases={0: number}).epsilon(1.5, 1e-5) for number in (1, 2)]
    assert [record["epsilon"] for record in run.result.rounds] == spent


def test_a_run_whose_noise_cannot_be_repeated_goes_on_from_its_journal(tmp_path):
    pytest.importorskip("dp_accounting")
    settings = ["privacy=dp", "privacy.noise=1.5", "privacy.max_epsilon=50"]
    tiny = TinyFederation(HeadTuning(), images=8, settings=settings)
    not_repeating(tiny)
    complete(tiny, tmp_path, 1, given=(0, 1, 2))
    with (tmp_path / "releases.jsonl").open("a") as file:
        file.write('{"clients": [1], "releases": 1}\n')  # of a round that was not finished
    result, _ = complete(tiny, tmp_path, 2, resume=True, given=(0, 1, 2))
    spent = [Ledger(releases={0: number}).epsilon(1.5, 1e-5) for number in (1, 3)]
    assert [record["epsilon"] for record in result.rounds] == spent
    (tmp_path / "releases.jsonl").unlink()
    with pytest.raises(RunFolderError, match="0 releases where there were 7"):
        complete(tiny, tmp_path, 3, resume=True, given=(0, 1, 2))


def test_where_nothing_was_released_no_journal_is_asked_for(tmp_path):
    tiny = TinyFederation(HeadTuning(), images=8)
    not_repeating(tiny)
    for rounds in (1, 2):
        result, _ = complete(tiny, tmp_path, rounds, resume=rounds > 1)
    assert [record["round"] for record in result.rounds] == [1, 2]


def test_a_run_gone_on_with_at_another_rate_keeps_both_settings(tmp_path):
    tiny = TinyFederation(HeadTuning(), images=8)
    complete(tiny, tmp_path, 1)
    tiny.training = tiny.training.model_copy(update={"batch_size": 4})
    result, _ = complete(tiny, tmp_path, 2, resume=True)
    (change,) = result.summary["changed_settings"]
    assert change == {"from_round": 2, "settings": {"training.batch_size": {"before": 8, "now": 4}}}
    sizes = [
        tomllib.loads((tmp_path / name).read_text())["training"]["batch_size"]
        for name in ("config-round-000001.toml", "config.toml")
    ]
    assert sizes == [8, 4]


@pytest.mark.parametrize(("every", "kept"), [(0, []), (1, [2, 3]), (2, [2, 3]), (5, [0, 3])])
def test_checkpoints_are_written_every_so_many_rounds_and_after_the_last(tmp_path, every, kept):
    tiny = TinyFederation(HeadTuning(), images=8, settings=[f"checkpoint.every={every}"])
    complete(tiny, tmp_path, 3)
    names = sorted(path.stem for path in tmp_path.glob("checkpoints/*"))
    assert names == [f"round-{number:06}" for number in kept]


def test_a_run_that_fails_leaves_a_checkpoint_of_what_was_done(tmp_path):
    settings = ["checkpoint.every=0", "min_updates=3"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=FailingLater, settings=settings)
    for resume in (False, True):
        with pytest.raises(FedcueError, match="Round 2 got fewer than min_updates=3"):
            complete(tiny, tmp_path, 3, resume=resume)
        assert [path.stem for path in tmp_path.glob("checkpoints/*")] == ["round-000001"]
    tiny.host_kind = Host
    result, _ = complete(tiny, tmp_path, 3, resume=True)
    assert [record["round"] for record in result.rounds] == [1, 2, 3]


class FailingLater(Host):
    """Clients that get through the first round and no further."""

    def train(self, download, memory):
        if download.round:
            raise ClientError("it stumbled")
        return super().train(download, memory)


def test_a_checkpoint_of_another_method_is_not_gone_on_with(tmp_path):
    complete(TinyFederation(HeadTuning(), images=8), tmp_path, 1)
    with pytest.raises(RunFolderError, match="does not fit fedvpt"):
        complete(TinyFederation(FedVPT(), images=8), tmp_path, 2, resume=True)


def test_what_clients_do_not_keep_is_not_remembered_of_them():
    assert TinyFederation(HeadTuning(), images=8).run(1).memories == {}


class Unanswering(Host):
    """Client 1 cannot answer before the first round."""

    silent = (1,)

    def warm_up(self, client):
        if client in self.silent:
            raise ClientError("it is cold")
        return super().warm_up(client)


class Silent(Unanswering):
    """Nobody answers."""

    silent = range(4)


def test_who_does_not_answer_before_the_first_round_is_named_and_left_out():
    run = TinyFederation(PEP(), images=8, host_kind=Unanswering).run(1)
    assert [reply.client for reply in run.replies] == [0, 2]
    assert run.result.summary["warm_up_failures"] == [{"client": 1, "reason": "it is cold"}]
    assert run.result.rounds[0]["failures"] == [{"step": "warm up", "client": 1, "reason": "it is cold"}]
    floats = sum(tensor.numel() for reply in run.replies for tensor in [reply.tensors["centroids"]])
    assert run.result.summary["warm_up_upload_floats"] == floats
    assert "failures" not in run.more(1).result.rounds[1]


class Alone(Unanswering):
    """One client answers."""

    silent = (0, 2)


def test_one_answer_is_enough_for_a_mean():
    assert [reply.client for reply in TinyFederation(PEP(), images=8, host_kind=Alone).run(1).replies] == [1]


def test_a_rule_that_needs_more_answers_than_came_says_how_many():
    settings = ["aggregate=median", "aggregate.attackers=1"]
    with pytest.raises(
        FedcueError, match="1 clients answered before round 0, aggregate=median needs at least 3"
    ):
        TinyFederation(PEP(), images=8, host_kind=Alone, settings=settings).run(1)


def test_without_any_answer_there_is_no_run():
    with pytest.raises(
        FedcueError, match=r"0 clients answered before round 0, aggregate=mean needs at least 1"
    ):
        TinyFederation(PEP(), images=8, host_kind=Silent).run(1)


def test_checkpoints_and_snapshots_are_those_of_the_rounds_asked_for():
    """The newest two of the rounds 0, 2 and 4 are kept."""
    settings = ["checkpoint.every=2", "snapshots=[0,3]"]
    run = TinyFederation(HeadTuning(), images=8, settings=settings).run(4)
    folder = run.result.folder
    names = {
        part: sorted(path.stem for path in (folder / part).iterdir()) for part in ("checkpoints", "snapshots")
    }
    assert names["checkpoints"] == ["round-000002", "round-000004"]
    assert names["snapshots"] == ["round-000000", "round-000003"]


def test_a_run_that_was_resumed_can_be_resumed_again():
    run = TinyFederation(HeadTuning(), images=8).run(1).more(1).more(1)
    whole = TinyFederation(HeadTuning(), images=8).run(3)
    assert [record["round"] for record in run.result.rounds] == [1, 2, 3]
    assert torch.equal(run.state.tensors["head"], whole.state.tensors["head"])


PRIVATE = ["privacy=dp", "privacy.max_epsilon=50"]


class FailingOnce(Host):
    """Client 1 fails at its first visit in the round ``when``."""

    when = 1
    failed = False

    def train(self, download, memory):
        if (download.client, download.round, self.failed) == (1, self.when, False):
            self.failed = True
            raise ClientError("it stumbled")
        return super().train(download, memory)


class FailingAtFirst(FailingOnce):
    """The same in the first round."""

    when = 0


def test_a_round_that_would_cost_more_than_is_left_ends_the_run_and_says_why():
    """Two rounds were planned, and the second one has to be drawn again."""
    settings = [*PRIVATE, "min_updates=3"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=FailingOnce, settings=settings)
    summary = tiny.run(2, (0, 1, 2)).result.summary
    assert summary["rounds"] == 1
    assert "Round 2 would spend epsilon=" in summary["ended_early"]
    assert summary["ended_early"].endswith(
        "It was drawn again because clients failed (client 1: it stumbled)."
    )


def test_a_first_round_that_would_cost_more_than_there_is_is_no_run():
    settings = [*PRIVATE, "min_updates=3"]
    tiny = TinyFederation(HeadTuning(), images=8, host_kind=FailingAtFirst, settings=settings)
    with pytest.raises(BudgetSpent, match="Round 1 would spend"):
        tiny.run(1, (0, 1, 2))


@pytest.mark.parametrize("simulated", [True, False])
def test_releases_are_written_down_beforehand_where_noise_cannot_be_repeated(simulated):
    tiny = TinyFederation(HeadTuning(), images=8, settings=PRIVATE)
    not_repeating(tiny, simulated)
    run = tiny.run(2, (0, 2))
    journal = run.result.folder / "releases.jsonl"
    if simulated:
        assert not journal.exists()
    else:
        assert [json.loads(line) for line in journal.read_text().splitlines()] == [
            {"clients": [0, 2], "releases": 1}
        ] * 2


def test_rounds_after_the_last_checkpoint_are_done_again_and_not_listed_twice():
    run = TinyFederation(HeadTuning(), images=8).run(1)
    with open(run.result.folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 2, "of": "a run that was killed"}\n')
    assert [(record["round"], record.get("of")) for record in run.more(1).result.rounds] == [
        (1, None),
        (2, None),
    ]


def test_what_clients_keep_is_left_in_a_file():
    run = TinyFederation(PPT(), images=8).run(1, (0, 2))
    kept = load_file(run.result.folder / "clients.safetensors")
    assert sorted(kept) == ["0/private_prompts", "2/private_prompts"]
    for client in (0, 2):
        assert torch.equal(kept[f"{client}/private_prompts"], run.memories[client].tensors["private_prompts"])


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A federation that is made whatever the configuration says of data, in an empty folder."""
    federation = TinyFederation(HeadTuning(), images=8, settings=["checkpoint.keep=1"])
    monkeypatch.setattr(loop, "load_federation", lambda config, tell: federation.made(config.rounds))
    monkeypatch.chdir(tmp_path)
    return federation


def test_a_run_from_its_configuration_is_left_in_its_folder_which_nobody_holds_then(tiny, tmp_path):
    watching = Watching()
    result = loop.run(tiny.config(2), tmp_path / "run", observer=watching)
    assert result.folder == tmp_path / "run"
    assert {path.name for path in result.folder.iterdir()} == FILES
    assert [record["round"] for record in watching.records] == [1, 2]
    assert len(list(result.folder.glob("checkpoints/*"))) == 1
    with pytest.raises(RunFolderError, match="not empty"):
        loop.run(tiny.config(2), result.folder)
    again = loop.run(tiny.config(3), result.folder, resume=True)
    assert [record["round"] for record in again.rounds] == [1, 2, 3]
    anew = loop.run(tiny.config(1), result.folder, overwrite=True)
    assert [record["round"] for record in anew.rounds] == [1]


def test_a_run_without_a_folder_gets_one_under_runs(tiny, tmp_path):
    folder = loop.run(tiny.config(1)).folder
    assert folder.parent.name == "runs"
    assert folder.resolve().is_relative_to(tmp_path)


def test_another_run_is_not_gone_on_with(tiny, tmp_path):
    loop.run(tiny.config(1), tmp_path / "run")
    other = tiny.config(2).model_copy(update={"seed": 7})
    with pytest.raises(RunFolderError, match=r"holds another run.*seed=0, asked for seed=7"):
        loop.run(other, tmp_path / "run", resume=True)
    loop.run(tiny.config(2), tmp_path / "run", resume=True)


def test_a_transport_that_is_refused_leaves_nothing_behind(tiny, tmp_path):
    tiny.settings = ["transport.dtype=float16", "aggregate=secure"]
    with pytest.raises(ConfigError, match="transport"):
        loop.run(tiny.config(1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_is_told_of_every_round_and_of_the_end(tiny, tmp_path, monkeypatch):
    told = []

    class Tracker:
        def open(self, name, folder, settings):
            told.append((name, settings["seed"]))
            return 0

        def log(self, number, values):
            told.append(number)

        def close(self, summary):
            told.append(summary["rounds"])

    monkeypatch.setattr(observers, "tracker", lambda name: Tracker())
    tiny.settings = ['log=["tensorboard"]']
    watching = Watching()
    watching.finished_round = lambda record: told.append(f"shown {record['round']}")
    loop.run(tiny.config(2), tmp_path / "run", observer=watching)
    assert told == [("run", 0), "shown 1", 1, "shown 2", 2, 2]

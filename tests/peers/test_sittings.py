"""Each peer is set up, loaded and ended, and what can't be had is skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.loads import Load, Missing
from benchmarks.peers.__main__ import chosen, peers
from benchmarks.peers.figures import Configuration, Floor, Sitting
from benchmarks.peers.sittings import sittings


class Recorder:
    """A peer that needs nothing. It writes down what it is asked for, and fails where it is told to."""

    warming_s = (2.0, 1.0)

    def __init__(self, *, fails: str = "", times: int = 99, locks: str = "") -> None:
        self.configuration = Configuration("recorder", "Recorder", "it is written down", True, "none", locks)
        self.done: list[str] = []
        self.directories: list[Path] = []
        self._fails = fails
        self._times = times

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what == self._fails and self._times:
            self._times -= 1
            raise Missing(f"{what} failed")

    def install(self) -> str:
        self._do("install")
        return "Recorder 1"

    def start(self, directory: Path) -> None:
        assert not directory.exists()
        directory.mkdir()
        self.directories.append(directory)
        self._do("start")

    def load(self, outstanding: int, seconds: float) -> Load:
        self._do(f"load {outstanding}")
        return Load(seconds, 1.0, 2.0)

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        self._do(f"withdraw {accounts}")
        return Load(seconds, 1.0, 2.0)

    def stop(self) -> None:
        self._do("stop")


Sit = Callable[..., list[Sitting]]


@pytest.fixture
def sit(tmp_path: Path) -> Sit:
    """Sittings of one second each on a quick and steady disk."""

    def run(*recorders: Recorder, runs: int = 1) -> list[Sitting]:
        done = sittings(recorders, tmp_path, 1.0, runs, lambda directory, reference: Floor(0.1, 0.01))
        assert list(tmp_path.iterdir()) == [], "a peer's files are removed after it"
        return done

    return run


def test_every_load_is_warmed_before_the_first_run_and_measured_in_each(sit: Sit) -> None:
    peer = Recorder()
    [sitting] = sit(peer, runs=2)
    loads = ["load 1", "load 64", "load 1024"]
    warmed = [load for load in loads for _ in range(2)]
    assert peer.done == ["install", "start", "load 1024", *warmed, *loads, "stop"]
    assert {outstanding: len(runs) for outstanding, runs in sitting.runs.items()} == {1: 2, 64: 2, 1_024: 2}
    assert not sitting.withdrawals
    assert sitting.version == "Recorder 1"
    assert sitting.before == sitting.after == Floor(0.1, 0.01)


def test_everything_is_installed_before_anything_is_measured(sit: Sit) -> None:
    order: list[str] = []

    class Telling(Recorder):
        def _do(self, what: str) -> None:
            order.append(what.partition(" ")[0])

    sit(Telling(), Telling())
    assert [what for what in order if what != "load"] == ["install", "install", "start", "stop", "start", "stop"]


def test_withdrawals_are_asked_of_peers_that_can_do_them(sit: Sit) -> None:
    [sitting] = sit(Recorder(locks="a version"), runs=2)
    assert {accounts: len(runs) for accounts, runs in sitting.withdrawals.items()} == {1: 2, 10_000: 2}


def test_a_peer_that_can_not_be_had_is_skipped_with_the_reason_and_the_next_one_is_measured(
    sit: Sit, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking, there = sit(Recorder(fails="install"), Recorder())
    assert lacking.missing == "install failed"
    assert not lacking.runs
    assert there.runs
    assert "Recorder: install failed" in capsys.readouterr().out


def test_a_start_that_failed_is_ended_and_tried_once_more_on_an_empty_directory(sit: Sit) -> None:
    peer = Recorder(fails="start", times=1)
    [sitting] = sit(peer)
    assert peer.done[:4] == ["install", "start", "stop", "start"]
    assert len(set(peer.directories)) == 2
    assert sitting.runs
    assert not sitting.missing


def test_a_peer_that_does_not_start_is_ended(sit: Sit) -> None:
    peer = Recorder(fails="start")
    [sitting] = sit(peer)
    assert peer.done == ["install", "start", "stop", "start", "stop"]
    assert sitting.missing == "start failed"
    assert sitting.after is None


def test_what_was_measured_before_a_load_failed_is_kept(sit: Sit) -> None:
    peer = Recorder(fails="load 64")
    [sitting] = sit(peer)
    assert list(sitting.runs) == [1]
    assert sitting.missing == "load 64 failed"
    assert sitting.after is not None
    assert peer.done[-1] == "stop"


def test_a_fault_of_our_own_ends_the_peer_too(tmp_path: Path) -> None:
    class Broken(Recorder):
        def load(self, outstanding: int, seconds: float) -> Load:
            raise ZeroDivisionError

    peer = Broken()
    with pytest.raises(ZeroDivisionError):
        sittings([peer], tmp_path, 1.0, 1, lambda directory, reference: Floor(0.1, 0.01))
    assert peer.done[-1] == "stop"
    assert list(tmp_path.iterdir()) == []


def test_only_takes_some_peers_in_all_their_configurations() -> None:
    assert [peer.configuration.durable for peer in chosen("kafka")] == [True, False]
    assert {peer.configuration.peer for peer in chosen("nats, polonaise")} == {"nats", "polonaise"}
    assert len(chosen("")) == len(peers()) == 7


def test_only_refuses_a_name_that_is_no_peer() -> None:
    with pytest.raises(SystemExit, match="--only kafak: not one of kafka, nats, polonaise, postgresql"):
        chosen("nats,kafak")


def test_no_two_configurations_have_the_same_name() -> None:
    names = [peer.configuration.name for peer in peers()]
    assert len(set(names)) == len(names)

"""Each peer is set up, loaded and ended; figures are of the best runs; our own row is measured on a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.loads import Load, Missing, best, percentile
from benchmarks.peers.__main__ import chosen, peers
from benchmarks.peers.figures import Configuration, Floor, Sitting
from benchmarks.peers.ours import Polonaise
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


DIFFER = "its floors differ by more than twice"


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7.0], 50, 7.0),
        ([7.0], 99, 7.0),
        ([1.0, 2.0], 50, 1.0),
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([float(number) for number in range(1, 101)], 99, 99.0),
        ([float(number) for number in range(1, 102)], 99, 100.0),
        ([float(number) for number in range(1, 11)], 99, 10.0),
        ([float(number) for number in range(1, 11)], 0, 1.0),
        ([float(number) for number in range(1, 11)], 100, 10.0),
    ],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_load_is_its_throughput_and_its_latencies() -> None:
    assert Load.measured(4, 2.0, [1.0, 4.0, 2.0, 3.0]) == Load(2.0, 2.0, 4.0)


@pytest.mark.parametrize(("count", "took_s"), [(0, 1.0), (5, 0.0)])
def test_a_load_that_acknowledged_nothing_is_no_figure(count: int, took_s: float) -> None:
    with pytest.raises(Missing, match="no transaction was acknowledged"):
        Load.measured(count, took_s, [1.0])


def test_the_best_run_is_the_quickest_for_one_outstanding_and_the_fullest_for_many() -> None:
    quick, full = Load(900, p50_ms=1.0, p99_ms=9.0), Load(1_000, p50_ms=1.1, p99_ms=2.0)
    assert best(1, [full, quick, full]) is quick
    assert best(64, [quick, full, quick]) is full


@pytest.mark.parametrize(
    ("before", "after", "noise"),
    [
        (Floor(0.2, 0.04), Floor(0.2, 0.04), []),
        (Floor(0.2, 0.04), Floor(0.4, 0.02), []),
        (Floor(0.2, 0.04), Floor(0.41, 0.04), [DIFFER]),
        (Floor(0.41, 0.04), Floor(0.2, 0.04), [DIFFER]),
        (Floor(0.2, 0.04), Floor(0.2, 0.081), [DIFFER]),
        (Floor(0.2, 0.04, 0.2), Floor(0.2, 0.04, 0.1), []),
        (Floor(0.2, 0.04, 0.1), Floor(0.2, 0.04, 0.55), ["other programs had 55% of the processors"]),
        (Floor(0.2, 0.04, 0.3), Floor(0.5, 0.04), [DIFFER, "other programs had 30% of the processors"]),
    ],
)
def test_a_sitting_is_noisy_when_its_floors_differ_or_others_are_at_work(
    before: Floor, after: Floor, noise: list[str]
) -> None:
    sitting = Sitting(Configuration("a", "A", "it is there", durable=True, client="C"), before=before, after=after)
    assert sitting.noise == noise


def test_a_sitting_is_compared_with_the_mean_of_its_floors() -> None:
    configuration = Configuration("a", "A", "it is there", durable=True, client="C")
    sitting = Sitting(configuration, before=Floor(0.2, 0.04), after=Floor(0.4, 0.04))
    assert sitting.fdatasync_ms == pytest.approx(0.3)


@pytest.mark.slow
def test_appends_and_withdrawals_are_measured_and_nothing_runs_on(tmp_path: Path) -> None:
    peer = Polonaise()
    assert peer.install().startswith("Polonaise ")
    try:
        peer.start(tmp_path / "cluster")
        for load in (peer.load(1, 0.3), peer.load(8, 0.3), peer.withdraw(1, 4, 0.3), peer.withdraw(100, 4, 0.3)):
            assert load.per_second > 0
            assert 0 < load.p50_ms <= load.p99_ms
        cluster = peer._cluster
        assert cluster is not None
    finally:
        peer.stop()
    assert not any(node.alive for node in cluster.storage)

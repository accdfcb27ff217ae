"""`polonaise bench …`: what is appended and followed, what is said of it, and what is refused."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from polonaise.admin.bench import Load, Measured
from polonaise.errors import AppendExpired, AppendUnknown, BadOption, PolonaiseError
from rigs.shell import Shell

LOG = "memory:log"


def held(shell: Shell, partition: int = 0) -> list[bytes]:
    return [tx.data for tx in shell.clusters[LOG].partition(partition).transactions()]


def appends_fail(monkeypatch: pytest.MonkeyPatch, error: PolonaiseError, fails: Callable[[int], bool]) -> None:
    """Have the appends fail with this error whose numbers, from 1, are chosen by `fails`."""
    from polonaise.client.log import Log

    real, calls = Log.append, count(1)

    def append(self: Log, *arguments: Any, **options: Any) -> Any:
        if fails(next(calls)):
            raise error
        return real(self, *arguments, **options)

    monkeypatch.setattr(Log, "append", append)


# ------------------------------------------------------------------ what is measured


def test_percentiles_are_latencies_that_were_measured() -> None:
    measured = Measured(seconds=2.0, body_bytes=1_000, latencies_s=array("d", [n / 1000 for n in range(1, 101)]))
    document = measured.document()
    assert document["transactions"] == 100
    assert document["transactions_per_s"] == 50.0
    assert document["bytes_per_s"] == 500.0
    assert document["latency_ms"] == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 100.0, "max": 100.0}


def test_a_benchmark_in_which_nothing_succeeded_has_zeros() -> None:
    assert set(Measured().document()["latency_ms"].values()) == {0.0}


@pytest.mark.parametrize(
    ("load", "naming"),
    [
        (Load(1, size=15), "too short"),
        (Load(1, lock_pool=2, locks=3), "larger"),
        (Load(1, partitions=()), "no partition"),
    ],
)
def test_a_load_that_cannot_be_run_is_refused(load: Load, naming: str) -> None:
    with pytest.raises(BadOption, match=naming):
        load.check()


# ------------------------------------------------------------------ producers


@pytest.mark.slow
def test_producers_append_what_is_asked_for_to_each_partition_by_turns(shell: Shell) -> None:
    shell.cluster(partitions=3)
    [said] = shell.run(
        "bench", "producers", LOG, "-n", 50, "-c", 2, "--size", 40, "-p", "0,2", "--outstanding", 4, "--json"
    ).objects
    assert said["transactions"] == 100
    assert said["failed"] == {}
    assert said["made_again"] == 0
    assert 0 < said["latency_ms"]["p50"] <= said["latency_ms"]["p99.9"] <= said["latency_ms"]["max"]
    assert [len(held(shell, partition)) for partition in range(3)] == [50, 0, 50]
    assert {len(body) for body in held(shell)} == {40}
    assert len(set(held(shell))) == 25, "two clients number their transactions alike"


@pytest.mark.slow
def test_producers_with_locks_make_again_what_met_a_conflict(shell: Shell) -> None:
    shell.cluster()
    [said] = shell.run("bench", "producers", LOG, "-n", 40, "-c", 2, "--lock-pool", 1, "--json").objects
    assert said["transactions"] == 80
    assert said["made_again"] > 0
    assert len(held(shell)) == 80


@pytest.mark.slow
def test_producers_with_an_interval_take_as_long(shell: Shell) -> None:
    shell.cluster()
    [said] = shell.run("bench", "producers", LOG, "-n", 20, "--interval", 20, "--json").objects
    assert 0.15 < said["seconds"] < 5.0
    assert said["transactions_per_s"] < 140


@pytest.mark.slow
def test_people_get_a_table(shell: Shell) -> None:
    shell.cluster()
    rows = {" ".join(row[:-1]): row[-1] for row in shell.run("bench", "producers", LOG, "-n", 5).rows}
    assert rows["transactions"] == "5"
    assert {"seconds", "transactions/s", "MB/s", "p50 ms", "p99.9 ms", "max ms", "made again"} < rows.keys()


@pytest.mark.slow
def test_appends_that_fail_are_counted_and_the_command_says_so_by_its_status(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.cluster()
    appends_fail(monkeypatch, AppendUnknown("nobody knows"), lambda call: call % 2 == 1)
    said = shell.run("bench", "producers", LOG, "-n", 10, "--json")
    assert said.status == 1
    assert said.objects[0]["failed"] == {"append_unknown": 5}
    assert said.objects[0]["transactions"] == 5
    assert ["failed:", "append_unknown", "5"] in shell.run("bench", "producers", LOG, "-n", 10).rows


@pytest.mark.slow
def test_what_fails_for_every_append_ends_the_benchmark_with_its_error(shell: Shell) -> None:
    shell.cluster()
    shell.refuses("bench", "producers", LOG, "--size", 100_000_000, "-n", 3, code="body_too_large")
    assert held(shell) == []


# ------------------------------------------------------------------ consumers


@pytest.mark.slow
def test_each_consumer_receives_every_transaction_of_the_run_and_no_other(shell: Shell) -> None:
    shell.cluster(partitions=2)
    assert shell.run("log", "append", LOG, "-p", 0, "not of the run").status == 0
    [said] = shell.run("bench", "consumers", LOG, "-n", 31, "-c", 3, "--size", 20, "--json").objects
    assert said["transactions"] == 93
    assert said["failed"] == {}
    assert len(held(shell, 0)) + len(held(shell, 1)) == 32


@pytest.mark.slow
def test_fewer_transactions_than_partitions_are_followed_where_they_are(shell: Shell) -> None:
    shell.cluster(partitions=4)
    [said] = shell.run("bench", "consumers", LOG, "-n", 2, "--json").objects
    assert said["transactions"] == 2


@pytest.mark.slow
def test_consumers_do_not_wait_for_ever_for_a_transaction_whose_append_failed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.cluster()
    appends_fail(monkeypatch, AppendExpired("too late"), lambda call: call == 2)
    shell.refuses(
        "bench", "consumers", LOG, "-n", 5, "--timeout", 1, code="deadline_exceeded",
        naming="partition 0 still lacks 1 of the run's transactions after 1 s",
    )  # fmt: skip


# ------------------------------------------------------------------ what is refused


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["producers", "consumers"])
def test_bad_input_of_a_benchmark_has_its_own_error_and_appends_nothing(shell: Shell, verb: str) -> None:
    shell.cluster()
    shell.refuses("bench", verb, code="bad_option", naming="which log?")
    shell.refuses("bench", verb, "memory:other", code="bad_option", naming="memory:other")
    shell.refuses("bench", verb, LOG, "-p", "7", code="unknown_partition")
    shell.refuses("bench", verb, LOG, "-p", "x", code="bad_option")
    shell.refuses("bench", verb, "embedded:/nowhere/at/all", code="not_initialized")
    for wrong in (["-n", "0"], ["-c", "0"], ["--size", "15"], ["--interval", "-1"], ["--outstanding", "0"]):
        assert shell.run("bench", verb, LOG, *wrong).status == 2
    assert held(shell) == []


@pytest.mark.slow
def test_more_locks_than_the_pool_has_are_refused(shell: Shell) -> None:
    shell.cluster()
    shell.refuses("bench", "producers", LOG, "--lock-pool", 2, "--locks", 3, code="bad_option", naming="pool of 2")
    assert held(shell) == []

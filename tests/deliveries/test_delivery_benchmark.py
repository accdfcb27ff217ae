"""The benchmark of deliveries: what it makes of times, and a short run of all that needs no other program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.deliveries.delays import Delays, Delivery, Spread
from benchmarks.deliveries.form import STAMPS, Notes, Workload, name_of, route
from benchmarks.deliveries.page import delays_lines
from benchmarks.deliveries.plot import plot
from benchmarks.deliveries.rig import GRPC, LINK, Delivered
from benchmarks.delivery import Benchmark, read_options
from benchmarks.loads import Missing

ROOT = Path(__file__).parent.parent.parent


def delays(player_ms: float, apply_ms: float) -> Delays:
    return Delays(*(Spread(each, each / 2, each * 3) for each in (player_ms, apply_ms)), processor_us=100)


# ---------------------------------------------------------------------- transactions


@pytest.mark.parametrize("workload", [Workload(2), Workload(5), Workload(20), Workload(20, 1)])
def test_each_key_goes_to_one_target_and_as_many_targets_as_can_be_get_something(workload: Workload) -> None:
    transactions = workload.transactions()
    expected = dict.fromkeys(workload.names, 0)
    for number in range(50):
        entries = route(SimpleNamespace(data=transactions.transaction(number)))
        assert len(entries) == workload.deliveries
        values = sum(len(payload) - STAMPS.size for payload in entries.values())
        assert values == workload.keys * workload.value_bytes
        for name, payload in entries.items():
            expected[name] += 1
            committed_ns, dispatched_ns, told = STAMPS.unpack_from(payload)
            assert told == number
            assert committed_ns <= dispatched_ns
    assert transactions.expected(0, 50) == expected


def test_notes_are_told_once() -> None:
    notes = Notes()
    notes.received([STAMPS.pack(1, 2, 3), STAMPS.pack(4, 5, 6)], 9)
    assert notes.told() == {"count": 2, "first_ns": 9, "last_ns": 9, "times": [(1, 2, 3, 9), (4, 5, 6, 9)]}
    assert notes.told()["times"] == []


# ---------------------------------------------------------------------- figures


def test_delays_are_those_of_the_paper() -> None:
    found = Delays.of([Delivery(0, 2_000_000, 0, 3_000_000), Delivery(0, 1_000_000, 1, 4_000_000)], 5.0)
    assert found == Delays(Spread(2.0, 1.0, 3.0), Spread(3.5, 3.0, 4.0), 5.0)
    assert Delays.medians([found, found, delays(100, 100)]) == found


def test_delays_of_nothing_are_missing() -> None:
    with pytest.raises(Missing, match="nothing was delivered"):
        Delays.of([])


class Receiver:
    """A process of targets that tells these counts."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    async def ask(self, what: str, **about: Any) -> dict[str, int]:
        return self._counts


@pytest.mark.parametrize(
    ("received", "reason"), [(2, "too much"), (0, "not received what they should"), (1, "")], ids=str
)
async def test_a_target_that_has_not_received_what_it_should_ends_the_run(received: int, reason: str) -> None:
    setup = Delivered(Receiver({}))  # type: ignore[arg-type]
    setup.hosts = {name_of(0): Receiver({name_of(0): received})}  # type: ignore[dict-item]
    if not reason:
        await setup.all_received({name_of(0): 1}, within_s=0)
        return
    with pytest.raises(Missing, match=reason):
        await setup.all_received({name_of(0): 1}, within_s=0)


# ---------------------------------------------------------------------- the page


@pytest.mark.slow
def test_ratios_are_those_to_the_floor_of_the_same_run(tmp_path: Path) -> None:
    workload = Workload(20)
    figures = {workload: {"bare asyncio streams": delays(0.5, 9), LINK: delays(1.0, 8), GRPC: delays(2.0, 9)}}
    lines = delays_lines(figures)
    assert "| 20 × 10 | link | 1.00 | 0.50 | 3.00 | 2.00 | 2.00 | 8.00 | 4.00 | 24.00 | 100 |" in lines
    assert "| 20 × 10 | bare asyncio streams | 0.50 | 0.25 | 1.50 |  |  |  |  |  | 100 |" in lines
    assert "| 20 × 10 | gRPC | 2.00 | 1.00 | 6.00 |  |  | 9.00 | 4.50 | 27.00 | 100 |" in lines
    plot(figures, figures, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------------- short runs


def quick(monkeypatch: pytest.MonkeyPatch, *words: str) -> Benchmark:
    monkeypatch.setattr(sys, "argv", ["delivery", "--quick", *words])
    return Benchmark(read_options())


def test_an_unknown_part_ends_the_program_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="delys: not one of delays, saturation, stopped, behind, kafka"):
        quick(monkeypatch, "--only", "delys")


@pytest.mark.exhaustive  # of transports
@pytest.mark.slow
@pytest.mark.parametrize("transport", [LINK, GRPC])
def test_a_short_run_measures_all_that_it_can_here(transport: str) -> None:
    only = "delays,saturation,stopped,behind"
    command = [sys.executable, "-m", "benchmarks.delivery", "--quick", "--transports", transport, "--only", only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"| {transport} |")]
    assert len(rows) == 3, done.stdout
    assert sum(f"| {transport} |" in line for line in done.stdout.splitlines()) == 5, done.stdout

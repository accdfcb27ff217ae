"""A short soak, and the judgement tried on processes that grow and on logs that are wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from polonaise_proving.judges.flatness import SAMPLES_MIN, Course, Stretch, courses
from polonaise_proving.record.history import Line, LineKind
from polonaise_proving.record.sampling import FIGURES, Sample, look
from polonaise_proving.scenarios.soak import SoakCampaign, SoakReport
from polonaise_proving.stages.soaknode import body
from polonaise_proving.work.leaks import EVERY_S, LEAKS

FLAT = Sample(0.0, files=20, sockets=8, other=9, threads=6, memory_mb=50.0, tasks=20)


@pytest.mark.slow
async def test_some_minutes_of_work_with_kills_and_give_ups_leave_every_process_as_small_as_it_was(
    tmp_path: Path,
) -> None:
    with SoakCampaign(tmp_path, minutes=1.5) as campaign:
        await campaign.run()
    report = campaign.report
    assert report.wrong == []
    assert report.server_kills
    assert report.client_restarts
    assert report.storage_stops
    assert report.fates.acknowledged > 500
    assert report.fates.unknown > 10


async def nothing(*_: Any) -> None:
    pass


async def on_and_on(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def undisturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SoakCampaign:
    """A campaign of a fraction of a second, without a cluster."""
    for name in ("_start", "_end", "_kill_servers"):
        monkeypatch.setattr(SoakCampaign, name, nothing)
    for name in ("_restart_clients", "_stop_storage", "_sample"):
        monkeypatch.setattr(SoakCampaign, name, on_and_on)
    return SoakCampaign(tmp_path, minutes=0.005)


@pytest.mark.slow
async def test_a_campaign_that_has_killed_all_that_it_had_to_waits_for_the_rest(undisturbed: SoakCampaign) -> None:
    seconds: list[float] = []
    await undisturbed.run(seconds.append)
    assert len(seconds) < 5, "a task that has ended is not waited for again and again, for the time of a processor"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["_restart_clients", "_stop_storage", "_sample"])
async def test_what_crashes_at_the_end_of_a_campaign_ends_it(
    undisturbed: SoakCampaign, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def crash_when_told_to_end(_: SoakCampaign) -> None:
        try:
            await on_and_on()
        except asyncio.CancelledError:
            raise RuntimeError("crashed") from None

    monkeypatch.setattr(SoakCampaign, name, crash_when_told_to_end)
    with pytest.raises(RuntimeError, match="crashed"):
        await undisturbed.run()


# ------------------------------------------------------------------ figures


def series(change: Callable[[int, Sample], Mapping[str, Any]], count: int = 120) -> Stretch:
    samples = [FLAT._replace(at_s=0.5 * number) for number in range(count)]
    return Stretch("it life 1", [sample._replace(**change(n, sample)) for n, sample in enumerate(samples)])


def grown(found: list[Course]) -> list[str]:
    return [course.figure for course in found if course.grown]


@pytest.mark.parametrize("figure", FIGURES)
def test_what_grows_little_by_little_is_found(figure: str) -> None:
    step = 0.5 if figure == "memory_mb" else 0.2
    found = courses(series(lambda n, sample: {figure: getattr(sample, figure) + type(step)(int(step * n))}), 10)
    assert grown(found) == [figure]


@pytest.mark.parametrize("figure", FIGURES)
def test_work_that_is_heavier_now_and_then_and_at_the_end_is_no_growth(figure: str) -> None:
    dice = Random(1)

    def change(number: int, sample: Sample) -> dict[str, Any]:
        busy = dice.random() < (0.3 if number < 80 else 0.7)
        return {figure: getattr(sample, figure) * (2 if busy else 1)}

    assert grown(courses(series(change), 10)) == []


def test_what_grows_during_the_warm_up_and_not_later_is_no_growth() -> None:
    assert grown(courses(series(lambda n, sample: {"files": min(n, 20), "memory_mb": 30.0 + min(n, 20)}), 10)) == []


def test_a_stretch_that_is_too_short_is_not_judged_and_a_process_that_was_not_judged_is_told() -> None:
    assert courses(series(lambda n, sample: {}, count=20 + SAMPLES_MIN - 1), 10) == []
    assert courses(series(lambda n, sample: {}, count=20 + SAMPLES_MIN), 10) != []
    assert "client b: no life was long enough to be judged" in SoakReport(2).wrong


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.slow
def test_a_process_that_leaks_is_found(figure: str) -> None:
    samples: list[Sample] = []
    command = [sys.executable, "-m", "polonaise_proving.work.leaks", figure]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as leaking:
        assert leaking.stdout is not None
        try:
            for number in range(int(4 * SAMPLES_MIN)):
                found = look(leaking.pid, number * EVERY_S, int(leaking.stdout.readline()))
                assert found is not None
                samples.append(found)
        finally:
            leaking.kill()
    assert grown(courses(Stretch("it life 1", samples), SAMPLES_MIN * EVERY_S)) == [figure]


def test_a_process_that_is_gone_holds_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert look(process.pid, 0.0) is None


def test_every_figure_has_a_leak_that_is_tried() -> None:
    assert set(LEAKS) == set(FIGURES)


# ------------------------------------------------------------------ what was told

ENTRIES = [(0, body("a.1/0/1")), (1, body("b.1/0/1", 30))]
LINES = [
    Line(LineKind.ASK, 0, "a.1/0/1"),
    Line(LineKind.ASK, 0, "b.1/0/1"),
    Line(LineKind.ACK, 0, "a.1/0/1", 0),
    Line(LineKind.ASK, 0, "a.1/0/3"),
    Line(LineKind.REFUSED, 0, "a.1/0/3"),
    Line(LineKind.ACK, 1, "a.1/1/2", 0),
]


def test_a_log_that_is_as_was_told_has_nothing_wrong(tmp_path: Path) -> None:
    campaign = SoakCampaign(tmp_path, minutes=1.5)
    campaign._compare(0, ENTRIES, LINES)
    fates = campaign.report.fates
    assert campaign.report.problems == []
    assert (fates.asked, fates.acknowledged, fates.refused, fates.unknown, fates.transactions) == (3, 1, 1, 1, 2)


@pytest.mark.parametrize(
    ("entries", "lines", "naming"),
    [
        (ENTRIES[1:], LINES, "a.1/0/1, which was acknowledged as 0; seen: nothing at 0"),
        ([*ENTRIES, (2, body("a.1/0/3"))], LINES, "a.1/0/3, which was refused; seen: it is in the log as [2]"),
        (
            [*ENTRIES, (2, body("b.1/0/1"))],
            LINES,
            "never answered; seen: it is in the log as [1, 2]",
        ),
        ([*ENTRIES, (2, body("c.1/0/1"))], LINES, "only what a client has asked for"),
        (ENTRIES, [*LINES, Line(LineKind.WRONG, 0, "a.1: read twice")], "a.1: read twice"),
    ],
)
def test_a_log_that_is_not_as_was_told_is_found(
    tmp_path: Path, entries: list[tuple[int, bytes]], lines: list[Line], naming: str
) -> None:
    campaign = SoakCampaign(tmp_path, minutes=1.5)
    campaign._compare(0, entries, lines)
    assert any(naming in each for each in campaign.report.wrong)

"""examples/booking.py: no seat is booked twice, whichever worker is asked, and whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import polonaise
from rigs.examples import PATIENCE_S, Program, Programs, command, programs, request
from rigs.waiting import wait_until

pytestmark = pytest.mark.slow

URL = r"Uvicorn running on (http://127\.0\.0\.1:\d+)"
UP = "Application startup complete"


def words(workers: int) -> list[str]:
    """The command of the docstring, for so many workers, on a port of the system's choice."""
    told = command("booking.py", "uvicorn")
    assert told[-2:] == ["--workers", "2"]
    return [*told[:-1], str(workers), "--port", "0"]


async def insist(url: str, key: str, asked: Any) -> tuple[int, Any]:
    """The answer to a request that is sent with its key until there is one."""

    async def answer() -> tuple[int, Any] | None:
        with contextlib.suppress(OSError):
            status, said = await request(url, key, asked)
            if status != 503:
                return status, said
        return None

    answered = await wait_until(answer, "an answer", within_s=PATIENCE_S, every_s=0.1)
    assert answered is not None
    return answered


async def sold(address: str) -> Counter[tuple[int, int]]:
    """How often the log has each seat."""
    async with polonaise.connect(address) as log:
        bodies = [json.loads(tx.data) async for tx in log.read(0)]
    return Counter((body["show"], body["seat"]) for body in bodies)


async def stop(program: Program) -> None:
    os.kill(program.pid, signal.SIGTERM)
    assert await program.end() in (0, -signal.SIGTERM)
    assert "Traceback" not in program.errors


@pytest.fixture(params=["sqlite", "sqlite each", "postgresql"])
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The database of each of two workers."""
    if request.param == "postgresql":
        return [request.getfixturevalue("postgresql").database()] * 2
    names = ["one", "other"] if request.param == "sqlite each" else ["both", "both"]
    return [f"sqlite:///{tmp_path / name}.db" for name in names]


async def two_workers(started: Programs, address: str, databases: list[str]) -> tuple[list[Program], list[str]]:
    workers = [started.start(*words(1), BOOKING_LOG=address, BOOKING_DATABASE=each) for each in databases]
    for worker in workers:
        await worker.until_said(UP)
    return workers, [await worker.until_said(URL) for worker in workers]


@pytest.mark.exhaustive  # of databases
async def test_a_seat_is_booked_once_whoever_asks_and_whoever_dies(tmp_path: Path, databases: list[str]) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    async with programs(tmp_path) as started:
        workers, urls = await two_workers(started, address, databases)
        guests = {}
        for seat in range(1, 21):
            asked = [{"show": 1, "seat": seat, "guest": guest} for guest in ("Ada", "Emmy")]
            told = await asyncio.gather(
                *(
                    request(f"{url}/bookings", f"{seat} {each['guest']}", each)
                    for url, each in zip(urls, asked, strict=True)
                )
            )
            assert sorted(status for status, _ in told) == [201, 409], told
            (booking,) = (said for status, said in told if status == 201)
            (refused,) = (said for status, said in told if status == 409)
            assert refused == {"error": f"seat {seat} of show 1 is booked"}
            guests[seat] = booking["guest"]
            for url in urls:
                assert await request(f"{url}/bookings", f"{seat} {guests[seat]}", booking) == (201, booking), "again"
        known = [{"seat": seat, "guest": guest} for seat, guest in guests.items()]
        assert [await request(f"{url}/shows/1") for url in urls] == [(200, known)] * 2

        # The worker that hosts the log dies in the middle of a request, which is sent to the other one then.
        host = next(number for number in (0, 1) if workers[number].pid == int((tmp_path / "log/host.lock").read_text()))
        asked = [{"show": 2, "seat": seat, "guest": "Ada"} for seat in range(1, 21)]
        cut = [asyncio.create_task(request(f"{urls[host]}/bookings", f"cut {each['seat']}", each)) for each in asked]
        await asyncio.wait(cut, return_when=asyncio.FIRST_COMPLETED)
        workers[host].kill()
        await asyncio.gather(*cut, return_exceptions=True)
        left = f"{urls[1 - host]}/bookings"
        for each in asked:
            assert await insist(left, f"cut {each['seat']}", each) == (201, each)
            assert (await insist(left, f"late {each['seat']}", {**each, "guest": "Emmy"}))[0] == 409
        await stop(workers[1 - host])
    expected = {(show, seat): 1 for show in (1, 2) for seat in range(1, 21)}
    assert await sold(address) == expected


async def test_what_makes_no_sense_is_refused_before_it_is_in_the_log(tmp_path: Path) -> None:
    address, whole = f"embedded:{tmp_path / 'log'}", {"show": 1, "seat": 1, "guest": "Ada"}
    async with programs(tmp_path) as started:
        [worker, second], [url, _] = await two_workers(started, address, [f"sqlite:///{tmp_path / 'b.db'}"] * 2)
        for key in ("", "k" * 201):
            assert (await request(f"{url}/bookings", key, whole))[0] == 400
        guests: list[Any] = ["", "A\0", "\ud800", "A" * 101, 7]
        wrong: list[Any] = [{}, [1], {**whole, "seat": 0}, {**whole, "seat": 2**31}, {**whole, "show": 1.5}]
        for number, asked in enumerate([*wrong, *({**whole, "guest": guest} for guest in guests)]):
            assert (await request(f"{url}/bookings", f"wrong {number}", asked))[0] == 400, asked
        assert await request(f"{url}/bookings", "right", {**whole, "show": True}) == (201, whole)
        assert (await request(f"{url}/bookings", "right", {**whole, "seat": 2}))[0] == 422
        assert (await request(f"{url}/bookings", "other", whole))[0] == 409
        await stop(worker)
        await stop(second)
    assert await sold(address) == {(1, 1): 1}


async def test_a_worker_of_uvicorn_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """The very command, with its workers behind one port."""
    address, lock = f"embedded:{tmp_path / 'booking-log'}", tmp_path / "booking-log" / "host.lock"
    async with programs(tmp_path) as started:
        service = started.start(*words(2))
        await service.until_said(UP, 2)
        url = f"{await service.until_said(URL)}/bookings"
        killed = int(lock.read_text())
        assert killed != service.pid
        for seat in range(1, 41):
            if seat == 20:
                os.kill(killed, signal.SIGKILL)
            booking = {"show": 1, "seat": seat, "guest": "Ada"}
            assert await insist(url, f"seat {seat}", booking) == (201, booking)
        await service.until_said(UP, 3)
        await wait_until(lambda: int(lock.read_text() or killed) != killed, "a take-over", within_s=PATIENCE_S)
        await stop(service)
    assert await sold(address) == {(1, seat): 1 for seat in range(1, 41)}

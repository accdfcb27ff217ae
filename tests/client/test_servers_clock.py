"""A client knows how far the clock of its machine is from that of its server, and shows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import polonaise
from polonaise import blocking
from polonaise.client.links import Links
from polonaise.client.settings import ClientSettings
from polonaise.node.reasons import client_clock_trouble
from polonaise.terms import PeerClock
from rigs.waiting import wait_until

HOUR_S = 3_600.0


class OffHost:
    """A host that gives nothing but a clock, which is two hours ahead of the server's."""

    def __init__(self) -> None:
        self.clock: Any = SimpleNamespace(monotonic_s=lambda: 50.0, wall_us=lambda: self.wall_us)
        self.wall_us = int((100 * HOUR_S + 2 * HOUR_S) * 1e6)


def test_the_servers_time_is_known_from_the_last_measure_also_after_its_connection_was_closed() -> None:
    host: Any = OffHost()
    links = Links(host, 1, bytes(16), ClientSettings())
    assert links.clock_ahead_s() is None
    assert links.wall_us() == host.wall_us, "nothing was measured"
    connection: Any = SimpleNamespace(closed=False, clock=SimpleNamespace(measured=None))
    links._bulk["one:1"] = connection
    assert links.clock_ahead_s() is None
    connection.clock.measured = PeerClock(int((100 * HOUR_S - 50) * 1e6), 1_000, 50.0)
    assert links.clock_ahead_s() == 2 * HOUR_S
    assert links.wall_us() == int(100 * HOUR_S * 1e6)
    connection.closed = True
    links._forget_closed()
    assert links.clock_ahead_s() == 2 * HOUR_S


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(None, ""), (9.0, ""), (-9.0, ""), (7_200.0, "2.0 hours ahead of"), (-30.0, "30.0 s behind")]
)
def test_a_clock_that_is_off_from_the_servers_is_a_trouble(ahead_s: float | None, said: str) -> None:
    told = client_clock_trouble(ahead_s)
    assert said in told
    assert bool(told) == bool(said)


async def test_a_log_shows_how_far_its_clock_is_from_its_servers(tmp_path: Path) -> None:
    async with polonaise.connect(f"embedded:{tmp_path}/log") as log:
        assert log.clock_ahead_s is None
        await log.append(b"one", partition=0)
        await wait_until(lambda: log.clock_ahead_s is not None)
        ahead_s = (await log.health(0))["client"]["clock_ahead_s"]
        assert -5.0 < ahead_s < 5.0


def test_a_log_for_threads_shows_it_too(tmp_path: Path) -> None:
    with blocking.connect(f"embedded:{tmp_path}/log") as log:
        log.append(b"one", partition=0).result()
        assert log.clock_ahead_s is None or abs(log.clock_ahead_s) < 5.0

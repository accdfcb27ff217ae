"""Leases of an embedded log that several processes share: one has it, whoever hosts, closes or is killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rigs.embedded import TAKE_OVER_S_MAX, host_of, processes

pytestmark = pytest.mark.slow

DURATION_S = 2.0
"""As `attached.py` has it."""


async def test_a_lease_goes_from_a_process_that_releases_it_to_another_and_from_one_that_is_killed(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path) as group:
        host, first, second = await group.start(), await group.start(), await group.start()
        await first.ask("hold", "n")
        await second.tell("hold", "n")
        with pytest.raises(TimeoutError):
            await second.answer(within_s=1.5 * DURATION_S)
        released_s = time.monotonic()
        await first.ask("release", "n")
        await second.answer()
        assert time.monotonic() - released_s < DURATION_S / 2, "not when it would have run out"
        await first.tell("hold", "n")
        killed_s = time.monotonic()
        await second.kill()
        await first.answer()
        took_s = time.monotonic() - killed_s
        print(f"lease of a killed holder: {took_s:.2f} s")  # noqa: T201
        assert took_s < DURATION_S + 1
        assert await host.ask("read") == [], "nothing of it is in the log"


async def test_a_lease_is_kept_when_another_process_hosts_the_log(tmp_path: Path) -> None:
    async with processes(tmp_path) as group:
        host, first, second = await group.start(), await group.start(), await group.start()
        await first.ask("hold", "n")
        await second.tell("hold", "n")
        await host.close()
        with pytest.raises(TimeoutError):
            await second.answer(within_s=TAKE_OVER_S_MAX + DURATION_S)
        assert await first.ask("held", "n")
        assert host_of(tmp_path) in (first.pid, second.pid)
        await first.ask("release", "n")
        await second.answer()

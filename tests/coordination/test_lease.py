"""Who works is told from what it renews: a member that hangs or is stopped is none, and one again when it goes on."""

from __future__ import annotations

import asyncio

import pytest

from polonaise.coordination.file import coordinator_in
from polonaise.coordination.lease import LEASE_S, RENEW_S, Leases
from polonaise.coordination.values import Registration
from polonaise.host import Host
from rigs.coordinator import DESCRIPTION, Scene, in_a_scene


def test_a_member_that_renews_is_one_however_long_it_takes() -> None:
    leases = Leases()
    for look in range(100):
        assert not leases.has_run_out(1, look, look * RENEW_S)


def test_a_member_that_renews_nothing_is_none_after_the_time_of_a_lease_and_is_one_again_when_it_does() -> None:
    leases = Leases()
    told = [leases.has_run_out(1, 7, look * RENEW_S / 2) for look in range(20)]
    out = told.index(True)
    assert LEASE_S <= out * RENEW_S / 2 <= LEASE_S + RENEW_S
    assert all(told[out:])
    assert not leases.has_run_out(1, 8, 20.0)


def test_who_was_stopped_itself_takes_nobody_for_dead() -> None:
    leases = Leases()
    assert not leases.has_run_out(1, 7, 0.0)
    assert not leases.has_run_out(1, 7, 3600.0)
    assert not leases.has_run_out(1, 8, 3600.1)


def test_the_lease_of_a_member_that_is_gone_is_forgotten() -> None:
    leases = Leases()
    for look in range(10):
        leases.has_run_out(1, 7, float(look))
    leases.keep_only([2])
    assert not leases.has_run_out(1, 7, 10.0)


@pytest.mark.parametrize("how", ["stopped", "hanging"])
@in_a_scene
async def test_a_member_in_a_directory_that_works_no_more(scene: Scene, *, how: str) -> None:
    """Stopped: its whole process. Hanging: only what renews; its process, and its locks, are as alive as before."""
    works = asyncio.Event()
    works.set()

    async def main(host: Host) -> None:
        coordinator = coordinator_in(host, "data/coordinator")
        await coordinator.initialize(DESCRIPTION)
        membership = await coordinator.register(Registration(1, "a:1"))
        while True:
            await works.wait()
            await membership.renew()
            await asyncio.sleep(RENEW_S)

    process = scene.machine.start(main)
    await asyncio.sleep(1.0)
    observer = await scene.open()

    async def seen(seconds: float) -> list[int]:
        for _ in range(int(seconds)):
            await observer.members()
            await asyncio.sleep(1.0)
        return [member.server for member in await observer.members()]

    assert await seen(3 * LEASE_S) == [1]
    if how == "stopped":
        process.pause()
    else:
        works.clear()
    assert await seen(LEASE_S - RENEW_S - 1) == [1], "not before its time"
    assert await seen(LEASE_S) == []
    if how == "stopped":
        process.resume()
    works.set()
    assert await seen(2.0) == [1], "it goes on"
    process.crash()
    assert await seen(1.0) == []
    assert not [name for name in scene.names() if name.startswith("members/1")], "nothing of it is left"

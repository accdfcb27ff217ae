"""The coordinator in a real ZooKeeper: servers that are killed and stopped, sessions that end, half-made clusters.

What every backend promises is tried by tests/conformance/test_coordinator.py, on ZooKeeper as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from polonaise.admin.zookeeper import ZooKeeperEnsemble
from polonaise.coordination import Coordinator
from polonaise.coordination.backend import Entry
from polonaise.coordination.coordinator import first_entries
from polonaise.coordination.lease import RENEW_S
from polonaise.coordination.values import ClusterDescription, PartitionValue, Registration
from polonaise.coordination.zookeeper import ZooKeeperBackend
from polonaise.errors import (
    AlreadyInitialized,
    CoordinatorDamaged,
    CoordinatorUnavailable,
    UnsupportedFormat,
)
from polonaise.host.real import RealClock
from rigs.waiting import time_passes, wait_until
from rigs.zookeeper import SESSION_S, backend_at, end_session, ensemble, new_root, operator

pytestmark = pytest.mark.slow

DESCRIPTION = ClusterDescription(bytes(range(16)), 3, ("a:1", "b:1", "c:1"))
INITIAL = PartitionValue.initial(DESCRIPTION.storage)
ENTRIES = first_entries(DESCRIPTION)


@pytest.fixture
def root() -> str:
    return new_root()


@pytest.fixture
async def backend(root: str) -> AsyncIterator[ZooKeeperBackend]:
    made = backend_at(root)
    yield made
    await made.close()


@pytest.fixture
async def other(root: str) -> AsyncIterator[ZooKeeperBackend]:
    made = backend_at(root)
    yield made
    await made.close()


# ------------------------------------------------------------------ without an answer


async def test_without_a_zookeeper_every_call_says_so_in_time() -> None:
    nobody = ZooKeeperBackend("127.0.0.1:1", "/bank", session_s=0.5)
    coordinator = Coordinator(nobody, RealClock())
    async with asyncio.timeout(10):
        for call in (coordinator.describe, coordinator.members, lambda: coordinator.initialize(DESCRIPTION)):
            with pytest.raises(CoordinatorUnavailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1.*nothing was"):
                await call()
        await coordinator.close()


async def test_a_server_that_hangs_delays_a_call_no_longer_than_a_session_and_calls_go_on_after_it(
    tmp_path: Path,
) -> None:
    with ZooKeeperEnsemble(tmp_path, tick_ms=500) as own:
        own.start(60.0)
        backend = ZooKeeperBackend(own.hosts, "/bank", session_s=SESSION_S)
        assert await backend.create(ENTRIES)
        own.servers[0].signal(signal.SIGSTOP)
        # Its threads go on until one of them has taken the signal.
        await wait_until(lambda: not own.servers[0].is_serving())
        started_s = asyncio.get_running_loop().time()
        with pytest.raises(CoordinatorUnavailable):
            await backend.compare_and_set("partition-0", b"{}", None)
        assert asyncio.get_running_loop().time() - started_s < 2 * SESSION_S
        own.servers[0].signal(signal.SIGCONT)

        async def answers() -> bool:
            with contextlib.suppress(CoordinatorUnavailable):
                return await backend.read("description") == ENTRIES["description"]
            return False

        await wait_until(answers)
        await backend.close()


async def test_an_entry_that_was_not_there_is_watched_once_it_is(
    backend: ZooKeeperBackend, other: ZooKeeperBackend
) -> None:
    await backend.changed("assignment", 0)
    assert await other.create(ENTRIES)
    entry = await backend.read("assignment")
    assert entry is not None
    waiting = asyncio.ensure_future(backend.changed("assignment", entry.version))
    await asyncio.sleep(0)
    await backend.read("assignment")  # requests keep their order: the watch is set when this is answered
    assert not waiting.done()
    assert await other.compare_and_set("assignment", entry.contents, entry)
    await asyncio.wait_for(waiting, 10.0)  # far less than it waits without a watch


async def test_what_was_written_outlives_a_killed_server(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, tick_ms=500) as own:
        own.start(60.0)
        backend = ZooKeeperBackend(own.hosts, "/bank", session_s=SESSION_S)
        coordinator = Coordinator(backend, RealClock())
        await coordinator.initialize(DESCRIPTION)
        raised = replace(INITIAL, session=1)
        assert await coordinator.set_partition(0, raised, 0)
        waiting = asyncio.ensure_future(backend.changed("assignment", 0))
        await asyncio.sleep(0)
        await backend.read("assignment")  # requests keep their order: the watch is set when this is answered

        own.servers[0].kill()

        await asyncio.wait_for(waiting, 30.0)  # a lost connection loses the watch: who waits reads again
        with pytest.raises(CoordinatorUnavailable):
            await coordinator.partition(0)
        own.servers[0].start()

        async def reads() -> bool:
            with contextlib.suppress(CoordinatorUnavailable):
                return (await coordinator.partition(0)).value == raised
            return False

        await wait_until(reads)
        await coordinator.close()


# ------------------------------------------------------------------ sessions and names


async def test_a_name_goes_with_its_session_and_is_taken_again_by_its_next_renewal(
    backend: ZooKeeperBackend, other: ZooKeeperBackend
) -> None:
    await backend.create(ENTRIES)
    entry = Entry(DESCRIPTION.key, 0, b"[]")
    assert await backend.register("members/7", entry)
    await end_session(backend)
    assert await other.registered("members") == {}

    async def is_back() -> bool:
        with contextlib.suppress(CoordinatorUnavailable):
            await backend.renew("members/7")
        return "7" in await other.registered("members")

    await wait_until(is_back)
    await end_session(backend)

    async def is_registered() -> bool:
        with contextlib.suppress(CoordinatorUnavailable):
            return await backend.register("members/7", Entry(DESCRIPTION.key, 0, b"[2]"))
        return False

    await wait_until(is_registered)
    assert await other.registered("members") == {"7": entry}
    await backend.leave("members/7")
    assert await other.registered("members") == {}


async def test_a_renewal_tells_the_time_of_zookeeper(backend: ZooKeeperBackend) -> None:
    assert await backend.create(ENTRIES)
    assert await backend.register("members/7", Entry(DESCRIPTION.key, 0, b"7"))
    assert backend.renewed_us is None
    clock = RealClock()
    began_us = clock.wall_us()
    assert await backend.renew("members/7")
    assert backend.renewed_us is not None
    assert began_us - 1_000 <= backend.renewed_us <= clock.wall_us(), "on one machine, in milliseconds"


async def test_a_name_that_another_process_took_meanwhile_is_not_taken_back(
    backend: ZooKeeperBackend, other: ZooKeeperBackend
) -> None:
    await backend.create(ENTRIES)
    assert await backend.register("members/7", Entry(DESCRIPTION.key, 0, b"[1]"))
    await end_session(backend)
    assert await other.register("members/7", Entry(DESCRIPTION.key, 0, b"[2]"))

    async def renewed() -> bool:
        with contextlib.suppress(CoordinatorUnavailable):
            await backend.renew("members/7")
            return True
        return False

    await wait_until(renewed)
    await backend.leave("members/7")
    assert await other.registered("members") == {"7": Entry(DESCRIPTION.key, 0, b"[2]")}


async def test_the_name_of_a_process_that_died_goes_within_its_session(root: str) -> None:
    program = f"""
import asyncio, os, signal
from polonaise.coordination.backend import Entry
from polonaise.coordination.zookeeper import ZooKeeperBackend

async def main():
    backend = ZooKeeperBackend({ensemble().hosts!r}, {root!r}, session_s={SESSION_S})
    assert await backend.register("members/1", Entry(b"k" * 16, 0, b"[]"))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec("python", "-c", program)
    await process.wait()
    backend = backend_at(root)
    ended_s = asyncio.get_running_loop().time()

    async def is_gone() -> bool:
        return not await backend.registered("members")

    await wait_until(is_gone, every_s=0.05)
    # ZooKeeper looks for ended sessions once a tick.
    assert asyncio.get_running_loop().time() - ended_s < SESSION_S + 2.0
    await backend.close()


async def test_a_closed_backend_leaves_no_thread(root: str) -> None:
    before = set(threading.enumerate())
    backend = backend_at(root)
    await backend.create(ENTRIES)
    assert set(threading.enumerate()) != before
    await backend.close()
    left = {thread for thread in threading.enumerate() if "kazoo" in thread.name.lower()} - before
    assert not left


# ------------------------------------------------------------------ making a cluster


@pytest.mark.parametrize("step_s", [0.0, 0.002, 0.004, 0.008, 0.02])
async def test_a_cluster_whose_making_was_cut_short_can_be_made(
    backend: ZooKeeperBackend, other: ZooKeeperBackend, step_s: float
) -> None:
    await backend.read("description")
    making = asyncio.ensure_future(backend.create(first_entries(replace(DESCRIPTION, partitions=2_000))))
    await time_passes(step_s)
    making.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await making
    if await backend.read("description") is None:
        await other.create(ENTRIES)
        for key, entry in ENTRIES.items():
            assert await backend.read(key) == entry


async def test_a_slower_maker_writes_nothing_after_another_has_claimed(
    backend: ZooKeeperBackend, other: ZooKeeperBackend, root: str
) -> None:
    await backend._make_path(root)
    claim = await backend._claim()
    assert claim is not None
    rival = first_entries(replace(DESCRIPTION, key=b"k" * 16))
    assert await other.create(rival)
    assert not await backend._make(ENTRIES, claim)
    assert not await backend.create(ENTRIES)
    for key, entry in rival.items():
        assert await backend.read(key) == entry


async def test_a_cluster_of_very_many_partitions_is_made(backend: ZooKeeperBackend) -> None:
    entries = first_entries(replace(DESCRIPTION, partitions=10_000))
    assert await backend.create(entries)
    assert await backend.read("partition-9999") == entries["partition-9999"]


@pytest.mark.parametrize("step_s", [0.0, 0.002, 0.004, 0.008, 0.02])
async def test_a_cluster_whose_deletion_was_cut_short_is_whole_or_none_and_another_has_nothing_of_it(
    backend: ZooKeeperBackend, other: ZooKeeperBackend, root: str, step_s: float
) -> None:
    entries = first_entries(replace(DESCRIPTION, partitions=2_000))
    await backend.create(entries)
    deleting = asyncio.ensure_future(backend.delete(entries["description"]))
    await time_passes(step_s)
    deleting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await deleting
    if await other.read("description") is not None:
        assert await other.read("partition-1999") == entries["partition-1999"]
        assert await other.delete(entries["description"])
    smaller = first_entries(replace(DESCRIPTION, key=b"k" * 16, partitions=1))
    assert await other.create(smaller)
    with operator() as client:
        assert {*client.get_children(root)} == {*smaller, "creation"}
    for key, entry in smaller.items():
        assert await backend.read(key) == entry


async def test_a_deleted_cluster_leaves_no_node_of_it(backend: ZooKeeperBackend, root: str) -> None:
    await backend.create(ENTRIES)
    assert not await backend.delete(ENTRIES["description"]._replace(version=7))
    assert await backend.delete(ENTRIES["description"])
    assert not await backend.delete(ENTRIES["description"])
    with operator() as client:
        assert client.get_children(root) == []


# ------------------------------------------------------------------ damage


async def test_a_lost_description_is_damage_and_no_empty_place(backend: ZooKeeperBackend, root: str) -> None:
    await backend.create(ENTRIES)
    with operator() as client:
        client.delete(f"{root}/description")
    for ask in (lambda: backend.read("description"), Coordinator(backend, RealClock()).describe):
        with pytest.raises(CoordinatorDamaged, match=r"description.*missing"):
            await ask()
    with pytest.raises((AlreadyInitialized, CoordinatorDamaged)):
        await Coordinator(backend, RealClock()).initialize(DESCRIPTION)


@pytest.mark.parametrize(
    ("data", "error", "told"),
    [
        (b"", CoordinatorDamaged, "not a coordinator's value"),
        (b"hello\n{}", CoordinatorDamaged, "not a coordinator's value"),
        (b"polonaise-coordinator 1 xx 0\n{}", CoordinatorDamaged, "first line is invalid"),
        (b"polonaise-coordinator 1 00\n{}", CoordinatorDamaged, "first line is invalid"),
        (b"polonaise-coordinator 2 00 0\n{}", UnsupportedFormat, "format 2"),
    ],
)
async def test_a_node_that_is_no_value_is_refused_by_name(
    backend: ZooKeeperBackend, root: str, data: bytes, error: type[Exception], told: str
) -> None:
    await backend.create(ENTRIES)
    with operator() as client:
        client.set(f"{root}/partition-0", data)
    with pytest.raises(error, match=told) as refused:
        await backend.read("partition-0")
    assert f"{root}/partition-0" in str(refused.value)
    with pytest.raises(error):
        await backend.compare_and_set("partition-0", b"{}", None)


async def test_denied_access_is_told(backend: ZooKeeperBackend, root: str) -> None:
    with operator() as client:
        client.create(root, acl=[make_digest_acl("operator", "secret", all=True)])
    with pytest.raises(CoordinatorUnavailable, match="denies access"):
        await backend.create(ENTRIES)


# ------------------------------------------------------------------ an ensemble


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path, servers=3, tick_ms=500) as made:
        made.start(60.0)
        yield made


async def test_a_server_that_is_behind_gives_nothing_old(three: ZooKeeperEnsemble) -> None:
    """A follower is stopped, a value is changed, and a read is under way to the follower when it goes on."""
    follower = next(server for server in three.servers if not server.is_leader())
    others = ",".join(str(server.address) for server in three.servers if server is not follower)
    behind = ZooKeeperBackend(str(follower.address), "/bank", session_s=5.0)
    writer = ZooKeeperBackend(others, "/bank", session_s=5.0)
    await writer.create(ENTRIES)
    for _ in range(8):
        before = await behind.read("assignment")
        follower.signal(signal.SIGSTOP)
        written = await writer.compare_and_set("assignment", b"{}", before)
        assert written is not None
        reading = asyncio.ensure_future(behind.read("assignment"))
        await time_passes(0.05)
        follower.signal(signal.SIGCONT)
        assert await reading == written
    await behind.close()
    await writer.close()


@pytest.mark.timeout(300)
async def test_no_change_is_lost_or_made_twice_while_leaders_are_killed(three: ZooKeeperEnsemble) -> None:
    """Each process counts a partition's generation up; whoever is not told whether it did reads again."""
    backends = [ZooKeeperBackend(three.hosts, "/bank", session_s=3.0) for _ in range(3)]
    processes = [Coordinator(backend, RealClock()) for backend in backends]
    await processes[0].initialize(DESCRIPTION)
    stopped = asyncio.Event()
    counted, doubts = [0, 0, 0], [0, 0, 0]

    async def count(number: int) -> None:
        process, server = processes[number], number + 1
        while not stopped.is_set():
            try:
                before = await process.partition(number)
            except CoordinatorUnavailable:
                continue
            # The value belongs to this process alone: what it finds, it has written, or was not told of.
            assert before.value.generation == counted[number], server
            try:
                made = await process.set_partition(
                    number, replace(before.value, generation=counted[number] + 1), before.version
                )
                assert made is not None
                counted[number] += 1
            except CoordinatorUnavailable:
                doubts[number] += 1
                while True:
                    with contextlib.suppress(CoordinatorUnavailable):
                        after = await process.partition(number)
                        break
                assert after.value.generation - counted[number] in (0, 1)
                counted[number] = after.value.generation

    async def register(number: int) -> None:
        membership = None
        while not stopped.is_set():
            # The first registration may meet a leader that is killed, too: doing it again changes nothing.
            with contextlib.suppress(CoordinatorUnavailable):
                if membership is None:
                    membership = await processes[number].register(Registration(number, f"s:{number}"))
                await membership.renew()
            await time_passes(RENEW_S / 4)

    work = [asyncio.ensure_future(each(number)) for number in range(3) for each in (count, register)]
    for _ in range(3):
        before = sum(counted)
        await wait_until(lambda before=before: sum(counted) > before + 60 or any(w.done() for w in work))
        leader = next(server for server in three.servers if server.is_leader())
        await asyncio.to_thread(leader.kill)
        await wait_until(lambda: any(s.running and s.is_leader() for s in three.servers), every_s=0.05)
        leader.start()
        await wait_until(leader.is_serving, every_s=0.05)
    before = sum(counted)
    await wait_until(lambda: sum(counted) > before + 60 or any(w.done() for w in work))

    async def members() -> list[int]:
        with contextlib.suppress(CoordinatorUnavailable):
            return [member.server for member in await processes[0].members()]
        return []

    # While they still renew: whose session has ended meanwhile registers again with its next renewal.
    async def all_are_members() -> bool:
        return await members() == [0, 1, 2]

    await wait_until(all_are_members, every_s=0.1)
    stopped.set()
    await asyncio.gather(*work)
    for process in processes:
        for number in range(3):
            assert (await process.partition(number)).value.generation == counted[number]
    for process in processes:
        await process.close()

"""What applications and disks do to a whole cluster: each mistake has its own error, and nothing is lost by it.

Through the public client, against the production server and storage nodes in the simulator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.client.protocol.draft import Change, Expectation, Limits
from polonaise.client.protocol.locks import Lock
from polonaise.client.settings import ClientSettings
from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription
from polonaise.errors import (
    AppendFailed,
    BadOption,
    BeyondLog,
    BodyTooLarge,
    ClientAhead,
    ExpectationFailed,
    LockConflict,
    PolonaiseError,
    ProducerFenced,
    ProducerSequence,
    Retry,
    TooManyLocks,
    UnknownPartition,
    WrongClusterKey,
)
from polonaise.host import Host
from polonaise.terms import Transaction
from rigs.health import until_engaged
from rigs.scenarios import runs_tests
from rigs.town import Fold, Town, held_down, in_a_town, in_an_application

BEFORE = b"was there before"


@runs_tests
def after(mistake: Callable[[Log], Awaitable[None]], seed: int = 1) -> None:
    """Make a mistake in a cluster that holds something; then it holds that still, and takes more."""

    async def story(town: Town) -> None:
        await town.append(BEFORE)
        await town.application("bad", mistake)
        await town.append(BEFORE)
        assert (await town.log()).count(BEFORE) == 2

    Town(seed).run(story)


def checked(raised: pytest.ExceptionInfo[PolonaiseError], code: str, retry: Retry, *naming: str) -> None:
    error = raised.value
    assert (error.code, error.retry) == (code, retry)
    assert all(each in error.text for each in naming), error.text


# ---------------------------------------------------------------------- appends


@after
async def test_a_body_over_the_inline_limit(log: Log) -> None:
    with pytest.raises(BodyTooLarge) as raised:
        log.append(bytes(2**20 + 1), partition=0)
    checked(raised, "body_too_large", Retry.NEVER, "1048577", "1048576")
    await log.append(bytes(2**20), partition=0)


@in_a_town
async def test_a_body_over_the_servers_limit_by_a_client_that_knows_of_none(town: Town) -> None:
    """The whole connection's frame is refused by name; what was sent before and after it is decided."""
    receipts: list[Any] = []

    async def careless(host: Host, coordinator: Coordinator) -> None:
        settings = ClientSettings(limits=Limits(body_bytes_max=2**24))
        async with Log(host, coordinator, settings=settings) as log:
            await log.ready(0)
            receipts.append(await asyncio.gather(log.append(bytes(2**20 + 1), 0), return_exceptions=True))
            await log.append(BEFORE, 0)

    await town.operator(careless, "careless")
    ((outcome,),) = receipts
    assert isinstance(outcome, PolonaiseError)
    assert await town.log() == [BEFORE]


@after
async def test_too_many_locks(log: Log) -> None:
    with pytest.raises(TooManyLocks) as raised:
        log.append(b"", partition=0, locks=[Lock("row", n) for n in range(1_001)])
    checked(raised, "too_many_locks", Retry.NEVER, "1001", "1000")
    await log.append(b"", partition=0, locks=[Lock("row", n) for n in range(1_000)])


@pytest.mark.parametrize("partition", [-1, 1, 2**31])
@after
async def test_an_unknown_partition(log: Log, *, partition: int) -> None:
    for ask in (lambda: log.append(b"", partition), lambda: log.read(partition)):
        with pytest.raises(UnknownPartition) as raised:
            ask()
        checked(raised, "unknown_partition", Retry.NEVER, str(partition), "0 to 0")
    with pytest.raises(UnknownPartition):
        await log.high_water_mark(partition)


@after
async def test_an_append_on_stale_state(log: Log) -> None:
    lock = [Lock("account", 7)]
    newer = await log.append(b"", 0, locks=lock)
    with pytest.raises(LockConflict) as raised:
        await log.append(b"", 0, high_water_mark=newer.id - 1, locks=lock)
    checked(raised, "lock_conflict", Retry.REBUILT, str(newer.id))
    assert isinstance(raised.value, LockConflict)
    assert raised.value.conflict == newer.id


@after
async def test_an_expectation_that_does_not_hold(log: Log) -> None:
    await log.append(b"", 0, changes=[Change.set(b"k", b"v")])
    for wrong in (Expectation.absent(b"k"), Expectation.equals(b"k", b"w"), Expectation.position(0)):
        with pytest.raises(ExpectationFailed) as raised:
            await log.append(b"", 0, expectations=[wrong])
        checked(raised, "expectation_failed", Retry.REBUILT)


@after
async def test_a_producer_that_skips_a_number_or_was_opened_again(log: Log) -> None:
    first = await log.producer("billing", partition=0)
    with pytest.raises(ProducerSequence) as raised:
        await first.append(5, b"")
    checked(raised, "producer_sequence", Retry.NEVER)
    await log.producer("billing", partition=0)
    with pytest.raises(ProducerFenced) as raised_too:
        await first.append(0, b"")
    checked(raised_too, "producer_fenced", Retry.NEVER)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"data": "text"}, id="a body that is no bytes"),
        pytest.param({"data": b"", "header": 2**31}, id="a header of 33 bits"),
        pytest.param({"data": b"", "changes": [Change.set(b"k" * 1_025, b"")]}, id="a key too long"),
        pytest.param({"data": b"", "changes": [Change.set(b"k", bytes(65_537))]}, id="a value too long"),
    ],
)
@after
async def test_an_invalid_append(log: Log, *, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as raised:
        log.append(partition=0, **options)
    checked(raised, "bad_option", Retry.NEVER)


# ---------------------------------------------------------------------- who is who


@in_a_town
async def test_a_client_ahead_of_the_log(town: Town) -> None:
    ahead = Fold(lambda value, tx: value)
    ahead.apply(Transaction(0, 41, 0, b"", 0, 1, 1, 1))

    async def main(log: Log) -> None:
        with pytest.raises(ClientAhead) as raised:
            await log.ready(0, timeout=60)
        checked(raised, "client_ahead", Retry.NEVER, "41", "0")
        with pytest.raises(ClientAhead):
            await log.run(lambda tx: tx.append(b"never"), partition=0, timeout=60)

    await town.append(BEFORE)
    await town.application("ahead", main, ahead)
    assert await town.log() == [BEFORE]


class OtherCluster:
    """A coordinator that is asked for one cluster and tells another one's key: a mixed-up configuration."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    async def describe(self) -> ClusterDescription:
        return replace(await self._coordinator.describe(), key=b"k" * 16)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)


@in_a_town
async def test_a_client_of_another_cluster(town: Town) -> None:
    async def stray(host: Host, coordinator: Coordinator) -> None:
        async with Log(host, OtherCluster(coordinator)) as log:  # type: ignore[arg-type]
            with pytest.raises(WrongClusterKey) as raised:
                await log.ready(0, timeout=60)
            checked(raised, "wrong_cluster_key", Retry.NEVER, "another cluster")

    await town.operator(stray, "stray")
    assert await town.log() == []


@after
async def test_reading_what_is_not_there(log: Log) -> None:
    for id in (1, 2**62):
        with pytest.raises(BeyondLog) as raised:
            await log.transaction(id, 0)
        checked(raised, "beyond_log", Retry.AGAIN, str(id))


# ---------------------------------------------------------------------- disks


@in_a_town
async def test_a_full_disk_on_a_minority_is_left_out_and_comes_back(town: Town) -> None:
    async def main(log: Log) -> None:
        for number in range(10):
            await log.append(b"%d" % number, 0)
        disk = town.cluster.storage[0].machine.disk
        disk.fill(10)
        for number in range(10, 60):
            receipt = await log.run(lambda tx, n=number: tx.append(b"%d" % n), partition=0, timeout=60)
            assert receipt.committed
        disk.free()

    await town.application("writer", main)
    assert await town.log() == [b"%d" % number for number in range(60)]
    assert town.world.faults["full_disk"]
    await engaged(town, 3)


@in_a_town
async def test_full_disks_everywhere_refuse_appends_by_name_and_lose_nothing(town: Town) -> None:
    async def main(log: Log) -> None:
        for number in range(10):
            await log.append(b"%d" % number, 0)
        town.fill_disks()
        waits = log.submit(lambda tx: tx.append(b"waits"), partition=0)
        with pytest.raises(AppendFailed):
            await log.append(bytes(1_000), 0)
        assert not waits.done
        # What is there is served all the same.
        assert [tx.data async for tx in log.read(0, timeout=60)] == [b"%d" % number for number in range(10)]
        for node in town.cluster.storage:
            node.machine.disk.free()
        assert (await waits).id == 10

    await town.application("writer", main)
    assert await town.log() == [*(b"%d" % number for number in range(10)), b"waits"]
    await engaged(town, 3)


@pytest.mark.parametrize("seed", range(4))
def test_failed_syncs_of_a_minority_lose_nothing_and_the_replica_comes_back(seed: int) -> None:
    async def story(town: Town) -> None:
        async def main(log: Log) -> None:
            for number in range(60):
                if number % 20 == 10:
                    town.cluster.storage[number // 20].machine.disk.fail_syncs(1)
                await log.run(lambda tx, n=number: tx.append(b"%d" % n), partition=0, timeout=60)
                if number % 20 == 19:
                    await until_engaged(log, 3, within_s=120)

        await town.application("writer", main)
        assert town.world.faults["failed_sync"] == 3
        assert await town.log() == [b"%d" % number for number in range(60)]

    Town(seed).run(story)


@pytest.mark.parametrize("strike", ["nothing else", "crash", "power loss"])
@pytest.mark.parametrize("seed", range(3))
def test_syncs_that_fail_on_a_majority_at_once_lose_nothing_and_the_partition_goes_on_by_itself(
    seed: int, strike: str
) -> None:
    """Nobody has acknowledged the batch that none of them could sync, so nobody may have lost anything."""

    async def story(town: Town) -> None:
        async def main(log: Log) -> None:
            await log.append(BEFORE, 0)
            for node in town.cluster.storage:
                node.machine.disk.fail_appends(1)
            await log.run(lambda tx: tx.append(b"struck"), partition=0, timeout=60)
            if strike == "nothing else":
                await until_engaged(log, 3, within_s=120)
                return
            for node in town.cluster.storage:
                node.machine.disk.fail_appends(1)
            appending = asyncio.create_task(log.run(lambda tx: tx.append(b"again"), partition=0, timeout=60))
            while any(node.machine.disk.appends_to_fail for node in town.cluster.storage):
                await asyncio.sleep(0.001)
            for node in town.cluster.storage:
                if strike == "power loss":
                    node.machine.power_loss()
                else:
                    node.crash()
            await appending
            await until_engaged(log, 3, within_s=120)

        await town.application("writer", main)
        assert town.world.faults["failed_append"] == (3 if strike == "nothing else" else 6)
        assert await town.log() == [BEFORE, b"struck", b"again"][: 2 if strike == "nothing else" else 3]

    Town(seed).run(story)


async def engaged(town: Town, count: int) -> None:
    async def look(log: Log) -> None:
        await until_engaged(log, count, within_s=120)

    await town.application("operator", look)


# ---------------------------------------------------------------------- old disks


async def _restored_from_old_copies(town: Town, log: Log) -> None:
    """Two of three storage nodes come back with copies from before the last commits; the third one stays away."""
    first, second, third = town.cluster.storage
    await until_engaged(log, 3, within_s=120)
    old = [node.machine.disk.snapshot() for node in (first, second)]
    for number in range(3):
        await log.append(b"%d" % number, 0)
    for node in town.cluster.storage:
        held_down(node)
    for node, snapshot in zip((first, second), old, strict=True):
        node.machine.disk.restore(snapshot)
    first.let_up()
    second.let_up()
    await asyncio.sleep(10)
    waits_for = town.server.health()["partitions"]["0"]["waits_for"]
    assert third.name in waits_for, waits_for


@in_a_town
async def test_old_copies_of_a_majority_are_not_believed_by_an_owner_that_knows_better(town: Town) -> None:
    """Nothing is cut and nobody engaged: when the third one is back, all that was committed is there."""

    async def main(log: Log) -> None:
        await log.append(BEFORE, 0)
        await _restored_from_old_copies(town, log)
        town.cluster.storage[2].let_up()
        await log.run(lambda tx: tx.append(b"after"), partition=0, timeout=60)

    await town.application("writer", main)
    assert await town.log() == [BEFORE, b"0", b"1", b"2", b"after"]
    await engaged(town, 3)


@in_an_application
async def test_when_every_disk_is_old_the_partition_stops_and_says_so(town: Town, log: Log) -> None:
    await log.append(BEFORE, 0)
    third = town.cluster.storage[2]
    old = third.machine.disk.snapshot()
    await _restored_from_old_copies(town, log)
    third.machine.disk.restore(old)
    third.let_up()
    await asyncio.sleep(10)
    health = town.server.health()["partitions"]["0"]
    assert not health["ready"]
    for told in ("committed up to 3", "no more than 0", "Restore newer ones"):
        assert told in health["waits_for"]
    with pytest.raises(PolonaiseError):
        await log.run(lambda tx: tx.append(b"after"), partition=0, timeout=10)

"""Reading history from replicas and fragments: what ails one of them is told, and never as the client's fault."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polonaise.admin.trimming import trim
from polonaise.client.log import Log
from polonaise.errors import (
    BeyondLog,
    ConnectionLost,
    DataDamaged,
    DeadlineExceeded,
    FragmentDamaged,
    FragmentMissing,
    HistoryTrimmed,
    PartitionNotReady,
    PolonaiseError,
    Retry,
    SegmentDamaged,
    fault,
)
from polonaise.fragments.protocol.names import FragmentName
from polonaise.fragments.protocol.scrubschedule import FragmentScrub, Pause, Verify
from polonaise.log.batch import Batch, Columns, seal
from polonaise.node.condition import conditions_in
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.face import ObservedServer
from polonaise.node.monitoring.samples import Detail
from polonaise.node.reasons import Reason, Trouble
from polonaise.server.partitionreader import PartitionReader
from polonaise.server.protocol.feeds import TailCache
from polonaise.server.settings import ServerSettings
from polonaise.wire.messages import Batches, Fetch
from polonaise_proving.stages.simulated.cluster import CLUSTER_KEY
from rigs.archivedtown import ArchivedTown
from rigs.fragments import batches_of, named_fragment
from rigs.waiting import wait_until


class Session:
    id = 7

    def __init__(self, engaged: dict[str, Any]) -> None:
        self.engaged = engaged


class Link:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def ask_bulk(self, request: Any, partition: int, deadline_s: float | None = None) -> Any:
        if isinstance(self.answer, PolonaiseError):
            raise self.answer
        return self.answer


class Owner:
    """What a reader asks of an owner; `ended` are the reasons for which the session was ended."""

    partition = 0
    committed = 10
    readiness = SimpleNamespace(waits_for="a quorum")
    stopped = None

    def __init__(self, answers: dict[str, Any] | None, history: Any = None) -> None:
        self.history = history
        self.links = {name: Link(answer) for name, answer in (answers or {}).items()}
        self.session = None if answers is None else Session(self.links)
        self.counts = {"sessions": int(answers is not None)}
        self.cache = TailCache(1)
        self.ended: list[str] = []


def reading(owner: Owner) -> PartitionReader:
    return PartitionReader(
        cast(Any, owner), cast(Any, owner.links), ServerSettings(), owner.history, owner.ended.append
    )


def read(owner: Owner, first: int = 0, last: int = 10) -> bytes:
    return bytes(asyncio.run(reading(owner).read_history(first, last, 100)))


@pytest.mark.parametrize(
    "fault",
    [fault("partition_unavailable", "is being opened"), SegmentDamaged("x"), DataDamaged("x"), ConnectionLost("x")],
)
def test_a_fault_of_the_only_replica_is_told_as_something_that_passes(fault: PolonaiseError) -> None:
    with pytest.raises(PartitionNotReady, match=fault.code) as told:
        read(Owner({"storage-0": fault}))
    assert told.value.retry is Retry.AGAIN


@pytest.mark.parametrize("fault", [fault("partition_unavailable", "is being opened"), SegmentDamaged("x")])
def test_a_replica_that_cannot_read_is_passed_over_and_ends_the_session(fault: PolonaiseError) -> None:
    owner = Owner({"storage-0": fault, "storage-1": Batches(10, payload=[b"found"]), "storage-2": fault})

    async def thrice() -> list[bytes]:
        reads = reading(owner)
        return [bytes(await reads.read_history(0, 10, 100)) for _ in range(3)]

    assert asyncio.run(thrice()) == [b"found"] * 3
    assert {reason.partition(":")[0] for reason in owner.ended} == {"storage-0", "storage-2"}


def test_a_lost_connection_is_no_reason_to_end_the_session() -> None:
    owner = Owner({"storage-0": ConnectionLost("gone"), "storage-1": ConnectionLost("gone")})
    with pytest.raises(PartitionNotReady, match=r"storage-0.*storage-1|storage-1.*storage-0"):
        read(owner)
    assert owner.ended == []


def test_the_sources_take_turns() -> None:
    owner = Owner({name: Batches(10, payload=[name.encode()]) for name in ("a", "b", "c")})

    async def thrice() -> set[bytes]:
        reads = reading(owner)
        return {bytes(await reads.read_history(0, 10, 100)) for _ in range(3)}

    assert asyncio.run(thrice()) == {b"a", b"b", b"c"}


def test_a_read_waits_for_a_session_and_is_refused_above_the_mark() -> None:
    with pytest.raises(PartitionNotReady, match="a quorum"):
        read(Owner(None))
    with pytest.raises(BeyondLog):
        read(Owner({"a": Batches(10)}), last=11)


def test_a_batch_that_came_damaged_from_a_replica_is_asked_for_again() -> None:
    async def fetch_from(raw: bytes) -> Any:
        return await reading(Owner({"a": Batches(10, payload=[raw])})).fetch(Fetch(struct.pack("<q", 0)))

    columns = Columns()
    columns.add(7, 1, 0, 5, b"body")
    sound = seal(columns, partition=0, first=0, session=1, generation=1, commit_time_us=1, previous_crc=0)
    assert asyncio.run(fetch_from(sound)).count == 1
    damaged = bytearray(sound)
    damaged[-3] ^= 1
    with pytest.raises(PartitionNotReady, match="damaged"):
        asyncio.run(fetch_from(bytes(damaged)))


# ------------------------------------------------------------------ what was trimmed


class Fragments:
    """A history that tells what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []

    async def read(
        self, partition: int, first: int, last: int, bytes_max: int, after_time_us: int = 0, follows: object = None
    ) -> list[Batch]:
        self.asked.append((first, last, after_time_us))
        columns = Columns()
        columns.add(7, 1, 0, 5, b"archived")
        raw = seal(columns, partition=0, first=first, session=1, generation=1, commit_time_us=first, previous_crc=0)
        return [] if after_time_us else [Batch.parse(raw)]

    async def up_to(self, partition: int) -> int:
        return 6


def test_a_replica_that_has_trimmed_is_passed_over_for_one_that_has_not() -> None:
    history = Fragments()
    owner = Owner({"a": HistoryTrimmed("below 5"), "b": Batches(10, payload=[b"found"])}, history)
    assert read(owner) == b"found"
    assert history.asked == []
    assert owner.ended == []


def test_what_no_replica_holds_comes_from_the_fragments() -> None:
    history = Fragments()
    owner = Owner({"a": HistoryTrimmed("below 5"), "b": ConnectionLost("gone")}, history)
    assert Batch.parse(read(owner, first=2)).body(2) == b"archived"
    assert history.asked == [(2, 10, 0)]


def test_without_fragments_the_error_says_what_to_do_and_not_that_it_passes() -> None:
    with pytest.raises(HistoryTrimmed, match=r"below 5.*--fragments") as told:
        read(Owner({"a": HistoryTrimmed("ids below 5 were trimmed from the storage node")}))
    assert told.value.retry is Retry.NEVER


class LateReplica(Link):
    """One that does not answer; notes for how long it was waited for."""

    def __init__(self) -> None:
        super().__init__(None)
        self.waited_s: list[float] = []

    async def ask_bulk(self, request: Any, partition: int, deadline_s: float | None = None) -> Any:
        assert deadline_s is not None
        self.waited_s.append(deadline_s)
        raise DeadlineExceeded(f"no answer within {deadline_s:g} s")


def read_often(owner: Owner, times: int) -> None:
    async def main() -> None:
        reader = reading(owner)
        for _ in range(times):
            with contextlib.suppress(PartitionNotReady):
                await reader.read_history(2, 10, 100)

    asyncio.run(main())


def test_where_all_replicas_are_slow_they_are_waited_for_longer() -> None:
    owner, late = Owner({"a": None, "b": None}), LateReplica()
    owner.links["a"] = owner.links["b"] = late
    read_often(owner, 3)
    assert late.waited_s == [5, 5, 10, 10, 20, 20]


def test_one_slow_replica_keeps_no_reader_waiting_longer() -> None:
    owner, late = Owner({"a": None, "b": Batches(10, payload=[b"of b"])}), LateReplica()
    owner.links["a"] = late
    read_often(owner, 6)
    assert late.waited_s == [5, 5, 5]


class TrimmedReplica(Link):
    """Of 5 and what comes after it; tells from where it was asked."""

    tells_first = True

    async def ask_bulk(self, request: Any, partition: int, deadline_s: float | None = None) -> Any:
        if request.first <= 4:
            raise HistoryTrimmed("ids below 5 were trimmed from the storage node", 5 if self.tells_first else 0)
        return Batches(10, payload=[b"from %d" % request.first])


def trimmed_owner(history: Any, *, tells_first: bool = True) -> Owner:
    owner = Owner({"a": None}, history)
    owner.links["a"] = replica = TrimmedReplica(None)
    replica.tells_first = tells_first
    return owner


def test_a_time_that_the_fragments_do_not_reach_is_sought_in_all_that_replicas_hold() -> None:
    """What both hold may be another life's in fragments: they may have passed over what the log has there."""
    found = asyncio.run(reading(trimmed_owner(Fragments())).read_history(0, 10, 100, after_time_us=99))
    assert bytes(found) == b"from 5"
    found = asyncio.run(reading(trimmed_owner(Fragments())).read_history(6, 10, 100, after_time_us=99))
    assert bytes(found) == b"from 6"


def test_a_time_is_sought_behind_the_fragments_in_replicas_that_do_not_say_what_they_hold() -> None:
    owner = trimmed_owner(Fragments(), tells_first=False)
    found = asyncio.run(reading(owner).read_history(0, 10, 100, after_time_us=99))
    assert bytes(found) == b"from 7"


def test_what_is_trimmed_while_a_time_is_sought_passes() -> None:
    owner = trimmed_owner(Fragments())
    owner.links["a"] = Link(HistoryTrimmed("ids below 5 were trimmed from the storage node", 5))
    with pytest.raises(PartitionNotReady, match=r"5 just now: .*trimmed"):
        asyncio.run(reading(owner).read_history(0, 10, 100, after_time_us=99))


def test_what_is_archived_while_a_time_is_sought_is_sought_in_the_replicas_too() -> None:
    """Nobody has looked at it in the fragments: it must not be passed over."""

    class Growing(Fragments):
        reached = 6

        async def read(self, *asked: Any) -> list[Batch]:
            found = await super().read(*asked)
            self.reached = 8
            return found

        async def up_to(self, partition: int) -> int:
            return self.reached

    found = asyncio.run(reading(trimmed_owner(Growing(), tells_first=False)).read_history(0, 10, 100, after_time_us=99))
    assert bytes(found) == b"from 7"


SELDOM = {"scrub_first_s": 86_400.0, "archive_look_s": 86_400.0, "cache_bytes_max": 1}
"""Neither the scrub nor the watch of the archive looks by itself while the story is told, and no read is of memory."""


async def trimmed_archive(town: ArchivedTown) -> tuple[FragmentName, bytes]:
    """Archive the log as two fragments, and trim most of it. Return the first one, which holds id 0."""
    for part in range(2):
        await town.append(*(b"%d" % number * 200_000 for number in range(4 + 5 * part)))
        await town.archive()

    async def trimmed(log: Log) -> int:
        return (await trim(log, town.store, 0)).first

    assert await town.application("operator", trimmed) > 0
    (server,) = town.cluster.servers
    server.crash()  # the trim has read the fragment, and would have it in memory
    await wait_until(lambda: server.running and bool(town.server.partitions), within_s=120.0, every_s=1.0)
    return min(town.store.fragments().items())


def flipped(raw: bytes) -> bytes:
    """Return the fragment with one wrong bit in its rows."""
    return raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]


async def read_first(log: Log) -> bytes:
    batches = log.read_batches(0, timeout=30.0)
    try:
        return bytes((await anext(batches)).view)
    finally:
        await batches.aclose()


def stray(partition: int, last: int) -> tuple[FragmentName, bytes]:
    """Return a fragment with the ids up to `last`, of a life of the log that was given up."""
    rows = [(1, 2, number, 0, b"other", -1, []) for number in range(last + 1)]
    return named_fragment(batches_of([(rows, 3, 4, 0, False, False)], partition=partition), CLUSTER_KEY)


def troubles(town: ArchivedTown) -> list[Trouble]:
    return conditions_in(town.server.health())[0].reasons


async def degraded(town: ArchivedTown, reason: Reason) -> float | None:
    samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
    return samples.value(metrics.NODE_DEGRADED, reason.value)


async def refused(log: Log, town: ArchivedTown, error: type[Exception]) -> list[Trouble]:
    """Read in vain; return what the server's health says directly afterwards."""
    with pytest.raises(error):
        await read_first(log)
    return troubles(town)


@pytest.mark.slow
@pytest.mark.parametrize("scrub_bytes_per_s", [2**21, 0])
def test_a_damaged_fragment_that_a_reader_met_is_told_at_once_and_until_it_is_put_back(scrub_bytes_per_s: int) -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)
        assert troubles(town) == []

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, flipped(raw))
            ((reason, line),) = await refused(log, town, FragmentDamaged)
            assert reason is Reason.FRAGMENT_DAMAGE
            assert name.path in line
            assert await degraded(town, Reason.FRAGMENT_DAMAGE) == 1
            samples = await ObservedServer(lambda: town.server, town.server.parts.shared.host.clock).samples(Detail())
            assert samples.value(metrics.FRAGMENTS_UNREPAIRED) == 1
            await wait_until(lambda: "restore" in troubles(town)[0][1], within_s=30.0, every_s=0.5)
            await asyncio.sleep(700.0)  # it is looked at again meanwhile
            ((again, line),) = troubles(town)
            assert (again, name.path in line) == (reason, True)
            town.store.put_now(name.path, raw)
            assert await read_first(log)
            assert troubles(town) == []
            assert await degraded(town, Reason.FRAGMENT_DAMAGE) == 0

        await town.application("reader", reader)

    ArchivedTown(**SELDOM, scrub_bytes_per_s=scrub_bytes_per_s).tell(story)


@pytest.mark.slow
def test_a_fragment_that_was_cut_and_put_back_is_told_no_more_though_nobody_reads_it() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, raw[:-100])
            ((reason, _),) = await refused(log, town, FragmentDamaged)
            assert reason is Reason.FRAGMENT_DAMAGE
            await asyncio.sleep(100.0)
            assert troubles(town)
            town.store.put_now(name.path, raw)
            await wait_until(lambda: not troubles(town), within_s=700.0, every_s=5.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


def test_ids_that_a_reader_missed_are_told_at_once_and_until_they_are_back() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)

        async def reader(log: Log) -> None:
            await town.store.delete(name.path)
            ((reason, line),) = await refused(log, town, FragmentMissing)
            assert reason is Reason.FRAGMENTS_MISSING
            assert "id 0" in line
            assert await degraded(town, Reason.FRAGMENTS_MISSING) == 1
            await asyncio.sleep(60.0)
            assert [kind for kind, _ in troubles(town)] == [Reason.FRAGMENTS_MISSING]
            town.store.put_now(name.path, raw)
            await wait_until(lambda: not troubles(town), within_s=30.0, every_s=1.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


@pytest.mark.slow
def test_fragments_that_contradict_each_other_are_told_until_the_read_that_was_refused_succeeds() -> None:
    async def story(town: ArchivedTown) -> None:
        name, raw = await trimmed_archive(town)
        other, its_raw = stray(0, name.last)

        async def reader(log: Log) -> None:
            town.store.put_now(name.path, flipped(raw))
            town.store.put_now(other.path, its_raw)
            await refused(log, town, FragmentDamaged)
            await asyncio.sleep(2.0)  # then the store is listed anew
            told = await refused(log, town, FragmentDamaged)
            assert {reason for reason, _ in told} == {Reason.FRAGMENT_DAMAGE}
            lines = [line for _, line in told]
            assert any(name.path in line and "SHA-256" in line for line in lines), lines
            assert any(other.path in line and "contradict each other" in line for line in lines), lines
            await asyncio.sleep(300.0)
            told = troubles(town)
            assert len(told) == 2, "the digest of the other life's fragment is right, and that proves nothing"
            assert any("id 0 still can't be read" in line for _, line in told), told
            town.store.put_now(name.path, raw)
            assert await read_first(log)
            await wait_until(lambda: not troubles(town), within_s=100.0, every_s=1.0)

        await town.application("reader", reader)

    ArchivedTown(**SELDOM).tell(story)


def test_what_a_read_could_not_use_counts_as_damaged_and_is_looked_at_next() -> None:
    first, second = (FragmentName(0, number * 10, number * 10 + 9, f"{number:064x}") for number in range(2))
    scrub = FragmentScrub(1_000, every_s=100.0, first_s=50.0)
    assert scrub.next(0.0) == Pause(50.0)
    scrub.refused(0.0, 7, second, 12, "bad")
    assert (scrub.unrepaired, scrub.scrubbed.found, scrub.refused_id(second)) == (1, 1, 12)
    assert scrub.next(0.0) == Verify(second, 0), "before the first round"
    scrub.damaged(8, second, "its digest is wrong")
    scrub.not_repaired(0.0, 8, Verify(second, 1_000), "restore it", passing=False)
    for _ in range(3):
        scrub.refused(1.0, 9, second, 11, "bad")
    assert (scrub.scrubbed.found, scrub.refused_id(second)) == (1, 12), "reads hurry nothing that is known"
    assert scrub.next(1.0) == Pause(49.0)
    scrub.listed(50.0, 10, {first: 1_000, second: 1_000})
    scrub.good(11, second)
    assert (scrub.unrepaired, scrub.refused_id(second), scrub.scrubbed.repaired) == (0, None, 1)
    for over in (lambda: scrub.gone(12, second), lambda: scrub.listed(150.0, 12, {first: 1_000})):
        scrub.refused(50.0, 12, second, 12, "bad")
        over()
        assert (scrub.unrepaired, scrub.refused_id(second)) == (0, None)


def test_without_a_scrub_only_what_reads_could_not_use_is_looked_at() -> None:
    name = FragmentName(0, 0, 9, "0" * 64)
    scrub = FragmentScrub(0, every_s=100.0, first_s=0.0)
    assert scrub.next(1e9) == Pause(float("inf"))
    scrub.refused(1e9, 7, name, 3, "bad")
    assert scrub.next(1e9) == Verify(name, 0)
    assert scrub.pace(1e9, 10**9) == 0.0
    scrub.good(8, name)
    assert scrub.next(1e9) == Pause(float("inf"))

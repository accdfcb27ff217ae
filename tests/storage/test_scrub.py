"""The scrub: reads everything again and again at its rate, finds what rots unseen, and has it repaired."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from polonaise.host import Host
from polonaise.log.batch import Batch
from polonaise.log.segment import SegmentHeader
from polonaise.node.monitoring import metriclist as metrics
from polonaise.node.monitoring.samples import Detail
from polonaise.node.monitoring.storagemetrics import storage_samples
from polonaise.node.reasons import Reason, storage_reasons
from polonaise.scrubrounds import DAMAGES_MAX
from polonaise.storage.protocol.scrubschedule import Look, Rest, Scrub
from polonaise.terms import UNRESOLVED
from rigs.faults import raises_code
from rigs.log import PARTITION, Maker
from rigs.storage import Node, filled, opened, simulate, simulated

QUICK: dict[str, Any] = {"segment_bytes_max": 900, "scrub_first_s": 1.0, "scrub_every_s": 2.0}
SETTLED_S = 8.0

# ------------------------------------------------------------------ the decisions


def test_a_round_looks_at_every_partition_from_its_beginning_to_its_end() -> None:
    scrub, asked = Scrub(1_000_000, every_s=100.0, first_s=0.0), []
    for following in (5, 9, None, None, 3, None):
        step = scrub.next(0.0, 7, {4, 1, 2})
        assert isinstance(step, Look)
        asked.append(step)
        scrub.looked(0.0, 8, 0, following)
    assert asked == [Look(1, 0), Look(1, 5), Look(1, 9), Look(2, 0), Look(4, 0), Look(4, 3)]
    assert scrub.next(0.0, 9, {1}) == Rest(100.0)
    told = scrub.scrubbed
    assert (told.rounds, told.partitions, told.partitions_of, told.started_us, told.finished_us) == (1, 3, 3, 7, 8)
    assert scrub.next(100.0, 10, {1}) == Look(1, 0)


def test_damages_that_are_repaired_are_forgotten_before_those_that_are_not() -> None:
    scrub = Scrub(1_000, every_s=10.0, first_s=0.0)
    for number in range(DAMAGES_MAX + 50):
        partition = int(number > 0)
        assert scrub.next(number * 10.0, number, {partition}) == Look(partition, 0)
        scrub.damaged(number, f"damage {number}")
        scrub.repaired(number, 1)
    told = scrub.scrubbed
    assert scrub.unrepaired == {0}
    assert len(told.damages) == DAMAGES_MAX
    assert [damage.what for damage in told.damages if not damage.repaired_us] == ["damage 0"]
    scrub.repaired(7, 0)
    assert scrub.scrubbed.repaired == scrub.scrubbed.found == DAMAGES_MAX + 50


def test_no_more_is_read_than_the_rate_allows() -> None:
    scrub, now_s, total = Scrub(1_000, every_s=0.0, first_s=0.0), 0.0, 0
    while now_s < 60.0:
        step = scrub.next(now_s, 0, [0])
        if isinstance(step, Rest):
            assert step.seconds > 0
            now_s += step.seconds
        else:
            total += 700
            scrub.looked(now_s, 0, 700, total)
    assert 59_000 <= total <= 61_000


def test_time_in_which_nothing_was_read_is_not_made_up_for() -> None:
    scrub = Scrub(1_000, every_s=0.0, first_s=0.0)
    assert scrub.next(1_000.0, 0, [0]) == Look(0, 0)
    scrub.looked(1_000.0, 0, 5_000, 1)
    assert scrub.next(1_000.0, 0, [0]) == Rest(5.0)


def test_what_can_not_be_read_does_not_hold_up_the_rest() -> None:
    scrub = Scrub(1_000, every_s=10.0, first_s=0.0)
    assert scrub.next(0.0, 0, [0, 1, 2]) == Look(0, 0)
    scrub.skip(0)
    assert scrub.next(0.0, 0, []) == Look(1, 0)
    scrub.damaged(5, "no frame")
    assert scrub.next(0.0, 0, []) == Look(2, 0)
    scrub.looked(0.0, 0, 0, None)
    told = scrub.scrubbed
    assert (told.rounds, told.partitions, told.skipped, told.found) == (1, 3, 2, 1)
    assert told.damages == ((1, "no frame", 5, 0),)


def test_what_was_found_is_repaired_once_its_partition_is_whole() -> None:
    scrub = Scrub(1_000, every_s=0.0, first_s=0.0)
    for number, partition in enumerate((0, 1, 1)):
        scrub.next(2.0 * number, 0, [partition])
        scrub.damaged(number, "bad")
    assert scrub.unrepaired == {0, 1}
    scrub.repaired(7, 1)
    scrub.repaired(8, 1)  # nothing is left to repair
    assert (scrub.scrubbed.found, scrub.scrubbed.repaired, scrub.unrepaired) == (3, 2, {0})
    assert [damage.repaired_us for damage in scrub.scrubbed.damages] == [0, 7, 7]


def test_a_node_without_partitions_rests() -> None:
    assert isinstance(Scrub(1_000, every_s=10.0, first_s=0.0).next(0.0, 0, []), Rest)


def test_damages_that_were_forgotten_are_repaired_with_their_partitions_all_the_same() -> None:
    scrub = Scrub(1_000, every_s=0.0, first_s=0.0)
    for number in range(DAMAGES_MAX + 50):
        scrub.next(2.0 * number, 0, [number])
        scrub.damaged(number, "bad")
    assert [damage.found_us for damage in scrub.scrubbed.damages] == list(range(50, DAMAGES_MAX + 50)), "up to a bound"
    assert scrub.unrepaired == set(range(DAMAGES_MAX + 50))
    for partition in scrub.unrepaired:
        scrub.repaired(7, partition)
    assert (scrub.scrubbed.found, scrub.scrubbed.repaired) == (DAMAGES_MAX + 50, DAMAGES_MAX + 50)
    assert scrub.unrepaired == set()


def test_what_was_found_outside_of_some_partitions_lacks_their_damages_that_are_not_repaired() -> None:
    scrub = Scrub(1_000, every_s=0.0, first_s=0.0)
    for number in range(DAMAGES_MAX + 3):
        scrub.next(2.0 * number, 0, [number % 3])
        scrub.damaged(number, "bad")
    scrub.repaired(9, 1)
    all_found, outside = scrub.scrubbed, scrub.found_outside({0, 1, 5})
    of_one = [number for number in range(DAMAGES_MAX + 3) if number % 3 == 0]
    assert outside.found == all_found.found - len(of_one), "also those that are listed no more"
    assert outside.repaired == all_found.repaired
    assert {damage.partition for damage in outside.damages if not damage.repaired_us} == {2}
    assert scrub.found_outside(set()) == all_found


# ------------------------------------------------------------------ a node


def made_batches() -> list[Batch]:
    maker = Maker()
    return [maker.batch(size=150, changes=[(b"r", b"v%d" % number)]) for number in range(24)]


@pytest.mark.parametrize("where", ["batch", "header", "preamble", "open segment"])
def test_rot_that_nobody_reads_is_found_and_repaired(where: str, caplog: pytest.LogCaptureFixture) -> None:
    made = made_batches()

    async def script(host: Host, node: Node) -> None:
        owner = await filled(host, made)
        place = -1 if where == "open segment" else 2
        path = node.segments()[place]
        header = SegmentHeader.decode(node.disk.contents(path))
        offset = {
            "batch": header.data_start + 90,
            "header": 20,
            "preamble": 130,
            "open segment": header.data_start + 90,
        }
        node.disk.flip_bit(path, offset[where])
        assert node.node.scrubbed.found == 0
        await asyncio.sleep(SETTLED_S)
        told = node.node.scrubbed
        assert (told.found, told.repaired) == (1, 0)
        assert "segment" in told.damages[0].what or "offset" in told.damages[0].what
        with raises_code("partition_unavailable"):
            await owner.store(100)  # a barrier: so the owner learns of it
        info = await owner.fence(2)
        assert info.lost_above == header.first - 1 == info.max_synced
        await owner.truncate(info.max_synced)
        await owner.bring_up(made, info.max_synced + 1)
        assert (await owner.fence(2)).lost_above == UNRESOLVED
        assert node.node.scrubbed.repaired == 0, "who only looks notes nothing"
        node.node.measures()
        assert (node.node.scrubbed.repaired, node.node.scrubbed.damages[0].repaired_us > 0) == (1, True)
        rounds = node.node.scrubbed.rounds
        await asyncio.sleep(SETTLED_S)
        assert node.node.scrubbed.rounds > rounds
        assert node.node.scrubbed.found == 1

    with caplog.at_level(logging.WARNING):
        simulate(script, **QUICK)
    assert any("scrub of" in record.message for record in caplog.records if record.levelno == logging.WARNING)


@pytest.mark.parametrize("given_up", ["before", "after", "never"])
def test_a_copy_that_was_given_up_is_read_and_nobodys_trouble(given_up: str, caplog: pytest.LogCaptureFixture) -> None:
    async def script(host: Host, node: Node) -> None:
        await filled(host, made_batches())
        path = node.segments()[2]
        node.disk.flip_bit(path, SegmentHeader.decode(node.disk.contents(path)).data_start + 90)
        if given_up == "before":
            node.node._elsewhere = {PARTITION}
        await asyncio.sleep(SETTLED_S)
        assert node.node.scrubbed.found == 1
        if given_up == "after":
            node.node._elsewhere = {PARTITION}
        seen = (await storage_samples(node.node, None, Detail())).value(metrics.DAMAGES_UNREPAIRED)
        reasons = {reason for reason, _ in storage_reasons(node.node.measures().health)}
        if given_up == "never":
            assert (seen, reasons) == (1, {Reason.DAMAGE, Reason.REPLICA_UNUSABLE})
            return
        assert (seen, reasons) == (0, set())
        node.node._elsewhere = set()
        assert Reason.DAMAGE in {reason for reason, _ in storage_reasons(node.node.measures().health)}, "it is needed"

    with caplog.at_level(logging.WARNING):
        simulate(script, **QUICK)
    (said,) = [each.message for each in caplog.records if each.name == "polonaise.storage.scrubbing"]
    assert ("was given up, and is not repaired" in said) == (given_up == "before")
    assert ("It is repaired from the other replicas" in said) == (given_up != "before")


@simulated(**QUICK, scrub_bytes_per_s=0)
async def test_a_node_that_is_told_not_to_scrub_reads_nothing(host: Host, node: Node) -> None:
    await filled(host, made_batches())
    await asyncio.sleep(SETTLED_S)
    assert node.node.scrubbed.rounds == node.node.scrubbed.bytes == 0


@simulated(segment_bytes_max=900, scrub_first_s=1.0, scrub_every_s=3_600.0, scrub_bytes_per_s=1_000)
async def test_a_round_reads_every_byte_of_every_segment_at_its_rate(host: Host, node: Node) -> None:
    made = made_batches()
    await filled(host, made)
    held = sum(len(node.disk.contents(path)) for path in node.segments())
    await asyncio.sleep(1.5 + held / 1_000 + 3)
    told = node.node.scrubbed
    assert told.rounds == 1
    assert (told.finished_us - told.started_us) / 1e6 > 0.8 * (held - 1_000) / 1_000
    assert held - 32 * len(made) - 8 * len(node.segments()) <= told.bytes <= held


@simulated(segment_bytes_max=900, scrub_first_s=0.1, scrub_every_s=0.0, scrub_bytes_per_s=500_000)
async def test_a_log_that_is_written_trimmed_and_cut_meanwhile_is_not_accused(host: Host, node: Node) -> None:
    maker = Maker()
    owner = await opened(host)
    for number in range(1, 120):
        await owner.store(number, maker.batch(size=150))
        if number % 40 == 0:
            info = await owner.fence(number)
            await owner.truncate(info.max_synced - 7)
            kept = (await owner.read(info.max_synced - 7, info.max_synced - 7))[0]
            await owner.join(kept.last, kept.crc)
            maker = Maker(kept.last, kept.crc)
        await asyncio.sleep(0.02)
    assert node.node.scrubbed.rounds >= 3
    assert node.node.scrubbed.found == 0


@simulated(**QUICK)
async def test_a_partition_that_nobody_has_asked_for_since_the_start_is_read_too(host: Host, node: Node) -> None:
    made = made_batches()
    await filled(host, made)
    node.process.crash()
    path = node.segments()[2]
    node.disk.flip_bit(path, SegmentHeader.decode(node.disk.contents(path)).data_start + 90)
    node.start(**QUICK)
    await asyncio.sleep(SETTLED_S)
    assert node.node.scrubbed.found == 1

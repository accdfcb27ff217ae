"""A server that has read an older requirement than a partition's last session acts by reads the newer one first."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, PartitionValue, Requirement, Versioned
from polonaise.errors import CertificateRefused, DirectoryInUse, PartitionNotReady, PolonaiseError
from polonaise.server.requirements import Requirements
from rigs.waiting import wait_until

PLAIN = ClusterDescription.new(bytes(16), 1, {name: f"{name}:1" for name in "ABC"})
OLD, NEW = PLAIN.requiring(2, 0), PLAIN.requiring(2, 0).requiring(3, 0)


class Told:
    """A coordinator that tells one description."""

    def __init__(self, description: ClusterDescription) -> None:
        self.described, self.reads = description, 0
        self.asked, self.moved = 0, asyncio.Event()

    async def description_changed(self, version: int) -> None:
        """Return at once, and then after each change."""
        self.asked += 1
        if self.asked > 1:
            await self.moved.wait()
            self.moved.clear()

    async def description(self) -> Versioned[ClusterDescription]:
        return Versioned(2, self.described)

    async def describe(self) -> ClusterDescription:
        self.reads += 1
        return self.described


def asked(told: Told, last: Requirement | None, began: ClusterDescription = OLD) -> Requirement | None:
    requirements = Requirements(cast(Coordinator, told), Versioned(1, began))
    value = PartitionValue(1, 7, tuple("ABC"), required=last)
    return asyncio.run(requirements.for_session(0, value))


def test_the_description_is_read_before_a_session_follows_one_with_a_newer_requirement() -> None:
    told = Told(NEW)
    assert asked(told, NEW.requirements()[0]) == NEW.requirements()[0]
    assert told.reads == 1


def test_no_session_starts_while_the_coordinator_tells_the_older_requirement() -> None:
    with pytest.raises(PartitionNotReady, match="has not read yet how many copies a commit needs"):
        asked(Told(OLD), NEW.requirements()[0])
    with pytest.raises(PartitionNotReady):
        asked(Told(PLAIN), NEW.requirements()[0], PLAIN)


def test_the_description_is_not_read_where_the_server_knows_the_newest_requirement() -> None:
    told = Told(NEW)
    assert asked(told, OLD.requirements()[0], NEW) == NEW.requirements()[0]
    assert asked(told, None, PLAIN) is None
    assert told.reads == 0


def test_an_older_description_takes_no_requirement_back() -> None:
    requirements = Requirements(cast(Coordinator, Told(NEW)), Versioned(2, NEW))
    assert not requirements.take(OLD)
    assert not requirements.take(PLAIN)
    assert requirements.of(0) == NEW.requirements()[0]


TOPICS = PLAIN.grown("a", 1)
"""Partition 0 is the log's own, 1 is that of topic `a`."""


def begun(described: ClusterDescription, told: ClusterDescription) -> tuple[Requirements, Told]:
    coordinator = Told(told)
    requirements = Requirements(cast(Coordinator, coordinator), Versioned(1, described))
    return requirements, coordinator


def test_a_server_that_is_behind_takes_a_topics_requirement_back_no_more_than_the_clusters() -> None:
    older, newer = TOPICS.requiring(2, 0, "a"), TOPICS.requiring(2, 0, "a").requiring(3, 0, "a")
    last = PartitionValue(1, 7, tuple("ABC"), required=newer.requirements()[1])
    requirements, _ = begun(older, older)
    with pytest.raises(PartitionNotReady):
        asyncio.run(requirements.for_session(1, last))
    requirements, told = begun(older, newer)
    assert asyncio.run(requirements.for_session(1, last)) == newer.requirements()[1]
    assert told.reads == 1
    assert not requirements.take(older)
    assert requirements.of(1) == newer.requirements()[1]


def test_a_change_for_one_topic_leaves_the_sessions_of_other_partitions_alone() -> None:
    requirements, told = begun(TOPICS.requiring(2, 0), TOPICS)
    before = requirements.of(0)
    assert requirements.take(TOPICS.requiring(2, 0).requiring(3, 0, "a"))
    assert requirements.of(0) == before
    assert requirements.of(1) == Requirement(2, 3, 0)
    assert asyncio.run(requirements.for_session(0, PartitionValue(1, 7, tuple("ABC"), required=before))) == before
    assert told.reads == 0


def test_a_partition_that_the_server_has_not_read_of_has_no_session_before_it_has() -> None:
    """An assignment may be read sooner than the description that names the partition, and what is required of it."""
    requirements, told = begun(PLAIN, TOPICS.requiring(3, 0, "a"))
    assert asyncio.run(requirements.for_session(1, PartitionValue.initial(tuple("ABC")))) == Requirement(1, 3, 0)
    assert told.reads == 1
    requirements, _ = begun(PLAIN, PLAIN)
    with pytest.raises(PartitionNotReady):
        asyncio.run(requirements.for_session(1, PartitionValue.initial(tuple("ABC"))))


def test_partitions_that_a_topic_has_got_have_its_requirement_without_a_new_number() -> None:
    required = TOPICS.requiring(3, 0, "a")
    requirements, _ = begun(required, required)
    assert not requirements.take(required.grown("a", 1)), "no session has to end for it"
    assert requirements.of(2) == Requirement(1, 3, 0)
    assert requirements.told_of_topics == {"a": "3 copies"}


async def test_a_requirement_that_a_sessions_start_has_read_first_is_followed_by_the_others() -> None:
    requirements, told = begun(OLD, NEW)
    assert await requirements.for_session(0, PartitionValue(1, 7, tuple("ABC"), required=NEW.requirements()[0]))
    changed = asyncio.Event()
    following = asyncio.ensure_future(requirements.follow(lambda: None, changed.set))
    async with asyncio.timeout(10):
        await changed.wait()
    changed.clear()
    told.moved.set()
    await wait_until(lambda: told.asked == 3)
    following.cancel()
    assert not changed.is_set(), "it is told once"


def test_a_newer_description_that_was_read_for_a_session_tells_its_zones_too() -> None:
    requirements, _ = begun(NEW, NEW.zoned("A", "north"))
    last = PartitionValue(1, 7, tuple("ABC"), required=NEW.zoned("A", "north").requirements()[0])
    assert requirements.zones == {}
    asyncio.run(requirements.for_session(0, last))
    assert requirements.zones == {"A": "north"}


async def test_a_server_goes_on_following_the_description_whatever_the_coordinator_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polonaise.server.requirements._AGAIN_S", 0.0)
    requirements, told = begun(PLAIN, NEW)
    changed = asyncio.Event()
    errors: list[PolonaiseError] = [
        CertificateRefused("its certificate has expired"),
        DirectoryInUse("another process has it"),
    ]

    async def description() -> Versioned[ClusterDescription]:
        if errors:
            raise errors.pop()
        return Versioned(2, NEW)

    monkeypatch.setattr(told, "description", description)
    monkeypatch.setattr(told, "description_changed", lambda _: asyncio.sleep(0))
    following = asyncio.ensure_future(requirements.follow(lambda: None, changed.set))
    await wait_until(lambda: changed.is_set() or following.done())
    assert not following.done()
    following.cancel()
    assert requirements.of(0) == NEW.requirements()[0]

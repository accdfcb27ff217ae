"""A server that has read an older requirement than a partition's last session acts by reads the newer one first."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from polonaise.coordination import Coordinator
from polonaise.coordination.values import ClusterDescription, PartitionValue, Requirement, Versioned
from polonaise.errors import PartitionNotReady
from polonaise.server.requirements import Requirements

PLAIN = ClusterDescription.new(bytes(16), 1, {name: f"{name}:1" for name in "ABC"})
OLD, NEW = PLAIN.requiring(2, 0), PLAIN.requiring(2, 0).requiring(3, 0)


class Told:
    """A coordinator that tells one description."""

    def __init__(self, description: ClusterDescription) -> None:
        self.description, self.reads = description, 0

    async def describe(self) -> ClusterDescription:
        self.reads += 1
        return self.description


def asked(told: Told, last: Requirement | None, began: ClusterDescription = OLD) -> Requirement | None:
    requirements = Requirements(cast(Coordinator, told))
    requirements.begin(Versioned(1, began))
    value = PartitionValue(1, 7, tuple("ABC"), required=last)
    return asyncio.run(requirements.for_session(value))


def test_the_description_is_read_before_a_session_follows_one_with_a_newer_requirement() -> None:
    told = Told(NEW)
    assert asked(told, NEW.requirement) == NEW.requirement
    assert told.reads == 1


def test_no_session_starts_while_the_coordinator_tells_the_older_requirement() -> None:
    with pytest.raises(PartitionNotReady, match="has not read yet how many copies a commit needs"):
        asked(Told(OLD), NEW.requirement)
    with pytest.raises(PartitionNotReady):
        asked(Told(PLAIN), NEW.requirement, PLAIN)


def test_the_description_is_not_read_where_the_server_knows_the_newest_requirement() -> None:
    told = Told(NEW)
    assert asked(told, OLD.requirement, NEW) == NEW.requirement
    assert asked(told, None, PLAIN) is None
    assert told.reads == 0


def test_an_older_description_takes_no_requirement_back() -> None:
    requirements = Requirements(cast(Coordinator, Told(NEW)))
    requirements.begin(Versioned(2, NEW))
    assert not requirements.take(OLD)
    assert not requirements.take(PLAIN)
    assert requirements.current == NEW.requirement

"""A coordinator that is away, lost, another cluster's or newer: it is told, while what a server owns goes on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from polonaise.client.log import Log
from polonaise.coordination import Coordinator
from polonaise.coordination.coordinator import first_entries
from polonaise.coordination.values import (
    ASSIGNMENT,
    DESCRIPTION,
    Assignment,
    ClusterDescription,
    CoordinatorValue,
    PartitionValue,
    Registration,
    partition_key,
)
from polonaise.errors import (
    ConsistencyLost,
    CoordinatorDamaged,
    CoordinatorNewer,
    CoordinatorUnavailable,
    NotOwner,
    PolonaiseError,
    UnsupportedFormat,
)
from polonaise.host import Host
from polonaise.host.real import RealClock
from polonaise.node.condition import server_troubles
from polonaise.server.coordinatortrouble import AGAIN_S, CoordinatorTrouble
from polonaise.server.protocol.recovery import OlderStateProved
from polonaise.server.valuenotes import ValueNotes
from rigs.town import Town, in_a_town, in_an_application
from rigs.waiting import wait_until
from server.test_server_health import health


class Clock:
    """A clock that stands still between two settings."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


def test_what_fails_at_the_coordinator_is_logged_once_and_then_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock: Any = Clock()
    trouble = CoordinatorTrouble(clock)
    with caplog.at_level(logging.INFO):
        for second in range(100):
            clock.now_s = 1000.0 + second
            for what in ("the assignment can't be read", "the registration can't be renewed", *map(str, range(50))):
                trouble.failed(what, CoordinatorUnavailable("no answer of zk1:2181"))
    assert len(caplog.messages) == 1 + 99 // AGAIN_S
    assert all("zk1:2181" in line for line in caplog.messages)
    assert "for 30 s" in caplog.messages[1]
    assert trouble.errors == 5200
    caplog.clear()
    for what in ("the assignment can't be read", "the registration can't be renewed", *map(str, range(50))):
        trouble.succeeded(what)
    assert caplog.messages == ["the coordinator answers again, after 99.0 s"]
    trouble.failed("the assignment can't be read", CoordinatorUnavailable("no answer of zk1:2181"))
    assert len(caplog.messages) == 2, "new trouble is told at once"


def test_what_is_not_asked_any_more_is_no_answer_of_the_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    trouble = CoordinatorTrouble(RealClock())
    trouble.failed("the members can't be read", CoordinatorUnavailable("away"))
    caplog.clear()
    trouble.not_needed("the members can't be read")
    assert str(trouble) == ""
    assert caplog.messages == [], "nobody has heard of it"
    trouble.succeeded("the assignment can't be read")
    assert [message.partition(",")[0] for message in caplog.messages] == ["the coordinator answers again"]


def test_a_client_is_told_of_the_coordinator_by_a_server_that_owns_nothing_for_it() -> None:
    async def story(town: Town) -> str:
        await town.append(b"first")

        async def ask(host: Host, _: Coordinator) -> str:
            server = town.server
            server.partitions.clear()
            server.parts.owned.followed = False
            server.parts.shared.trouble.failed("it can't be read", CoordinatorUnavailable("no answer of zk1:2181"))
            with pytest.raises(NotOwner) as refused:
                await health(host, server.address, 0)
            return str(refused.value)

        return await town.operator(ask)

    told = Town(1).run(story)
    assert "no answer of zk1:2181" in told
    assert "read the assignment again" not in told


def test_partitions_that_a_server_has_given_up_are_told_of_it() -> None:
    (told,) = server_troubles({"given_up": [3, 5]})
    assert "it can't serve partitions 3, 5, which it has given up" in told
    assert "see why it does not reach storage nodes" in told, "a server of an older version does not say why"
    assert server_troubles({"given_up": []}) == []
    (told,) = server_troubles({"given_up": [3, 5], "given_up_why": {"5": "session 7 ended: b: [disk_full] no space"}})
    assert told == (
        "it can't serve partition 5, which it has given up, for others to take over: "
        "session 7 ended: b: [disk_full] no space"
    )
    assert server_troubles({"given_up": [3, 5], "given_up_why": {}}) == [], "others serve them"


@in_an_application
async def test_another_clusters_coordinator_in_place_of_its_own_does_not_end_a_server(town: Town, log: Log) -> None:
    await log.append(b"before", 0)
    other = replace(town.cluster.description, key=b"k" * 16)
    own = town.cluster.service.snapshot()
    town.cluster.service.restore(first_entries(other))
    await asyncio.sleep(10)
    receipt = await log.append(b"meanwhile", 0)
    assert receipt.committed
    town.cluster.service.restore(own)
    await asyncio.sleep(10)
    (receipt,) = [await log.append(b"after", 0)]
    assert receipt.committed
    assert [node.restarts for node in town.cluster.servers] == [0]


@in_an_application
async def test_a_server_that_stops_then_hands_nothing_over_and_closes(town: Town, log: Log) -> None:
    await log.append(b"before", 0)
    town.cluster.service.restore(first_entries(replace(town.cluster.description, key=b"k" * 16)))
    (server,) = town.cluster.owners.values()
    await server.close()
    assert not server.followed


@in_an_application
async def test_a_server_that_stops_while_the_coordinator_is_silent_says_why_it_hands_nothing_over(
    town: Town, log: Log, *, caplog: pytest.LogCaptureFixture
) -> None:
    await log.append(b"before", 0)
    server: Any = next(iter(town.cluster.owners.values()))

    async def silent() -> None:
        await asyncio.Event().wait()

    server.parts.shared.coordinator.assignment = silent
    await server.close()
    told = [line for line in caplog.messages if "handed over nothing" in line]
    assert [line.split(": ", 1)[1] for line in told] == ["the coordinator gave no answer"]


def with_more(town: Town, key: str) -> None:
    """Change a value as a newer version might: with a field that this one does not know."""
    present = town.cluster.service.read(key)
    assert present is not None
    contents = present.contents.replace(b"{", b'{"hue":7,', 1)
    assert town.cluster.service.compare_and_set(key, contents, present) is not None


def without_more(town: Town, key: str) -> None:
    """Change it back, as a version does that writes what this one can read."""
    present = town.cluster.service.read(key)
    assert present is not None
    contents = present.contents.replace(b'{"hue":7,', b"{", 1)
    assert town.cluster.service.compare_and_set(key, contents, present) is not None


@in_an_application
async def test_a_server_goes_on_with_what_it_owns_tells_it_and_comes_back(town: Town, log: Log) -> None:
    async def members(_: Host, coordinator: Coordinator) -> int:
        return len(await coordinator.members())

    assert (await log.append(b"before", 0)).committed
    assert await town.operator(members) == 1
    (server,) = town.cluster.owners.values()
    with_more(town, ASSIGNMENT)
    await wait_until(lambda: "'hue', which this version" in server.health()["coordinator"])
    assert "run the version that wrote it, or a newer one" in server.health()["coordinator"]
    await asyncio.sleep(10)
    assert (await log.append(b"meanwhile", 0)).committed, "nobody else would serve the partition"
    assert await town.operator(members) == 0, "a server that can read the value is to take over"
    without_more(town, ASSIGNMENT)
    await wait_until(lambda: not server.health()["coordinator"])
    assert await town.operator(members) == 1
    assert (await log.append(b"after", 0)).committed
    assert [node.restarts for node in town.cluster.servers] == [0]


@in_a_town
async def test_a_server_that_starts_is_refused_by_a_description_it_can_not_read(town: Town) -> None:
    with_more(town, DESCRIPTION)

    with pytest.raises(CoordinatorNewer, match=r"description.*'hue'.*run the version that wrote it"):
        await town.description()


@in_a_town
async def test_a_partition_whose_value_is_newer_waits_and_says_so(town: Town) -> None:
    (server,) = town.cluster.servers
    server.crash()
    with_more(town, partition_key(0))
    await wait_until(lambda: server.running)

    def waits_for() -> str:
        owner = town.cluster.owners.get(server.name)
        served = owner.health()["partitions"].get("0") if owner is not None else None
        return served["waits_for"] if served else ""

    await wait_until(lambda: "'hue', which this version" in waits_for())
    without_more(town, partition_key(0))
    assert await town.log() == []


@pytest.mark.parametrize(
    "value",
    [PartitionValue.initial(("a",)), Assignment(), ClusterDescription(bytes(16), 1, ("a",))],
    ids=lambda value: type(value).__name__,
)
def test_a_field_that_is_not_known_is_told_from_damage(value: CoordinatorValue) -> None:
    newer = value.encode().replace(b"{", b'{"hue":7,', 1)
    with pytest.raises(CoordinatorNewer, match="'hue'") as refused:
        type(value).decode(newer)
    assert isinstance(refused.value, CoordinatorDamaged | UnsupportedFormat)
    with pytest.raises(CoordinatorDamaged) as damaged:
        type(value).decode(newer.replace(b"hue", b"\xff\xff\xff"))
    assert not isinstance(damaged.value, CoordinatorNewer)


@pytest.mark.parametrize("raw", [b'[7, "h:1", [], [], {"hue": 7}]', b'[7, "h:1", [3], [4], 1, 2]'])
def test_what_is_added_to_a_registration_is_passed_over(raw: bytes) -> None:
    registration = Registration.decode(raw)
    assert (registration.server, registration.address) == (7, "h:1")
    assert Registration.decode(registration.encode()) == registration


OLDER = OlderStateProved("partition 1: the coordinator was put back")
FORK = ConsistencyLost("partition 1: a fork")


def owned(value: object, stopped: PolonaiseError | None = None, blocked: PolonaiseError | None = None) -> Any:
    session = None if value is None else SimpleNamespace(value=value)
    owner = SimpleNamespace(session=session, stopped=stopped, readiness=SimpleNamespace(blocked=blocked))
    return SimpleNamespace(owner=owner)


class Told:
    """A server's notes, of which only what is known counts."""

    def __init__(self, *partitions: Any) -> None:
        self.now_s = 0.0
        self.description, self.changes = object(), SimpleNamespace(count=0)
        clock, none = SimpleNamespace(monotonic_s=lambda: self.now_s), SimpleNamespace(seen=None)
        cluster = SimpleNamespace(described=self.description)
        shared = SimpleNamespace(
            host=SimpleNamespace(clock=clock), coordinator=None, settings=None, cluster=cluster, links=None,
            changes=self.changes, trouble=None,
        )  # fmt: skip
        parts: Any = dict(enumerate(partitions))
        fakes: list[Any] = [shared, parts, none]
        self.notes = ValueNotes(*fakes)

    @property
    def known(self) -> dict[str | int, Any]:
        return self.notes._known()


@pytest.mark.parametrize("partitions", [(), (owned(None),), (owned("0"), owned(None, stopped=OLDER))])
def test_nothing_is_told_of_a_cluster_of_which_no_session_or_an_older_state_is_known(partitions: tuple[Any]) -> None:
    told = Told(*partitions)
    told.now_s = 100
    assert not {"description", "unique_id"} & told.known.keys()
    assert len(told.known) == sum(each.owner.session is not None for each in partitions)


def test_at_the_beginning_every_partition_has_its_chance_to_prove_an_older_state() -> None:
    told = Told(owned("0"), owned(None))
    assert told.known == {0: "0"}
    told.now_s = 11
    assert told.known["description"] is told.description, "one that can't start for another reason hinders nothing"
    assert Told(owned("0"), owned("1")).known.keys() == {"unique_id", "description", 0, 1}


@pytest.mark.parametrize("why", [{"stopped": OLDER}, {"blocked": OLDER}, {"stopped": FORK}])
def test_what_is_found_later_ends_what_is_told_of_the_cluster(why: dict[str, PolonaiseError]) -> None:
    told = Told(owned("0"), owned("1"))
    known = told.known
    assert told.known is known, "nothing was looked at again"
    told.notes._partitions[1].owner.__dict__.update(  # type: ignore[attr-defined]
        stopped=why.get("stopped"), readiness=SimpleNamespace(blocked=why.get("blocked"))
    )
    told.changes.count += 1
    assert ("description" in told.known) == (why.get("stopped") is FORK)

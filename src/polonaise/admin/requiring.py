"""Change what commits need beside a quorum: the least number of copies, and of zones that these are in.

What is required, of the whole cluster or of a topic, is part of the cluster's description. Each partition acts by it
from its next session on, which its owner starts at once; only then does the change count as made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from polonaise.admin.asking import Told, answered, ask_health, server_said, values_in
from polonaise.coordination import Coordinator
from polonaise.coordination.topics import check_topic_name
from polonaise.coordination.values import ClusterDescription, PartitionValue, Requirement, Versioned
from polonaise.errors import BadOption, CoordinatorUnavailable, InsufficientReplicas
from polonaise.host import Host
from polonaise.redaction import redacted
from polonaise.terms import NO_SESSION, PartitionId, ServerId, StorageId
from polonaise.wire.messages import ROLE_SERVER, ROLE_STORAGE

N = TypeVar("N", ServerId, StorageId)

_LOOK_S: Final = 0.2
_LAST_S: Final = 1.0
"""Seconds that the coordinator, or an owner, gets to answer at the end, however little time is left."""
_ZONE_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class RequirementChange:
    """The outcome of a change of the requirement."""

    copies: int
    zones: int
    topic: str
    """Empty for the whole cluster."""
    waiting: Mapping[PartitionId, str]
    """The partitions that do not act by the requirement yet, each with the reason; empty if all do."""

    def document(self) -> dict[str, Any]:
        topic = {"topic": self.topic} if self.topic else {}
        waiting = {str(partition): why for partition, why in self.waiting.items()}
        return {**topic, "copies": self.copies, "zones": self.zones, "waiting": waiting}


async def require(
    host: Host, coordinator: Coordinator, copies: int, zones: int, timeout_s: float, topic: str | None = None
) -> RequirementChange:
    """Change what is required of a topic, or of the whole cluster (None), and wait until every partition of it acts by
    that.

    With 0 copies and 0 zones this demand is taken back; others still hold. Fewer copies than zones stand for as many as
    zones. The wait ends after `timeout_s` seconds, as each wait for an answer before the change does. Raises, with
    nothing changed: `UnknownTopic`; `BadOption` for an invalid name, and for numbers that the partitions' copies and
    their zones can't have; `InsufficientReplicas`, unless 0 copies are asked for, if too few storage nodes with copies
    answer, or a server does not or knows no such requirements. Raises `CoordinatorUnavailable`, which says so if the
    change may have been made.
    """
    if copies < 0 or zones < 0:
        raise BadOption(f"invalid requirement of {copies} copies in {zones} zones: neither can be below 0")
    copies, name = max(copies, zones), "" if topic is None else check_topic_name(topic)
    current = await answered(coordinator, coordinator.description(), timeout_s)
    wanted = current.value.requiring(copies, zones, name)
    required = wanted.demands[name].among(wanted.zones)
    partitions = _partitions_of(wanted, name)
    copied = await _copied(coordinator, partitions, timeout_s)
    if lack := _lack_in(required, copied):
        raise BadOption(
            f"{lack}: add copies (polonaise partition add-copy), give storage nodes zones (polonaise storage zone), or "
            "require less"
        )
    if copies:
        await _check_servers(host, coordinator, current.value, "topics_required" if name else "required", timeout_s)
        await _check_present(host, current.value, required, copied, timeout_s)
    await _write(coordinator, wanted, current, timeout_s)
    waiting = await _followed(host, coordinator, dict.fromkeys(partitions, required.version), timeout_s)
    return RequirementChange(copies, zones, name, waiting)


async def set_zone(
    host: Host, coordinator: Coordinator, name: StorageId, zone: str, timeout_s: float
) -> RequirementChange | None:
    """Put a storage node into a zone; an empty one takes it out of its zone.

    Returns how the partitions follow if anything was ever required, else None. Raises, with nothing changed:
    `UnknownStorageNode`, and `BadOption` for an invalid zone or if the required number of zones would not be there any
    more. Raises `CoordinatorUnavailable`, which says so if the change may have been made.
    """
    check_zone(zone)
    current = await answered(coordinator, coordinator.description(), timeout_s)
    current.value.check_known(name)
    wanted = current.value.zoned(name, zone)
    for topic, demand in wanted.demands.items():
        copied = await _copied(coordinator, _partitions_of(wanted, topic), timeout_s)
        if lack := _lack_in(demand.among(wanted.zones), copied):
            command = f"topic require {topic}" if topic else "cluster require"
            raise BadOption(f"{lack} after that: require less first, with `polonaise {command}`")
    await _write(coordinator, wanted, current, timeout_s)
    if not wanted.demands:
        return None
    versions = {partition: required.version for partition, required in wanted.requirements().items()}
    own = wanted.required
    waiting = await _followed(host, coordinator, versions, timeout_s)
    return RequirementChange(own.copies if own else 0, own.zones if own else 0, "", waiting)


def _partitions_of(description: ClusterDescription, topic: str) -> Sequence[PartitionId]:
    return description.topics[topic] if topic else range(description.total)


def check_zone(zone: str) -> None:
    """Raise `BadOption` unless this may be the name of a zone, or is empty, which stands for none."""
    if len(zone) > _ZONE_MAX or not all(each.isalnum() or each in "-_." for each in zone):
        raise BadOption(
            f"invalid zone {redacted(zone, _ZONE_MAX)!r}: letters, digits, '-', '_' and '.', {_ZONE_MAX} at most"
        )


async def _copied(
    coordinator: Coordinator, partitions: Sequence[PartitionId], timeout_s: float
) -> dict[frozenset[StorageId], PartitionId]:
    """Return the sets of storage nodes that hold the copies of these partitions, or are to, with a partition each.

    A removal that is asked for before the requirement is written, and made before the owner has read it, is judged by
    the old one (`recovery.takes_next`): then appends are refused until a copy is added or less is required.
    """
    copied: dict[frozenset[StorageId], PartitionId] = {}
    values = await answered(coordinator, values_in(coordinator, partitions), timeout_s)
    for partition, value in values.items():
        for names in (value.members, value.next or value.members):
            copied.setdefault(frozenset(names), partition)
    return copied


def _lack_in(
    required: Requirement,
    copied: Mapping[frozenset[StorageId], PartitionId],
    there: Collection[StorageId] | None = None,
) -> str:
    """Return what the copies of a partition lack, counting only those that are `there`; empty if none lacks any."""
    for names, partition in copied.items():
        if lack := required.lack_of([name for name in names if there is None or name in there]):
            return f"partition {partition}: {lack}"
    return ""


async def _check_servers(
    host: Host, coordinator: Coordinator, description: ClusterDescription, known_by: str, timeout_s: float
) -> None:
    """Raise `InsufficientReplicas` unless all servers know such requirements: their health has the key `known_by`."""
    servers = {each.server: each.address for each in await answered(coordinator, coordinator.members(), timeout_s)}
    told = await _asked(host, servers, ROLE_SERVER, description.key, timeout_s)

    def said(server: ServerId) -> Awaitable[str]:
        return server_said(coordinator, server, timeout_s)

    for server, answer in told.items():
        if not isinstance(answer, dict):
            raise InsufficientReplicas(
                f"server {await said(server)} does not answer, and may not know of a requirement: {answer}. "
                "Nothing was changed"
            )
        if known_by not in answer:
            what = "required copies" if known_by == "required" else "copies required of a topic"
            raise InsufficientReplicas(
                f"server {await said(server)} is of a version that knows no {what}: upgrade it. Nothing was changed"
            )


async def _asked(
    host: Host, addresses: Mapping[N, str], role: int, cluster_key: bytes, timeout_s: float
) -> dict[N, Told]:
    asking = (ask_health(host, address, role, cluster_key, timeout_s) for address in addresses.values())
    return dict(zip(addresses, await asyncio.gather(*asking), strict=True))


async def _check_present(
    host: Host,
    description: ClusterDescription,
    required: Requirement,
    copied: Mapping[frozenset[StorageId], PartitionId],
    timeout_s: float,
) -> None:
    """Raise `InsufficientReplicas` unless, of each partition's storage nodes, as many answer as are required."""
    told = await _asked(host, description.nodes, ROLE_STORAGE, description.key, timeout_s)
    there = [name for name, answer in told.items() if isinstance(answer, dict)]
    if lack := _lack_in(required, copied, there):
        away = [name for name in told if name not in there]
        raise InsufficientReplicas(f"{lack}: no answer from {', '.join(away)}. Nothing was changed")


async def _followed(
    host: Host, coordinator: Coordinator, versions: Mapping[PartitionId, int], timeout_s: float
) -> dict[PartitionId, str]:
    """Wait until a session of each of these partitions acts by the requirement of this version, or by a later one.

    Returns the others, each with the reason. What the engagement says counts, and not whether a server has read the
    requirement: an older session may go on to commit by the older one.
    """
    until_s = host.clock.monotonic_s() + timeout_s
    waiting = dict.fromkeys(versions, "")
    while True:
        try:
            # All of them together: each with a time limit of its own, a silent coordinator could take hours.
            left_s = max(_LAST_S, until_s - host.clock.monotonic_s())
            values = await answered(coordinator, values_in(coordinator, waiting), left_s)
        except CoordinatorUnavailable:
            waiting = dict.fromkeys(waiting, "the coordinator does not answer")
        else:
            waiting = {
                each: _why_not_yet(value) for each, value in values.items() if not _acts_by(value, versions[each])
            }
        if not waiting:
            return waiting
        if host.clock.monotonic_s() >= until_s:
            return {**waiting, **await _told_by_owners(host, coordinator, waiting)}
        await asyncio.sleep(_LOOK_S)


async def _told_by_owners(
    host: Host, coordinator: Coordinator, partitions: Collection[PartitionId]
) -> dict[PartitionId, str]:
    try:
        key = (await answered(coordinator, coordinator.describe(), _LAST_S)).key
        owners = (await answered(coordinator, coordinator.assignment(), _LAST_S)).value.owned
        expected = (await answered(coordinator, coordinator.expected_servers(), _LAST_S)).value
    except CoordinatorUnavailable:
        return {}
    owned = {partition: owners[partition] for partition in partitions if partition in owners}
    servers = {owner.server: owner.address for owner in owned.values()}
    told = await _asked(host, servers, ROLE_SERVER, key, _LAST_S)
    return {
        partition: why
        for partition, owner in owned.items()
        if (why := _why_in(told[owner.server], partition, expected.said(owner.server)))
    }


def _why_in(told: Told, partition: PartitionId, owner: str) -> str:
    if not isinstance(told, dict):
        return f"its owner, server {owner}, does not answer: {told}"
    try:
        return str(told["partitions"][str(partition)]["waits_for"])
    except (LookupError, TypeError):
        return ""


def _acts_by(value: PartitionValue, version: int) -> bool:
    return value.required is not None and value.required.version >= version


def _why_not_yet(value: PartitionValue) -> str:
    if value.session == NO_SESSION:
        return "it has had no session yet"
    return f"its session {value.session} was begun before, or is not begun yet"


async def _write(
    coordinator: Coordinator, wanted: ClusterDescription, current: Versioned[ClusterDescription], timeout_s: float
) -> None:
    await coordinator.ask_first()
    writing = coordinator.set_description(wanted, current.version)
    if await answered(coordinator, writing, timeout_s, "; the change may have been made: repeat the command") is None:
        raise CoordinatorUnavailable("the description was changed by somebody else meanwhile: repeat the command")

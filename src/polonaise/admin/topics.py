"""Create topics, let them grow, and list them: changes of the cluster's description, and owners for new partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from polonaise.admin.asking import values_in
from polonaise.coordination import Coordinator
from polonaise.coordination.memberchanges import first_members, usable_nodes
from polonaise.coordination.topics import check_topic_name
from polonaise.coordination.values import Assignment, ClusterDescription
from polonaise.errors import BadOption, CoordinatorDamaged, CoordinatorUnavailable, InsufficientReplicas, fault
from polonaise.server.assignment import Candidate, assign
from polonaise.server.coordinatortrouble import known_of_silence
from polonaise.terms import PARTITIONS_MAX, PartitionId, StorageId, counted

_TRIES_MAX: Final = 10
"""How often a change is tried while others change the same value at the same time."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a cluster, as operators see it."""

    name: str
    ids: tuple[PartitionId, ...]
    """The id in the cluster of each partition, by its number in the topic."""
    owners: tuple[str, ...]
    """The address of the server that owns each partition, by its number; empty where none does."""
    required: str = ""
    """What its commits need, by an operator's word on this topic; empty if nothing."""

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.name, "partitions": len(self.ids), "ids": list(self.ids), "owners": list(self.owners),
            "required": self.required,
        }  # fmt: skip


async def create_topic(coordinator: Coordinator, name: str, partitions: int, timeout_s: float) -> Topic:
    """Create a topic with this number of partitions.

    Each wait for the coordinator ends after `timeout_s` seconds; that for the partitions to be made gets a second more
    for each hundred partitions of the cluster. Raises, with nothing changed, `BadOption` for an invalid name or number
    or with too few storage nodes, `topic_exists`, `NotInitialized`, `CoordinatorDamaged`, and `InsufficientReplicas` if
    commits to its partitions would lack copies or zones that are required. Raises `CoordinatorUnavailable`, after which
    the topic may have been created.
    """
    check_topic_name(name)

    def check(description: ClusterDescription) -> None:
        if name in description.topics:
            raise fault(
                "topic_exists",
                f"topic {name} exists, with {counted(len(description.topics[name]), 'partition')}: choose another "
                f"name, or add partitions to it (polonaise topic add-partitions {name} --partitions N)",
            )

    return await _grow(coordinator, name, partitions, check, timeout_s)


async def add_partitions(coordinator: Coordinator, name: str, partitions: int, timeout_s: float) -> Topic:
    """Add this number of partitions to a topic; running clients and streams learn of them.

    Raises as `create_topic`, and `UnknownTopic` instead of `topic_exists`. Repeated after `CoordinatorUnavailable` it
    may add them twice: `list_topics` says how many there are.
    """
    check_topic_name(name)

    def check(description: ClusterDescription) -> None:
        description.partitions_of(name, 0)

    return await _grow(coordinator, name, partitions, check, timeout_s)


async def list_topics(coordinator: Coordinator, timeout_s: float) -> list[Topic]:
    """Return the topics of the cluster, by name. Raises `CoordinatorUnavailable` after `timeout_s` seconds."""
    description, assignment = await _read(coordinator, timeout_s)
    return [_topic(description, name, assignment) for name in sorted(description.topics)]


async def describe_topic(coordinator: Coordinator, name: str, timeout_s: float) -> Topic:
    """Return one topic. Raises `BadOption` for an invalid name, `UnknownTopic`, and what `list_topics` raises."""
    check_topic_name(name)
    description, assignment = await _read(coordinator, timeout_s)
    description.partitions_of(name, 0)  # raises if there is no such topic
    return _topic(description, name, assignment)


async def _read(coordinator: Coordinator, timeout_s: float) -> tuple[ClusterDescription, Assignment]:
    try:
        async with asyncio.timeout(timeout_s):
            return await coordinator.describe(), (await coordinator.assignment()).value
    except TimeoutError as error:
        raise CoordinatorUnavailable(_silent(error, coordinator, timeout_s, "")) from None


async def _grow(
    coordinator: Coordinator, name: str, count: int, check: Callable[[ClusterDescription], None], timeout_s: float
) -> Topic:
    """Add partitions to a topic, once `check` has passed on the description that is changed."""
    if count < 1:
        raise BadOption(f"a topic can't have {count} more partitions: give 1 or more")
    try:
        for _ in range(_TRIES_MAX):
            async with asyncio.timeout(timeout_s):
                current = await coordinator.description()
            check(current.value)
            grown = current.value.grown(name, count)
            if grown.total > PARTITIONS_MAX:
                raise BadOption(
                    f"the cluster has {counted(current.value.total, 'partition')}, and {count} more are over the "
                    f"limit of {PARTITIONS_MAX}: give fewer"
                )
            new = range(current.value.total, grown.total)
            await coordinator.ask_first()
            async with asyncio.timeout(timeout_s + grown.total / 100):
                # First: a partition that the description names has a value, or the coordinator counts as damaged.
                members = first_members(grown, await _members(coordinator, current.value), new)
                _check_required(grown, members)
                ready = await coordinator.make_partitions(members, usable_nodes(grown))
                if ready and await coordinator.set_description(grown, current.version) is not None:
                    assignment = await _give_owners(coordinator, grown.total)
                    return _topic(grown, name, assignment)
                if not ready and (await coordinator.description()).version == current.version:
                    raise CoordinatorDamaged(
                        f"partitions {new.start} to {new.stop - 1} are not named by the cluster's description, but "
                        "have values that are not those of new partitions: the description was restored from an older "
                        "copy. Restore the whole coordinator as it was last"
                    )
    except TimeoutError as error:
        raise CoordinatorUnavailable(
            _silent(error, coordinator, timeout_s, " The change may have been made: look with `polonaise topic list`")
        ) from None
    raise CoordinatorUnavailable(
        f"the description of the cluster was changed by others {_TRIES_MAX} times meanwhile, and not by this command: "
        "look who does so, then repeat it"
    )


def _check_required(description: ClusterDescription, members: Mapping[PartitionId, tuple[StorageId, ...]]) -> None:
    """Raise `InsufficientReplicas` if new partitions with these members could not commit as is required."""
    requirements = description.requirements()
    for partition, names in members.items():
        required = requirements.get(partition)
        if required is not None and (lack := required.lack_of(names)):
            raise InsufficientReplicas(
                f"partition {partition} would be on {', '.join(names)}, and {lack}: add storage nodes, or require less "
                "(polonaise cluster require, or topic require). Nothing was changed"
            )


async def _members(
    coordinator: Coordinator, description: ClusterDescription
) -> dict[PartitionId, tuple[StorageId, ...]]:
    """Return the members of all partitions; none while each storage node gets a copy of everything anyway."""
    if description.replication_factor == len(usable_nodes(description)):
        return {}
    values = await values_in(coordinator, range(description.total))
    return {partition: value.next or value.members for partition, value in values.items()}


async def _give_owners(coordinator: Coordinator, total: int) -> Assignment:
    """Give new partitions to servers that live, which so learn of them; return the assignment."""
    current = await coordinator.assignment()
    for _ in range(_TRIES_MAX):
        # None counts as settled, so that those get partitions which own some: they are known to work.
        servers = {each.server: Candidate(each.address, False, each.preferred) for each in await coordinator.members()}
        wanted = assign(current.value, servers, total, rebalance=False)
        # Partitions of servers that seem gone are left to the servers, which see for longer whether they are.
        merged = Assignment({**wanted.owners, **current.value.owners})
        if merged == current.value:
            break
        written = await coordinator.set_assignment(merged, current.version)
        if written is not None:
            return written.value
        current = await coordinator.assignment()
    return current.value


def _topic(description: ClusterDescription, name: str, assignment: Assignment) -> Topic:
    ids = description.topics[name]
    owners = (assignment.owner_of(partition) for partition in ids)
    demand = description.topics_required.get(name)
    told = "" if demand is None else demand.told
    return Topic(name, ids, tuple("" if owner is None else owner.address for owner in owners), told)


def _silent(error: TimeoutError, coordinator: Coordinator, timeout_s: float, more: str) -> str:
    why = known_of_silence(error, coordinator)
    known = f" ({why})" if why else ""
    return (
        f"the coordinator, {coordinator}, did not answer within {timeout_s:g} s{known}: correct its address or start "
        f"it, then repeat the command.{more}"
    )

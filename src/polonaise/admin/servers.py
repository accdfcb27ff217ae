"""Change what servers a cluster is to have, and own: take one out that is gone, give a partition to another."""

from __future__ import annotations

import asyncio
from typing import Final

from polonaise.admin.asking import answered, ask_health, health_of, server_said
from polonaise.coordination import Coordinator
from polonaise.coordination.values import Assignment, ExpectedServer, Owner, Registration, Versioned
from polonaise.errors import BadOption, CoordinatorUnavailable, DeadlineExceeded, UnknownPartition, fault
from polonaise.host import Host
from polonaise.redaction import redacted
from polonaise.server.assignment import Candidate, assign
from polonaise.terms import PartitionId, counted
from polonaise.wire.messages import ROLE_SERVER

_TRIES_MAX: Final = 20
"""How often the assignment is written while servers change it at the same time."""
_LOOK_S: Final = 0.1


async def move_owner(host: Host, coordinator: Coordinator, partition: PartitionId, to: str, timeout_s: float) -> Owner:
    """Give a partition to the server `to` (its name, address or id), and return once it serves it.

    Raises, with nothing changed, `UnknownPartition`, and `BadOption` for a server that is not registered, or that the
    balance over the servers would take the partition from again. Raises `DeadlineExceeded` if the new owner is not
    ready within `timeout_s` seconds: it stays the owner.
    """
    description = await answered(coordinator, coordinator.describe(), timeout_s)
    if not 0 <= partition < description.total:
        raise UnknownPartition(f"no partition {partition} in a cluster of {counted(description.total, 'partition')}")
    server = await _registered(coordinator, to, timeout_s)
    for _ in range(_TRIES_MAX):
        current = await answered(coordinator, coordinator.assignment(), timeout_s)
        owner = current.value.owner_of(partition)
        if owner is not None and owner.server == server.server:
            break
        moved = await _with_owner(coordinator, current, partition, server, description.total, timeout_s)
        owner = moved.owners[partition]
        await coordinator.ask_first()
        if await answered(
            coordinator,
            coordinator.set_assignment(moved, current.version),
            timeout_s,
            ", and may have made the change: look again",
        ):
            break
    else:
        raise CoordinatorUnavailable(
            f"the assignment was changed by servers {_TRIES_MAX} times meanwhile: nothing was changed; repeat the "
            "command"
        )
    said = await server_said(coordinator, owner.server, timeout_s)
    await _served(host, description.key, partition, owner, said, timeout_s)
    return owner


async def _registered(coordinator: Coordinator, to: str, timeout_s: float) -> Registration:
    members = await answered(coordinator, coordinator.members(), timeout_s)
    expected = (await answered(coordinator, coordinator.expected_servers(), timeout_s)).value
    for each in members:
        if to in (str(each.server), each.address, expected.name_of(each.server)):
            return each
    known = ", ".join(expected.name_of(each.server) or str(each.server) for each in members) or "none"
    raise BadOption(f"no server {redacted(to)!r} is registered; those that are: {known}. Nothing was changed")


async def _with_owner(
    coordinator: Coordinator,
    current: Versioned[Assignment],
    partition: PartitionId,
    server: Registration,
    total: int,
    timeout_s: float,
) -> Assignment:
    """Return the assignment with another owner of one partition. Raises `BadOption` if it would not stay so."""
    before = current.value.owners.get(partition)
    generation = 1 if before is None else before.generation + 1
    owner = Owner(server.server, server.address, generation)
    moved = Assignment({**current.value.owners, partition: owner})
    members = await answered(coordinator, coordinator.members(), timeout_s)
    candidates = {each.server: Candidate(each.address, True, each.preferred) for each in members}
    if assign(moved, candidates, total).owners[partition] != owner:
        said = await server_said(coordinator, server.server, timeout_s)
        raise BadOption(
            f"partition {partition} would not stay with server {said}: the servers keep the numbers of their "
            "partitions equal but for one, and partitions where they are preferred. Give it another one of its "
            "partitions first, or start the server with --prefer. Nothing was changed"
        )
    return moved


async def _served(host: Host, key: bytes, partition: PartitionId, owner: Owner, said: str, timeout_s: float) -> None:
    until_s = host.clock.monotonic_s() + timeout_s
    why = "it has not seen the change yet"
    while (left_s := until_s - host.clock.monotonic_s()) > 0:
        told = await ask_health(host, owner.address, ROLE_SERVER, key, left_s)
        if isinstance(told, dict):
            health = health_of(told, partition)
            if health is not None and health.get("generation") == owner.generation and health.get("ready"):
                return
            why = why if health is None else str(health.get("waits_for") or why)
        else:
            why = str(told)
        await asyncio.sleep(_LOOK_S)
    raise DeadlineExceeded(
        f"partition {partition} belongs to server {said} now, which does not serve it after {timeout_s:g} s: {why}"
    )


_UNCHANGED: Final = ": correct its address or start it, then repeat the command. Nothing was changed"


async def remove_server(coordinator: Coordinator, asked: str, timeout_s: float) -> tuple[str, ExpectedServer]:
    """Have nobody miss a server any more, asked for by name, number or address; return its name and what was known.

    Raises `BadOption` for one that the cluster does not have, or has more than once, `cluster_in_use` while the server
    is registered, and what the coordinator raises, such as that it is of an older state.
    """
    expected = (await answered(coordinator, coordinator.expected_servers(), timeout_s, _UNCHANGED)).value
    meant = [asked] if asked in expected.servers else [
        name for name, each in expected.servers.items() if asked in (str(each.server), each.address)
    ]  # fmt: skip
    if not meant:
        known = ", ".join(expected.servers) or "none has a name"
        raise BadOption(f"the cluster misses no server {redacted(asked)!r}; its servers are: {known}")
    if len(meant) > 1:
        raise BadOption(
            f"{redacted(asked)!r} may be any of the servers {', '.join(meant)}: give the name or the number"
        )
    (name,) = meant
    server = expected.servers[name]
    # Before the advice to stop it: in an older state of the coordinator it may be the only one that still serves.
    await coordinator.ask_first()
    await answered(coordinator, coordinator.may_change(), timeout_s, _UNCHANGED)
    if name not in expected.missing(await answered(coordinator, coordinator.members(), timeout_s, _UNCHANGED)):
        raise fault(
            "cluster_in_use",
            f"server {name} is registered, at {server.address}: stop it first; one that was killed is registered for a "
            "few seconds more",
        )
    await answered(
        coordinator, coordinator.forget_server(name), timeout_s, ", and may have made the change: look again"
    )
    return name, server

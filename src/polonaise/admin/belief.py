"""Whether servers and storage nodes believe what their coordinator holds, by what they and it tell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polonaise.admin.asking import Told, ask_noted
from polonaise.coordination import Coordinator
from polonaise.coordination.backend import PUT_BACK
from polonaise.coordination.rebuilding import Promised
from polonaise.coordination.values import ExpectedServers, PartitionValue
from polonaise.errors import (
    CertificateRefused,
    CertificateUnusable,
    CoordinatorDamaged,
    CoordinatorLost,
    CoordinatorOutdated,
    PolonaiseError,
    TlsNotSpoken,
    TlsRequired,
    UnsupportedVersion,
)
from polonaise.host import Host
from polonaise.recoverycommand import RECOVER
from polonaise.terms import NO_SESSION, PartitionId, ServerId, StorageId, counted

_READS_MAX: Final = 64

_DISBELIEF: Final = tuple(f"[{kind.code}]" for kind in (CoordinatorOutdated, CoordinatorLost, CoordinatorDamaged))
"""The codes that a server's words have in them if the coordinator answers it, and it can't believe what that holds."""


SHUT_OUT: Final = (CertificateRefused, CertificateUnusable, TlsRequired, TlsNotSpoken, UnsupportedVersion)
"""The errors of a node that is there, and that this process can't ask as it is: mending that is up to the operator."""


@dataclass(frozen=True, slots=True)
class Belief:
    """Whether a cluster's nodes believe what its coordinator holds: they do, they doubt it, or it is not known."""

    doubt: str = ""
    """Why they don't, such as that it is of an older state than theirs; empty if they do, or it is not known."""
    unknown: PolonaiseError | None = None
    """Why no node could be asked, although one is there; None if one could, or none is, or there is a doubt."""

    @property
    def not_asked(self) -> str:
        """Says that nobody could be asked, and why; empty if somebody could."""
        if self.unknown is None:
            return ""
        return f"nobody could be asked whether it holds the latest state: {self.unknown.text}"

    def refuse(self, coordinator: Coordinator, not_done: str, lost: str = "") -> None:
        """Raise `CoordinatorOutdated` if there is a doubt, which says `lost` besides, or why that is not known."""
        if self.doubt:
            raise CoordinatorOutdated(f"{coordinator}: {self.doubt}. {not_done}{lost}")
        if self.unknown is not None:
            raise type(self.unknown)(f"{coordinator}: {self.not_asked}. {not_done}")


BELIEVED: Final = Belief()


def disbelief(answers: Mapping[ServerId, Told], expected: ExpectedServers) -> str:
    """Return what servers say of a coordinator that answers, and holds what they can't believe; empty if none does."""
    said = {server: words for server, each in answers.items() if isinstance(each, dict) and (words := doubt_in(each))}
    if not said:
        return ""
    first, words = min(said.items())
    rest = f", and {counted(len(said) - 1, 'other server')} likewise" if len(said) > 1 else ""
    return f"it answers, but what it holds is not believed by server {expected.said(first)}{rest}: {words}"


def later_noted(storage: Mapping[StorageId, Told], version: int) -> str:
    """Return which storage nodes have noted a later description than one of this version; empty if none has.

    To be asked after servers, which know more: a note may be of a copy that was in the coordinator's place for a while.
    """
    noted = {
        name: told
        for name, each in sorted(storage.items())
        if isinstance(each, dict) and isinstance(told := each.get("noted"), int) and told > version
    }
    if not noted:
        return ""
    names, latest = ", ".join(noted), max(noted.values())
    told = f"the cluster's description is of version {version}, and {names} noted version {latest}"
    return _older("storage nodes have noted", told)


def _older(known: str, told: str) -> str:
    return (
        f"it answers, but what it holds is older than what {known}, and no server answers: {told}. If servers run, "
        "look again once they can be reached; else it was put back to an older state: restore its latest one, or move "
        f"it away and make its values again ({RECOVER})"
    )


def not_asked(
    servers: Mapping[ServerId, Told], storage: Mapping[StorageId, Told], expected: ExpectedServers
) -> PolonaiseError | None:
    """Return why nobody was asked whether the coordinator is believed, although a node is there; else None.

    Silence would be taken for consent. Nodes that are stopped keep nobody from changing anything. One server that
    answers is enough, or one storage node while no server is there.
    """
    groups = (
        {f"server {expected.said(server)}": told for server, told in sorted(servers.items())},
        {f"storage node {name}": told for name, told in sorted(storage.items())},
    )
    for group in groups:
        if any(isinstance(told, dict) for told in group.values()):
            return None
        for name, told in group.items():
            if isinstance(told, SHUT_OUT):
                return type(told)(f"{name}: {told.text}")
    return None


async def later_promised(
    host: Host, coordinator: Coordinator, key: bytes, nodes: Mapping[StorageId, str], timeout_s: float
) -> str:
    """Return which storage nodes have copies that promised later sessions than were given out; empty if none has.

    To be asked after servers, as `later_noted`, of nodes that answer, by their addresses. Each has `timeout_s` seconds
    to tell, and the coordinator as long. With TLS, nodes tell only who has a server's certificate.
    """

    async def ask(name: StorageId, address: str) -> tuple[StorageId, Mapping[PartitionId, Promised | None]]:
        try:
            told, answer = await ask_noted(host, address, timeout_s)
        except PolonaiseError:
            return name, {}  # as one that does not answer, or is of another version
        return name, answer.promised if told in (None, name) and answer.cluster_key == key else {}

    promised = dict(await asyncio.gather(*(ask(*each) for each in nodes.items())))
    # Read after that: a session is given out before any copy promises it.
    asked = sorted({partition for each in promised.values() for partition in each})
    sessions = {
        partition: value.session for partition, value in (await _read_at(coordinator, asked, timeout_s)).items()
    }
    later = {
        name: [
            each for each, told in copies.items() if told is not None and told.fence > sessions.get(each, told.fence)
        ]
        for name, copies in sorted(promised.items())
    }
    if not (partitions := sorted({each for found in later.values() for each in found})):
        return ""
    names = ", ".join(name for name, found in later.items() if found)
    told = f"of partitions {some(partitions)} the copies on {names} know later sessions"
    return _older("copies on storage nodes have promised", told)


async def outdated_at(coordinator: Coordinator, partitions: Iterable[PartitionId], timeout_s: float) -> str:
    """Return what `marked_outdated` says of the values read at the coordinator within `timeout_s` seconds."""
    return marked_outdated(await _read_at(coordinator, partitions, timeout_s))


async def _read_at(
    coordinator: Coordinator, partitions: Iterable[PartitionId], timeout_s: float
) -> dict[PartitionId, PartitionValue]:
    found: dict[PartitionId, PartitionValue] = {}
    reading = asyncio.Semaphore(_READS_MAX)

    async def read(partition: PartitionId) -> None:
        with contextlib.suppress(PolonaiseError):
            async with reading:
                found[partition] = (await coordinator.partition(partition)).value

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*map(read, partitions))
    return found


def outdated_in(values: Mapping[PartitionId, PartitionValue]) -> list[PartitionId]:
    """Return the partitions whose values are known to be older than what the storage nodes have seen."""
    return [partition for partition, value in sorted(values.items()) if value.outdated != NO_SESSION]


def marked_outdated(values: Mapping[PartitionId, PartitionValue]) -> str:
    if not (partitions := outdated_in(values)):
        return ""
    return (
        f"the coordinator {PUT_BACK}, and its values are older than the storage nodes know, of partitions "
        f"{some(partitions)}: put the latest state back, or move it away and make its values again ({RECOVER})"
    )


def some(partitions: Sequence[PartitionId]) -> str:
    return ", ".join([*map(str, partitions[:5]), *(["…"] if len(partitions) > 5 else [])])


def doubt_in(health: Mapping[str, Any]) -> str:
    """Return why a server does not believe what the coordinator holds, by its health; empty if it does."""
    partitions = health["partitions"].values()
    proved = (each["waits_for"] for each in partitions if each.get("coordinator_outdated"))
    told = [health.get("coordinator", ""), *(each["waits_for"] for each in partitions)]
    return next(proved, "") or next((words for words in told if any(code in words for code in _DISBELIEF)), "")

"""The parts of a server that all its partitions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polonaise.coordination import Coordinator
from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.patience import SyncPatience
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.turns import Ticks
from polonaise.server.requirements import Requirements
from polonaise.server.serverclock import ServerClock
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLink
from polonaise.server.turns import CopyTurns, StartTurns
from polonaise.terms import StorageId


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What each partition that a server owns is given."""

    host: Host
    coordinator: Coordinator
    settings: ServerSettings
    links: Mapping[StorageId, StorageLink]
    starts: StartTurns
    copies: CopyTurns
    ticks: Ticks
    """Is told when something with a deadline begins."""
    changes: ReadinessChanges
    """Is told what happens to sessions."""
    history: ArchivedHistory | None
    """The fragments of the log, if the server was told of any."""
    latencies: Histogram
    """Takes the time that each batch needs to be committed."""
    clock: ServerClock
    requirements: Requirements
    coordinator_patience: SyncPatience
    """How long session starts wait for the coordinator: its disk may be slow."""

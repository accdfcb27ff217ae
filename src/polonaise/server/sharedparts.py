"""The parts of a server that its partitions share, and the other parts that are made with them."""

from __future__ import annotations

from dataclasses import dataclass

from polonaise.coordination import Coordinator
from polonaise.histogram import Histogram
from polonaise.host import Host
from polonaise.patience import SyncPatience
from polonaise.server.archivedhistory import ArchivedHistory
from polonaise.server.clusteranswers import ClusterAnswers
from polonaise.server.coordinatortrouble import CoordinatorTrouble
from polonaise.server.protocol.readiness import ReadinessChanges
from polonaise.server.protocol.turns import Ticks
from polonaise.server.requirements import Requirements
from polonaise.server.serverclock import ServerClock
from polonaise.server.servermembership import ServerMembership
from polonaise.server.settings import ServerSettings
from polonaise.server.storagelinks import StorageLinks
from polonaise.server.turns import CopyTurns, StartTurns
from polonaise.terms import ServerId


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What each partition that a server owns is given, and whatever serves or watches them."""

    host: Host
    coordinator: Coordinator
    settings: ServerSettings
    server: ServerId
    trouble: CoordinatorTrouble
    """Is told which operations at the coordinator fail."""
    cluster: ClusterAnswers
    """Knows the cluster's description and assignment as they were read last."""
    membership: ServerMembership
    """Knows until when the server may own anything."""
    links: StorageLinks
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

"""The kinds of faults of a smoke test, with all that is to be said of each: `KINDS`."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class NodeGroup(StrEnum):
    """The kinds of nodes.

    At most one node of each group has a fault at a time, so a majority of those that decide by one is always left.
    """

    ZOOKEEPER = "zookeeper"
    STORAGE = "storage"
    SERVER = "server"
    CLIENT = "client"
    ARCHIVER = "archiver"


COUNTS: Final = {
    NodeGroup.ZOOKEEPER: 3,
    NodeGroup.STORAGE: 3,
    NodeGroup.SERVER: 3,
    NodeGroup.CLIENT: 2,
    NodeGroup.ARCHIVER: 1,
}
"""The number of nodes of each group."""


class FaultKind(StrEnum):
    """The kinds of faults."""

    KILL = "kill"
    """The process is killed by SIGKILL, and started again."""
    STOP = "stop"
    """The process is stopped by SIGSTOP, and continued by SIGCONT."""
    CUT = "cut"
    """The host's link is down: nothing arrives from it or at it."""
    CUT_OUT = "cut-out"
    """Nothing that the host sends arrives; it hears the others."""
    CUT_IN = "cut-in"
    """Nothing arrives at the host; the others hear it."""
    CUT_PAIR = "cut-pair"
    """A server and a storage node do not reach each other; all others reach both."""
    WIPE = "wipe"
    """The storage node is killed, its disk is emptied, and it comes back as a new node of the same name."""
    MOVE = "move"
    """The server is stopped gracefully, so that its partitions move to others, and started again."""
    CUT_STORAGE = "cut-storage"
    """The server and all storage nodes do not reach each other; all others reach all of them."""
    LOSE = "lose"
    """The host loses about 30 % of what it sends, in short pulses."""
    CLOCK = "clock"
    """The node's wall clock is a day ahead (those with odd numbers) or behind, while it runs, and then right again."""
    STOP_LEADER = "stop-leader"
    """The ZooKeeper server that leads when the fault begins is stopped by SIGSTOP, and continued by SIGCONT."""
    CUT_LEADER = "cut-leader"
    """The link of the ZooKeeper server that leads when the fault begins is down."""


class Way(StrEnum):
    """How a fault is inflicted and ended; `faults/hostfaults.py` has the two functions of each."""

    KILL = "killed, then started"
    STOP = "stopped, then continued"
    WIPE = "killed and emptied, then started"
    END = "ended gracefully, then started"
    CUT = "links cut, then healed"
    CLOCK = "clock set wrong, then right"


class Telling(StrEnum):
    """What the status of a cluster says of a fault while it lasts; `judges/told.py` judges by it."""

    AWAY = "its node is not reached"
    LOSSES = "packets to or from its node are lost, or the node is not reached"
    CLOCK = "its clock is wrong; whoever asks reaches it"
    NO_STORAGE = "it reaches no storage node; whoever asks reaches it"
    PAIR = "one node does not reach the other; whoever asks reaches both"
    NOTHING = "rightly nothing: a comment at the kind says why"


class KindFacts(NamedTuple):
    """All that has to be said of one kind of fault."""

    way: Way
    telling: Telling
    targets: tuple[NodeGroup, ...]
    """The groups from which its node is drawn. The other end of a `CUT_PAIR` is a storage node."""
    is_long: bool = False
    """Whether it always lasts long enough to be told. Of each other kind, the first fault that status tells of does."""
    is_planned: bool = False
    """Whether it is no fault but a planned change: while nothing else happens, it fails no append."""
    of_leader: bool = False
    """Whether it befalls whoever leads the ensemble of ZooKeeper servers, whatever node the schedule names."""


_DECIDING: Final = (NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER)
KINDS: Final[dict[FaultKind, KindFacts]] = {
    FaultKind.KILL: KindFacts(Way.KILL, Telling.AWAY, tuple(NodeGroup)),
    FaultKind.STOP: KindFacts(Way.STOP, Telling.AWAY, (*_DECIDING, NodeGroup.CLIENT)),
    FaultKind.CUT: KindFacts(Way.CUT, Telling.AWAY, (*_DECIDING, NodeGroup.CLIENT)),
    FaultKind.CUT_OUT: KindFacts(Way.CUT, Telling.AWAY, _DECIDING),
    FaultKind.CUT_IN: KindFacts(Way.CUT, Telling.AWAY, _DECIDING),
    FaultKind.CUT_PAIR: KindFacts(Way.CUT, Telling.PAIR, (NodeGroup.SERVER,), is_long=True),
    FaultKind.WIPE: KindFacts(Way.WIPE, Telling.AWAY, (NodeGroup.STORAGE,), is_long=True),
    FaultKind.MOVE: KindFacts(Way.END, Telling.AWAY, (NodeGroup.SERVER,), is_planned=True),
    FaultKind.CUT_STORAGE: KindFacts(Way.CUT, Telling.NO_STORAGE, (NodeGroup.SERVER,), is_long=True),
    FaultKind.LOSE: KindFacts(Way.CUT, Telling.LOSSES, (NodeGroup.STORAGE, NodeGroup.SERVER), is_long=True),
    FaultKind.CLOCK: KindFacts(Way.CLOCK, Telling.CLOCK, (NodeGroup.STORAGE, NodeGroup.SERVER), is_long=True),
    FaultKind.STOP_LEADER: KindFacts(Way.STOP, Telling.AWAY, (NodeGroup.ZOOKEEPER,), is_long=True, of_leader=True),
    FaultKind.CUT_LEADER: KindFacts(Way.CUT, Telling.AWAY, (NodeGroup.ZOOKEEPER,), is_long=True, of_leader=True),
}
"""The facts of each kind, in the order of the schedules' cards."""

LINK_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.way is Way.CUT)
"""The kinds that cut links between hosts, or lose what is sent on them."""
PROCESS_KINDS: Final = KINDS.keys() - LINK_KINDS
"""The kinds that need no network of their own."""
PLANNED_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.is_planned)


class Fault(NamedTuple):
    """One fault: what befalls a node or, for `CUT_PAIR`, the link between two nodes."""

    kind: FaultKind
    node: str
    """The node's name, such as `storage-1`."""
    other: str = ""
    """The other end of the cut, for `CUT_PAIR`; empty for all other kinds."""

    @property
    def groups(self) -> frozenset[NodeGroup]:
        """The groups of the nodes that have this fault."""
        every = frozenset({NodeGroup.STORAGE}) if self.kind is FaultKind.CUT_STORAGE else frozenset()
        return every | {group_of(name) for name in (self.node, self.other) if name}

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (f" from {self.other}" if self.other else "")


def group_of(node: str) -> NodeGroup:
    """Return the group of a node, by its name."""
    return NodeGroup(node.rpartition("-")[0])


def nodes_of(group: NodeGroup) -> list[str]:
    """Return the names of a group's nodes."""
    return [f"{group}-{number}" for number in range(1, COUNTS[group] + 1)]

"""The kinds of faults of a smoke test, and on which nodes each of them is inflicted."""

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


PROCESS_KINDS: Final = frozenset(
    {FaultKind.KILL, FaultKind.STOP, FaultKind.WIPE, FaultKind.MOVE, FaultKind.CLOCK, FaultKind.STOP_LEADER}
)
"""The kinds that need no network of their own."""
LINK_KINDS: Final = frozenset(
    {
        FaultKind.CUT, FaultKind.CUT_OUT, FaultKind.CUT_IN, FaultKind.CUT_PAIR, FaultKind.CUT_STORAGE, FaultKind.LOSE,
        FaultKind.CUT_LEADER,
    }
)  # fmt: skip
"""The kinds that cut links between hosts, or lose what is sent on them."""
PLANNED_KINDS: Final = frozenset({FaultKind.MOVE})
"""The kinds that are no faults but planned changes: while nothing else happens, they fail no append."""
LEADER_KINDS: Final = frozenset({FaultKind.STOP_LEADER, FaultKind.CUT_LEADER})
"""The kinds that befall whoever leads the ensemble of ZooKeeper servers, whatever node the schedule names."""

TARGETS: Final[dict[FaultKind, tuple[NodeGroup, ...]]] = {
    FaultKind.KILL: tuple(NodeGroup),
    FaultKind.STOP: (NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER, NodeGroup.CLIENT),
    FaultKind.CUT: (NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER, NodeGroup.CLIENT),
    FaultKind.CUT_OUT: (NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER),
    FaultKind.CUT_IN: (NodeGroup.ZOOKEEPER, NodeGroup.STORAGE, NodeGroup.SERVER),
    FaultKind.CUT_PAIR: (NodeGroup.SERVER,),
    FaultKind.WIPE: (NodeGroup.STORAGE,),
    FaultKind.MOVE: (NodeGroup.SERVER,),
    FaultKind.CUT_STORAGE: (NodeGroup.SERVER,),
    FaultKind.LOSE: (NodeGroup.STORAGE, NodeGroup.SERVER),
    FaultKind.CLOCK: (NodeGroup.STORAGE, NodeGroup.SERVER),
    FaultKind.STOP_LEADER: (NodeGroup.ZOOKEEPER,),
    FaultKind.CUT_LEADER: (NodeGroup.ZOOKEEPER,),
}
"""By kind: the groups from which its node is drawn. The other end of a `CUT_PAIR` is a storage node."""


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

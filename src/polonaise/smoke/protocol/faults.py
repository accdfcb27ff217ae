"""The kinds of faults of a smoke test, and on which nodes each of them is inflicted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Group(StrEnum):
    """The kinds of nodes. At most one node of each group has a fault at a time, so the others remain a quorum."""

    ZOOKEEPER = "zookeeper"
    STORAGE = "storage"
    SERVER = "server"
    CLIENT = "client"
    ARCHIVER = "archiver"


COUNTS: Final = {Group.ZOOKEEPER: 3, Group.STORAGE: 3, Group.SERVER: 3, Group.CLIENT: 2, Group.ARCHIVER: 1}
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


PROCESS_KINDS: Final = frozenset({FaultKind.KILL, FaultKind.STOP, FaultKind.WIPE, FaultKind.MOVE})
"""The kinds that need no network of their own."""
LINK_KINDS: Final = frozenset({FaultKind.CUT, FaultKind.CUT_OUT, FaultKind.CUT_IN, FaultKind.CUT_PAIR})
"""The kinds that cut links between hosts."""

TARGETS: Final[dict[FaultKind, tuple[Group, ...]]] = {
    FaultKind.KILL: tuple(Group),
    FaultKind.STOP: (Group.ZOOKEEPER, Group.STORAGE, Group.SERVER, Group.CLIENT),
    FaultKind.CUT: (Group.ZOOKEEPER, Group.STORAGE, Group.SERVER, Group.CLIENT),
    FaultKind.CUT_OUT: (Group.ZOOKEEPER, Group.STORAGE, Group.SERVER),
    FaultKind.CUT_IN: (Group.ZOOKEEPER, Group.STORAGE, Group.SERVER),
    FaultKind.CUT_PAIR: (Group.SERVER,),
    FaultKind.WIPE: (Group.STORAGE,),
    FaultKind.MOVE: (Group.SERVER,),
}
"""The groups that each kind is inflicted on."""


class Fault(NamedTuple):
    """One fault of one node."""

    kind: FaultKind
    node: str
    """The node's name, such as `storage-1`."""
    other: str = ""
    """The other end of the cut, for `CUT_PAIR`; empty for all other kinds."""

    @property
    def groups(self) -> frozenset[Group]:
        """The groups of the nodes that have this fault."""
        return frozenset(group_of(name) for name in (self.node, self.other) if name)

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (f" from {self.other}" if self.other else "")


def group_of(node: str) -> Group:
    """Return the group of a node, by its name."""
    return Group(node.rpartition("-")[0])


def nodes_of(group: Group) -> list[str]:
    """Return the names of a group's nodes."""
    return [f"{group}-{number}" for number in range(1, COUNTS[group] + 1)]

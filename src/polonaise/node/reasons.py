"""The reasons for which nodes are not well, one word each: metrics and alerts tell them apart by these."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TypeAlias


class Reason(enum.StrEnum):
    """What can be wrong with a node. `docs/monitoring.md` says which metric and alert each one has."""

    PARTITION_NOT_READY = "partition_not_ready"
    """A partition takes no appends."""
    REPLICA_LEFT_OUT = "replica_left_out"
    """A member of a partition is not engaged, or a storage node is not reached."""
    COPIES = "copies"
    """A partition has fewer members than it is to have, or more."""
    NO_SPARE = "no_spare"
    """A partition would lack what commits require with one more loss."""
    DAMAGE = "damage"
    """A damage that a scrub found on a storage node is not repaired."""
    FRAGMENTS_UNREADABLE = "fragments_unreadable"
    """The fragment store can't be read."""
    FRAGMENTS_MISSING = "fragments_missing"
    """Trimmed ids of a partition are in no fragment."""
    FRAGMENT_DAMAGE = "fragment_damage"
    UNREACHABLE = "unreachable"
    """Nobody can connect to the node: what it listens at was taken away."""
    TLS = "tls"
    """A file of TLS can't be used, or expires soon, or has expired."""
    CLOCK = "clock"
    TIMES_STAND_STILL = "times_stand_still"
    COORDINATOR = "coordinator"
    """The coordinator is not reached, so that the server may own nothing, or has not read the assignment; or one of its
    values is missing or damaged."""
    COORDINATOR_SERVER = "coordinator_server"
    GIVEN_UP = "given_up"
    """The server has given up partitions that it can't serve."""
    NAMESAKE = "namesake"
    MISSING_SERVER = "missing_server"
    """Another server that the cluster is to have is not registered."""
    CUT_OFF = "cut_off"
    """The server reaches none of the storage nodes."""
    PACKETS_LOST = "packets_lost"
    DIRECTORY_GONE = "directory_gone"
    DISK_FULL = "disk_full"
    """The disk is full, or had lately no room for something that was to be stored."""
    DISK_HANGS = "disk_hangs"
    """The disk has not done for seconds what it was asked for."""
    STRANGER = "stranger"
    """The storage node has refused the server of another cluster lately."""
    REPLICA_UNUSABLE = "replica_unusable"
    TURN_FAILED = "turn_failed"
    """The last turn of the process of a player has ended by a fault."""
    LOG_TROUBLE = "log_trouble"
    """The log does not answer the player, of some partition or about its lease."""
    SETTINGS_REFUSED = "settings_refused"
    """The settings that were read last are wrong."""
    TARGET_DOWN = "target_down"
    """A target has no stream."""
    TARGET_HINDERED = "target_hindered"
    """Something keeps a target from getting all of a partition."""
    TARGET_SLOW = "target_slow"
    """A target has acknowledged nothing of a partition for long, and goes on."""
    PARTITION_STOPPED = "partition_stopped"
    """Nothing more of a partition is delivered."""


Trouble: TypeAlias = tuple[Reason, str]
"""What kind of thing is wrong, and a line that says it."""

OF_SERVERS = frozenset(
    {
        Reason.PARTITION_NOT_READY, Reason.REPLICA_LEFT_OUT, Reason.COPIES, Reason.NO_SPARE,
        Reason.FRAGMENTS_UNREADABLE, Reason.FRAGMENTS_MISSING, Reason.FRAGMENT_DAMAGE, Reason.TLS, Reason.CLOCK,
        Reason.TIMES_STAND_STILL,
        Reason.COORDINATOR, Reason.COORDINATOR_SERVER, Reason.GIVEN_UP, Reason.NAMESAKE, Reason.MISSING_SERVER,
        Reason.CUT_OFF, Reason.PACKETS_LOST, Reason.UNREACHABLE,
    }
)  # fmt: skip
"""Damage on a storage node, of which a server's health tells too, is that node's."""
OF_STORAGE = frozenset(
    {
        Reason.DIRECTORY_GONE, Reason.TLS, Reason.STRANGER, Reason.REPLICA_UNUSABLE, Reason.PACKETS_LOST,
        Reason.DAMAGE, Reason.UNREACHABLE, Reason.DISK_FULL, Reason.DISK_HANGS,
    }
)  # fmt: skip
OF_PLAYERS = frozenset(
    {
        Reason.TURN_FAILED, Reason.LOG_TROUBLE, Reason.SETTINGS_REFUSED, Reason.TLS, Reason.CLOCK,
        Reason.TARGET_DOWN, Reason.TARGET_HINDERED, Reason.TARGET_SLOW, Reason.PARTITION_STOPPED,
    }
)  # fmt: skip

KEEP_FROM_SERVING = frozenset(
    {Reason.GIVEN_UP, Reason.CUT_OFF, Reason.COORDINATOR, Reason.UNREACHABLE, Reason.FRAGMENTS_UNREADABLE}
)
"""For these a server could not serve partitions that it got from others."""
KEEP_FROM_WRITING = frozenset({Reason.DIRECTORY_GONE, Reason.DISK_FULL, Reason.DISK_HANGS, Reason.UNREACHABLE})
"""For these a storage node can't write, or soon can't: it may still have room for a few batches."""


def lines_of(troubles: Iterable[Trouble]) -> list[str]:
    return [line for _, line in troubles]

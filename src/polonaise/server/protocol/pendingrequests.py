"""What an owner's next message to the replicas has to prove: requests of clients, and the pulse of an idle partition.

`until_s` is a request's deadline in monotonic seconds, and `request` the number under which it is answered.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

from polonaise.server.protocol.committedregisters import AskedRegisters
from polonaise.server.protocol.leasetable import AskedLeases, ReleasedLeases
from polonaise.server.protocol.mounts import ClientMount
from polonaise.terms import TransactionId


class PendingMount(NamedTuple):
    """Asks whether a mount may append: all appends of its client's older mounts are decided, and fed if committed."""

    until_s: float
    request: int
    mount: ClientMount
    client_high_water_mark: TransactionId


class PendingFlush(NamedTuple):
    """Asks to be told when every earlier append of a mount is decided, and fed if it is committed."""

    until_s: float
    request: int
    mount: ClientMount


class PendingMark(NamedTuple):
    """Asks for the committed high-water mark."""

    until_s: float
    request: int
    connection: Hashable


class PendingRegisters(NamedTuple):
    """Asks for the value of a register, or for a page of registers."""

    until_s: float
    request: int
    connection: Hashable
    asked: AskedRegisters


class PendingLeases(NamedTuple):
    """Asks for leases, or releases some."""

    until_s: float
    request: int
    connection: Hashable
    asked: AskedLeases | ReleasedLeases


class Pulse(NamedTuple):
    """Has the replicas of an idle partition acknowledge a barrier: so a fault is found before a writer finds it."""

    until_s: float


PendingRequest: TypeAlias = PendingMount | PendingFlush | PendingMark | PendingRegisters | PendingLeases | Pulse

PULSE: Final = Pulse(float("inf"))
"""No client waits for it, so it has no deadline."""

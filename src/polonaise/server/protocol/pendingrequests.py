"""Requests of clients to an owner, answered once everything that came before them is decided."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

from polonaise.server.protocol.committedregisters import AskedRegisters
from polonaise.server.protocol.mounts import ClientMount
from polonaise.terms import TransactionId


class PendingMount(NamedTuple):
    """Asks whether this mount may append: once every append of the client's older ones is decided, and fed."""

    until_s: float
    request: int
    mount: ClientMount
    client_high_water_mark: TransactionId


class PendingFlush(NamedTuple):
    """Asks to be told when everything that this mount sent before is decided, and fed if it is committed."""

    until_s: float
    request: int
    mount: ClientMount


class PendingMark(NamedTuple):
    """Asks where the committed high-water mark is."""

    until_s: float
    request: int
    connection: Hashable


class PendingRegisters(NamedTuple):
    """Asks what is in a register, or which registers there are."""

    until_s: float
    request: int
    connection: Hashable
    asked: AskedRegisters


class Pulse(NamedTuple):
    """Asks an idle partition's replicas for a sign of life, for nobody: a fault is found before a writer finds it."""

    until_s: float


PendingRequest: TypeAlias = PendingMount | PendingFlush | PendingMark | PendingRegisters | Pulse

PULSE: Final = Pulse(float("inf"))

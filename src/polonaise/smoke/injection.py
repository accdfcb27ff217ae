"""How each kind of fault is inflicted on a node, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

from polonaise.smoke.protocol.faults import Fault, FaultKind
from polonaise.smoke.town import Town


def begin(town: Town, fault: Fault) -> None:
    """Inflict a fault. Raises `NoNetwork`, and what the disk raises."""
    _BEGIN[fault.kind](town, fault)


def end(town: Town, fault: Fault) -> None:
    """End a fault: the node is there again, or begins to come back. Raises what starting a node raises."""
    _END[fault.kind](town, fault)


def _kill(town: Town, fault: Fault) -> None:
    town.part(fault.node).kill()


def _start(town: Town, fault: Fault) -> None:
    town.part(fault.node).start()


def _stop(town: Town, fault: Fault) -> None:
    town.part(fault.node).signal(signal.SIGSTOP)


def _continue(town: Town, fault: Fault) -> None:
    town.part(fault.node).signal(signal.SIGCONT)


def _wipe(town: Town, fault: Fault) -> None:
    town.part(fault.node).kill()
    town.empty(fault.node)


def _move(town: Town, fault: Fault) -> None:
    town.part(fault.node).stop()


def _cut(town: Town, fault: Fault) -> None:
    town.hosts.cut(fault)


def _heal(town: Town, fault: Fault) -> None:
    town.hosts.heal(fault)


_BEGIN: Final[dict[FaultKind, Callable[[Town, Fault], None]]] = {
    FaultKind.KILL: _kill,
    FaultKind.STOP: _stop,
    FaultKind.CUT: _cut,
    FaultKind.CUT_OUT: _cut,
    FaultKind.CUT_IN: _cut,
    FaultKind.CUT_PAIR: _cut,
    FaultKind.WIPE: _wipe,
    FaultKind.MOVE: _move,
}
_END: Final[dict[FaultKind, Callable[[Town, Fault], None]]] = {
    FaultKind.KILL: _start,
    FaultKind.STOP: _continue,
    FaultKind.CUT: _heal,
    FaultKind.CUT_OUT: _heal,
    FaultKind.CUT_IN: _heal,
    FaultKind.CUT_PAIR: _heal,
    FaultKind.WIPE: _start,
    FaultKind.MOVE: _start,
}

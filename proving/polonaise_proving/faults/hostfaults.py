"""How each kind of fault is inflicted on a node, and how it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

from polonaise_proving.record.faultkinds import LEADER_KINDS, Fault, FaultKind
from polonaise_proving.stages.hosts.clocked import set_clock
from polonaise_proving.stages.hosts.town import Town

_ARCHIVING_S: Final = 1.0
"""Seconds for which an archiver runs that was started only to be killed."""
_DAY_S: Final = 86_400.0
_ELECTION_S: Final = 10.0
"""Seconds within which an ensemble of ZooKeeper servers that is well has a leader."""
_LOOK_S: Final = 0.1


def befalls(town: Town, fault: Fault) -> Fault:
    """Return the fault with the node that it befalls now: of some kinds it is the one that leads its group."""
    if fault.kind not in LEADER_KINDS:
        return fault
    until_s = time.monotonic() + _ELECTION_S
    while (leader := town.leader()) is None and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    return fault if leader is None else fault._replace(node=leader)


def begin(town: Town, fault: Fault) -> bool:
    """Inflict a fault; return False if there was nothing to inflict it on.

    Raises `NoNetwork`, `SmokeFailed` for a node that does not stop as asked, and what the disk raises.
    """
    if fault.kind is FaultKind.KILL and fault.node == town.archiver.name:
        return _kill_archiver(town)
    _BEGIN[fault.kind](town, fault)
    return True


def end(town: Town, fault: Fault) -> None:
    """End a fault: the node is there again, or begins to come back.

    Raises `NoNetwork`, and what starting a node raises.
    """
    _END[fault.kind](town, fault)


def _kill(town: Town, fault: Fault) -> None:
    town.part(fault.node).kill()


def _kill_archiver(town: Town) -> bool:
    """Kill the archiver amid a run, which is begun if there is none; return False if the run has ended before."""
    archiver = town.archiver
    archiver.ended()  # forgets a run that has come to its end
    if archiver.pid is None:
        archiver.start()
        time.sleep(_ARCHIVING_S)
        archiver.ended()
    was_running = archiver.pid is not None
    archiver.kill()
    return was_running


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


def _set_clock_wrong(town: Town, fault: Fault) -> None:
    is_ahead = int(fault.node.rpartition("-")[2]) % 2
    set_clock(town.clock_files[fault.node], _DAY_S if is_ahead else -_DAY_S)


def _set_clock_right(town: Town, fault: Fault) -> None:
    set_clock(town.clock_files[fault.node], 0.0)


_BEGIN: Final[dict[FaultKind, Callable[[Town, Fault], None]]] = {
    FaultKind.KILL: _kill,
    FaultKind.STOP: _stop,
    FaultKind.CUT: _cut,
    FaultKind.CUT_OUT: _cut,
    FaultKind.CUT_IN: _cut,
    FaultKind.CUT_PAIR: _cut,
    FaultKind.WIPE: _wipe,
    FaultKind.MOVE: _move,
    FaultKind.CUT_STORAGE: _cut,
    FaultKind.LOSE: _cut,
    FaultKind.CLOCK: _set_clock_wrong,
    FaultKind.STOP_LEADER: _stop,
    FaultKind.CUT_LEADER: _cut,
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
    FaultKind.CUT_STORAGE: _heal,
    FaultKind.LOSE: _heal,
    FaultKind.CLOCK: _set_clock_right,
    FaultKind.STOP_LEADER: _continue,
    FaultKind.CUT_LEADER: _heal,
}

"""How faults are inflicted on nodes, and how they end: two functions for each way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

from polonaise_proving.record.faultkinds import KINDS, Fault, FaultKind, Way
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
    if not KINDS[fault.kind].of_leader:
        return fault
    until_s = time.monotonic() + _ELECTION_S
    while (leader := town.leader()) is None and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    return fault if leader is None else fault._replace(node=leader)


def begin(town: Town, fault: Fault) -> bool:
    """Inflict a fault; return False if there was nothing to inflict it on.

    Raises `NoNetwork`, `GaveUp` for a node that does not stop as asked, and what the disk raises.
    """
    if fault.kind is FaultKind.KILL and fault.node == town.archiver.name:
        return _kill_archiver(town)
    inflict, _ = WAYS[KINDS[fault.kind].way]
    inflict(town, fault)
    return True


def end(town: Town, fault: Fault) -> None:
    """End a fault: the node is there again, or begins to come back.

    Raises `NoNetwork`, and what starting a node raises.
    """
    _, undo = WAYS[KINDS[fault.kind].way]
    undo(town, fault)


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


def _wipe(town: Town, fault: Fault) -> None:
    town.part(fault.node).kill()
    town.empty(fault.node)


def _set_clock_wrong(town: Town, fault: Fault) -> None:
    is_ahead = int(fault.node.rpartition("-")[2]) % 2
    set_clock(town.clock_files[fault.node], _DAY_S if is_ahead else -_DAY_S)


WAYS: Final[dict[Way, tuple[Callable[[Town, Fault], None], Callable[[Town, Fault], None]]]] = {
    Way.KILL: (lambda town, fault: town.part(fault.node).kill(), _start),
    Way.STOP: (
        lambda town, fault: town.part(fault.node).signal(signal.SIGSTOP),
        lambda town, fault: town.part(fault.node).signal(signal.SIGCONT),
    ),
    Way.WIPE: (_wipe, _start),
    Way.END: (lambda town, fault: town.part(fault.node).stop(), _start),
    Way.CUT: (lambda town, fault: town.hosts.cut(fault), lambda town, fault: town.hosts.heal(fault)),
    Way.CLOCK: (_set_clock_wrong, lambda town, fault: set_clock(town.clock_files[fault.node], 0.0)),
}
"""By way: what inflicts a fault, and what ends it."""

"""One peer after the other: set up, loaded between two floors, ended; what can't be had is left out with the reason."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.loads import Load, Missing
from benchmarks.peers.figures import Floor, Sitting
from benchmarks.peers.floor import settled
from benchmarks.peers.peer import ACCOUNTS, OUTSTANDING, WITHDRAWING, Peer

ATTEMPTS = 2
"""How often a peer's servers are started: a port that was free may be taken a moment later."""

MeasureFloor = Callable[[Path, Floor | None], Floor]
"""A function that measures the floor on a directory's disk; given an earlier floor, it waits while they differ."""


def sittings(
    peers: Sequence[Peer], directory: Path, seconds: float, runs: int, measure_floor: MeasureFloor = settled
) -> list[Sitting]:
    """Install all peers, then set up and load one after the other. Return their sittings, in the same order.

    Each peer is alone: no other runs, and nothing is installed, while it is measured.
    """
    done = [_installed(peer) for peer in peers]
    reference: Floor | None = None
    for peer, sitting in zip(peers, done, strict=True):
        if sitting.missing:
            continue
        home = Path(tempfile.mkdtemp(prefix=f"{peer.configuration.peer}-", dir=directory))
        home.chmod(0o711)  # servers that refuse to run as root are another user's
        try:
            print(f"\n{sitting.configuration.name} ({sitting.version})", flush=True)
            sitting.before = measure_floor(home, reference)
            reference = reference or sitting.before
            _print_floor("before", sitting.before)
            _sit(peer, sitting, home, seconds, runs)
            if sitting.runs:  # with the files still there: syncs are slow for seconds after many were removed
                sitting.after = measure_floor(home, None)
                _print_floor("after", sitting.after)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    return done


def _installed(peer: Peer) -> Sitting:
    sitting = Sitting(peer.configuration)
    try:
        sitting.version = peer.install()
    except Missing as missing:
        _miss(sitting, missing)
    return sitting


def _sit(peer: Peer, sitting: Sitting, home: Path, seconds: float, runs: int) -> None:
    try:
        _start(peer, home)
        _load(peer, sitting, seconds, runs)
    except Missing as missing:
        _miss(sitting, missing)
    finally:
        peer.stop()


def _miss(sitting: Sitting, missing: Missing) -> None:
    sitting.missing = str(missing)
    print(f"{sitting.configuration.name}: {missing}", flush=True)


def _start(peer: Peer, home: Path) -> None:
    for attempt in range(ATTEMPTS):
        try:
            peer.start(home / str(attempt))
        except Missing as missing:
            if attempt + 1 == ATTEMPTS:
                raise
            print(f"  started again: {missing}", flush=True)
            peer.stop()
        else:
            return


def _load(peer: Peer, sitting: Sitting, seconds: float, runs: int) -> None:
    cold_s, each_s = peer.warming_s
    peer.load(OUTSTANDING[-1], min(cold_s, 4 * seconds))
    for run in range(runs):
        for outstanding in OUTSTANDING:
            if run == 0:
                peer.load(outstanding, min(each_s, seconds))
            load = peer.load(outstanding, seconds)
            sitting.runs.setdefault(outstanding, []).append(load)
            _print_load(f"{outstanding:,} outstanding", load)
        if not sitting.configuration.locks:
            continue
        for accounts in ACCOUNTS:
            load = peer.withdraw(accounts, WITHDRAWING, seconds)
            sitting.withdrawals.setdefault(accounts, []).append(load)
            _print_load(f"{WITHDRAWING} withdrawals outstanding, accounts: {accounts:,}", load)


def _print_load(name: str, load: Load) -> None:
    print(f"  {name}: {load}", flush=True)


def _print_floor(when: str, measured: Floor) -> None:
    words = f"fdatasync {measured.fdatasync_ms:.3f} ms, loopback echo {measured.echo_ms:.3f} ms"
    print(f"  floor {when}: {words}, others have {measured.busy:.0%} of the processors", flush=True)

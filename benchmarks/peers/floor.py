"""The floor of this machine: an append of 200 bytes with its fdatasync, one echo over loopback, and who else works."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from pathlib import Path

from benchmarks.peers.figures import Floor

BYTES = 200
DEADLINE_S = 30.0


def fdatasync_ms(directory: Path, count: int = 400) -> float:
    """Median time of appending `BYTES` bytes to a new file and syncing them."""
    times = []
    path = directory / "floor"
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(bytes(BYTES))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return 1e3 * statistics.median(times)


def echo_ms(count: int = 2_000) -> float:
    """Median round trip of `BYTES` bytes over loopback TCP, between two threads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with socket.create_connection(server.getsockname(), timeout=DEADLINE_S) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(count):
                began = time.perf_counter()
                client.sendall(bytes(BYTES))
                client.recv(4096)
                times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def _echo(server: socket.socket) -> None:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with peer:
        while data := peer.recv(4096):
            peer.sendall(data)


def busy(seconds: float = 0.5) -> float:
    """The part of the processors' time that somebody uses while we sleep; 0 where the kernel doesn't say it."""
    before = _processor_time()
    time.sleep(seconds)
    used, total = (now - then for now, then in zip(_processor_time(), before, strict=True))
    return used / total if total > 0 else 0.0


def _processor_time() -> tuple[int, int]:
    """What all processors have spent on something, waiting for a disk left out, and in all."""
    try:
        spent = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except OSError:
        return 0, 0
    _user, _nice, _system, idle, waiting, *_ = spent
    return sum(spent) - idle - waiting, sum(spent)


def floor(directory: Path) -> Floor:
    return Floor(fdatasync_ms(directory), echo_ms(), busy())


def settled(directory: Path, reference: Floor | None, attempts: int = 5, pause_s: float = 2.0) -> Floor:
    """The floor when the disk has nothing left to do: removing a peer's files slows syncs for seconds.

    With a floor from earlier to compare with, wait and try again while this one differs from it, a few times.
    """
    os.sync()
    measured = floor(directory)
    for _ in range(attempts - 1):
        if reference is None or not measured.differs(reference):
            break
        time.sleep(pause_s)
        measured = floor(directory)
    return measured

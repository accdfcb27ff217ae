"""The floor of this machine: an append of 200 bytes with its fdatasync, and one echo over loopback."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from pathlib import Path

BYTES = 200
DEADLINE_S = 30.0


def fdatasync_ms(directory: Path, count: int = 400) -> float:
    """Return the median time, in ms, of appending `BYTES` bytes to a file and syncing them."""
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
    """Return the median round trip, in ms, of `BYTES` bytes over loopback TCP, between two threads."""
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

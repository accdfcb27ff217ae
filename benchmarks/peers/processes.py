"""Other people's programs as processes: bounded in time, ended by their own ids, none outliving the benchmark."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.loads import Missing

STOP_S = 20.0
"""Seconds that a server may take to end before it is killed."""
START_S = 60.0
TAIL = 400
"""The number of characters of a failed program's output that a message ends with."""


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback, chosen by the system, at which nothing listened a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def until(what: str, done: Callable[[], bool], seconds: float = START_S, *, servers: Sequence[Server] = ()) -> None:
    """Wait until `done()` returns True. Raises `Missing` after `seconds`, or once one of the servers has ended."""
    deadline = time.monotonic() + seconds
    while not done():
        for server in servers:
            if not server.running:
                raise Missing(f"{server.name} ended: {server.printed()}")
        if time.monotonic() > deadline:
            raise Missing(f"{what}: not within {seconds:g} s")
        time.sleep(0.1)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def run(
    command: Sequence[object],
    seconds: float,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> str:
    """Run a program and return its output. Raises `Missing` if it fails, can't be started or takes too long."""
    name = Path(str(command[0])).name
    try:
        done = subprocess.run(
            ending_with_us(command),
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            **_as_user(user),
        )
    except OSError as error:
        raise Missing(f"{name}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{name} took longer than {seconds:g} s") from None
    if done.returncode:
        raise Missing(f"{name} ended with status {done.returncode}: {_tail(done.stderr or done.stdout)}")
    return str(done.stdout)


class Server:
    """One server process of a peer. It ends with `stop`, or when the benchmark ends in any way."""

    def __init__(
        self,
        name: str,
        command: Sequence[object],
        log: Path,
        *,
        user: str | None = None,
        ends_on: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Start the server. Its standard output and errors go to `log`, which its user need not be able to write."""
        self.name = name
        self._log = log
        self._ends_on = ends_on
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                ending_with_us(command, ends_on),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                start_new_session=True,
                **_as_user(user),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def printed(self) -> str:
        return _tail(self._log.read_text(errors="replace"))

    def ask_to_stop(self) -> None:
        if self.running:
            self._process.send_signal(self._ends_on)

    def stop(self) -> None:
        """Ask the server to end and wait; after `STOP_S`, kill it with all that it started."""
        self.ask_to_stop()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def stop_all(servers: Sequence[Server]) -> None:
    """Stop all servers. Ask all of them first, so that they end together, even if one waits for another."""
    for server in servers:
        server.ask_to_stop()
    for server in servers:
        server.stop()


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines)[-TAIL:] or "it printed nothing"


def _as_user(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    account = pwd.getpwnam(user)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "umask": 0o077}


def ending_with_us(command: Sequence[object], ends_on: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command wrapped by `setpriv`, if installed: the kernel then signals its process when we are gone."""
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", ends_on.name.removeprefix("SIG"), "--"] if setpriv else []
    return [*prefix, *map(str, command)]

"""Starts a small cluster as child processes on loopback: for the demo, benchmarks and tests with real kills."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from polonaise.errors import PolonaiseError
from polonaise.host.tls import TlsFiles


class StartFailed(PolonaiseError):
    """A child process did not come up; the message ends with what it printed."""

    code = "start_failed"


class ChildNode:
    """One node as a child process, which can be killed and started again at its address.

    The child does not outlive this process, however this one ends: its standard input is a pipe that this process alone
    holds open, and the child stops when the pipe ends.
    """

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """The address that the node listens at; the same after a restart. Empty before the first start."""
        self.exit_status: int | None = None
        """The process's exit status, once `kill` or `stop` has waited for its end; None since the last start.

        0 for a clean stop, below 0 for the signal that ended the process.
        """

    @property
    def pid(self) -> int | None:
        """The process id; None before `start` and after `kill` or `stop`."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the process that was started last is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything that the node has written to standard error, over all restarts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self, deadline_s: float = 30.0) -> None:
        """Start the process, and return when it listens.

        Raises `StartFailed` if it ends instead, or does not listen within `deadline_s` seconds.
        """
        arguments = [*self._arguments, "--listen", self.address or "127.0.0.1:0", "--until-stdin-ends"]
        self.exit_status = None
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polonaise.cli", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self._process.stdout is not None
        line = _first_line(self._process.stdout.fileno(), deadline_s)
        if not line.startswith("listening "):
            self.kill()
            raise StartFailed(f"{self.name} did not start: {self.log[-2000:].strip() or 'it printed nothing'}")
        self.address = line.removeprefix("listening ").strip()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait until it has ended."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the process to stop, and wait until it has ended; kill it after 10 seconds."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.exit_status = self._process.returncode
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


class LocalCluster:
    """A server and storage nodes as processes of this machine, in one directory. A context manager.

    ::

        with LocalCluster(directory) as cluster:
            cluster.storage[0].kill()
    """

    def __init__(
        self,
        directory: Path,
        *,
        storage: int = 3,
        partitions: int = 1,
        evidence: bool = False,
        verbose: bool = False,
        segment_bytes: int | None = None,
        fragments: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self.directory = directory
        self.coordinator = f"file:{directory / 'coordinator'}"
        self.storage_directories = [directory / f"storage-{number}" for number in range(storage)]
        self.tls = tls
        """The TLS files of every node; None for plain connections."""
        common = ["--verbose"] if verbose else []
        if tls is not None:
            common += ["--tls-ca", tls.ca, "--tls-certificate", tls.certificate, "--tls-key", tls.key]
        segment_size = ["--segment-bytes", str(segment_bytes)] if segment_bytes else []
        self.storage = [
            ChildNode(
                f"storage {number}",
                ["storage", "run", "--directory", str(storage_directory), *segment_size, *common],
                directory / f"storage-{number}.log",
            )
            for number, storage_directory in enumerate(self.storage_directories)
        ]
        self._partitions = partitions
        self._server_options = ["--evidence"] if evidence else []
        self._server_options += ["--fragments", fragments] if fragments else []
        self._server_options += common
        self.server: ChildNode | None = None

    def start(self) -> None:
        """Start the storage nodes, then the server, which makes the cluster. Raises `StartFailed`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for node in self.storage:
            node.start()
        addresses = ",".join(node.address for node in self.storage)
        arguments = ["server", "run", "--coordinator", self.coordinator, "--storage", addresses]
        arguments += ["--partitions", str(self._partitions), *self._server_options]
        self.server = ChildNode("server", arguments, self.directory / "server.log")
        self.server.start()

    def stop(self) -> None:
        """Stop the server, then the storage nodes: a server that stops still tells them what is committed."""
        if self.server:
            self.server.stop()
        for node in self.storage:
            node.stop()

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _first_line(descriptor: int, deadline_s: float) -> str:
    """Return the first line that the process prints, or what came of it until its end or the deadline."""
    until_s = time.monotonic() + deadline_s
    line = b""
    while not line.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            break
        piece = os.read(descriptor, 256)
        if not piece:
            break
        line += piece
    return line.decode(errors="replace")

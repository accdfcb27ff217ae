"""Runs a small cluster as child processes on loopback: for `cluster start`, the demo, benchmarks and tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polonaise.errors import AlreadyInitialized, PolonaiseError
from polonaise.host.real import RealHost
from polonaise.host.tls import TlsFiles, TlsIdentity, files_in
from polonaise.node.addresses import coordinator_at
from polonaise.node.processes import create_cluster
from polonaise.redaction import redacted_end
from polonaise.terms import StorageId

ANY_PORT: Final = "127.0.0.1:0"
HTTP_OFF: Final = "off"
"""Keeps a node from serving HTTP, whatever its file of settings and its environment say."""
ZOOKEEPER_ROOT: Final = "polonaise"
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_MAKING_S: Final = 10.0
_SLICE_S: Final = 0.1
_LOG_END: Final = 2_000


class StartFailed(PolonaiseError):
    """A child process did not come up."""

    code = "start_failed"


def _never() -> bool:
    return False


class ChildNode:
    """One node as a child process, which can be killed and started again at its address.

    It does not outlive this process: its standard input is a pipe that this process alone holds open, and it stops when
    the pipe ends.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        log: Path,
        *,
        address: str = "",
        apart: bool = False,
        holding: Sequence[int] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        """`address` is where the node is to listen; empty for a port that the system chooses at the first start.

        With `apart` it is in a session of its own: Ctrl-C at a terminal does not reach it. It inherits the descriptors
        `holding`, such as those of locks. `prefix` is a command that runs another one in its place, such as `ip netns
        exec NAME`.
        """
        self.name = name
        self._prefix = list(prefix)
        self._arguments = arguments
        self._log = log
        self._apart = apart
        self._holding = holding
        self._process: subprocess.Popen[bytes] | None = None
        self.address = address
        """Where the node listens, also after a restart; empty before it is known."""
        self.exit_status: int | None = None
        """The exit status of the process that was started last, once its end was seen; 0 for a clean stop, below
        0 for a signal that ended it."""

    @property
    def pid(self) -> int | None:
        """None before `start`, and once the process was seen to have ended."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the node has written to standard error, over all restarts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self, deadline_s: float = _START_S) -> None:
        """Start the process, and return when it listens; raises `StartFailed` as `wait_listening`."""
        self.launch()
        self.wait_listening(deadline_s)

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        arguments = [*self._arguments, "--listen", self.address or ANY_PORT, "--until-stdin-ends"]
        self.exit_status = None
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "polonaise.cli", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=self._apart,
                pass_fds=self._holding,
            )

    def wait_listening(self, deadline_s: float = _START_S, given_up: Callable[[], bool] = _never) -> None:
        """Return when the launched process listens; raises `StartFailed` if it ends, or takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = _first_line(self._process.stdout.fileno(), deadline_s, given_up)
        if not line.startswith("listening "):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SLICE_S)  # one that ends has closed its output a moment before
            status, said = self._process.returncode, redacted_end(self.log, _LOG_END)
            self.kill()
            if status is not None and status < 0:
                killed = f"it was killed by {signal.Signals(-status).name}"
                said = f"{killed}. The end of its log: {said}" if said else killed
            raise StartFailed(f"{self.name} did not start: {said or 'it printed nothing'}")
        self.address = line.removeprefix("listening ").strip()

    def has_ended(self) -> bool:
        """Return, once, whether the process has ended; then it counts as not started."""
        if self._process is None or self._process.poll() is None:
            return False
        self._forget()
        return True

    def kill(self) -> None:
        self.ask_to_end(signal.SIGKILL)
        self.wait_ended()

    def stop(self) -> None:
        self.ask_to_end()
        self.wait_ended()

    def ask_to_end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the process, if it is running."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait_ended(self) -> None:
        """Wait until the process has ended; kill it after 10 seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.exit_status = self._process.returncode
        self._process.stdin.close()
        self._process.stdout.close()
        self._process = None


@dataclass(frozen=True, slots=True)
class LocalAddresses:
    """Where the processes of a local cluster listen."""

    storage: tuple[str, ...]
    servers: tuple[str, ...]
    zookeeper: str | None = None


class LocalCluster:
    """Servers, storage nodes and a coordinator on this machine, in one directory. A context manager.

    ::

        with LocalCluster(directory) as cluster:
            cluster.storage[0].kill()
    """

    def __init__(
        self,
        directory: Path,
        *,
        storage: int = 3,
        servers: int = 1,
        partitions: int = 1,
        addresses: LocalAddresses | None = None,
        evidence: bool = False,
        verbose: bool = False,
        segment_bytes: int | None = None,
        fragments: str | None = None,
        config: str | None = None,
        apart: bool = False,
        holding: Sequence[int] = (),
        tls: TlsFiles | None = None,
    ) -> None:
        """With `addresses`, `storage` and `servers` do not count, and there may be a ZooKeeper for a coordinator.

        `config` is a file of settings for each node. For `apart` and `holding` see `ChildNode`.
        """
        self.directory = directory
        self._apart = apart
        self._holding = holding
        places = addresses or LocalAddresses(("",) * storage, ("",) * servers)
        self.zookeeper: ChildNode | None = None
        """None for a coordinator in a directory."""
        common = ["--verbose"] if verbose else []
        self.tls = tls
        """The TLS files of every node; None for plain connections."""
        self._making_tls = tls
        """An operator's or a server's files: storage nodes are asked first."""
        tls_options = (
            [] if tls is None else ["--tls-ca", tls.ca, "--tls-certificate", tls.certificate, "--tls-key", tls.key]
        )
        common += tls_options
        self.coordinator: Final = (
            f"file:{directory / 'coordinator'}"
            if places.zookeeper is None
            else f"zookeeper://{places.zookeeper}/{ZOOKEEPER_ROOT}"
        )
        """The address of the coordinator, by which nodes and clients find the cluster."""
        if places.zookeeper is not None:
            keeps = ["zookeeper", "run", "--directory", str(directory / "zookeeper"), *tls_options]
            self.zookeeper = self._node("zookeeper", keeps, places.zookeeper)
        self.storage_directories = [directory / f"storage-{number}" for number in range(len(places.storage))]
        common += ["--config", config] if config is not None else []
        common += ["--http", HTTP_OFF]  # settings are for all nodes here, and no two of them can have one port
        segment_size = ["--segment-bytes", str(segment_bytes)] if segment_bytes else []
        self.storage = [
            self._node(
                f"storage {number}",
                ["storage", "run", "--directory", str(self.storage_directories[number]), *segment_size, *common],
                address,
            )
            for number, address in enumerate(places.storage)
        ]
        self.partitions = partitions
        self._fragments = fragments
        self._server_addresses = places.servers
        self._server_options = ["--evidence"] if evidence else []
        self._server_options += ["--fragments", fragments] if fragments else []
        self._server_options += common
        self.servers: list[ChildNode] = []
        """Empty before `start`, which makes them: they are told where the storage nodes listen."""

    @property
    def server(self) -> ChildNode | None:
        return self.servers[0] if self.servers else None

    @property
    def named(self) -> dict[StorageId, ChildNode]:
        """The storage nodes by the names under which the cluster knows them."""
        return dict(zip((path.name for path in self.storage_directories), self.storage, strict=True))

    @property
    def nodes(self) -> list[ChildNode]:
        """In the order in which they are started."""
        return [*([self.zookeeper] if self.zookeeper is not None else []), *self.storage, *self.servers]

    def _node(self, name: str, arguments: list[str], address: str) -> ChildNode:
        log = self.directory / f"{name.replace(' ', '-')}.log"
        return ChildNode(name, arguments, log, address=address, apart=self._apart, holding=self._holding)

    def start(self, given_up: Callable[[], bool] = _never) -> None:
        """Start the coordinator and the storage nodes, make the cluster if it is new, and start the servers.

        Raises `StartFailed`, also once `given_up` says that nobody waits any more.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        _start_together(self.nodes, given_up)
        nodes = {name: node.address for name, node in self.named.items()}
        make_cluster(self.coordinator, nodes, self.partitions, self._fragments, self._making_tls)
        arguments = ["server", "run", "--coordinator", self.coordinator]
        arguments += ["--partitions", str(self.partitions), *self._server_options]
        count = len(self._server_addresses)
        self.servers = [
            self._node("server" if count == 1 else f"server {number}", arguments, address)
            for number, address in enumerate(self._server_addresses)
        ]
        _start_together(self.servers, given_up)

    def stop(self) -> None:
        """Stop all. A server that stops still tells the storage nodes what is committed, so it comes first."""
        for group in (self.servers, self.storage, [self.zookeeper] if self.zookeeper is not None else []):
            for node in group:
                node.ask_to_end()
            for node in group:
                node.wait_ended()

    def kill(self) -> None:
        """Kill all processes, without waiting: for a signal handler, while another call waits."""
        for node in self.nodes:
            with contextlib.suppress(ProcessLookupError):
                node.ask_to_end(signal.SIGKILL)

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_cluster(
    coordinator: str,
    nodes: Mapping[StorageId, str],
    partitions: int,
    fragments: str | None = None,
    tls: TlsFiles | None = None,
) -> None:
    """Make the cluster of these storage nodes, which run, unless the coordinator has one. Raises `StartFailed`.

    Without `tls` the files are those that the environment names, as for child processes.
    """
    files = tls or files_in(os.environ)

    async def make() -> None:
        identity = None if files is None else TlsIdentity(files)
        host = RealHost(tls=identity)
        try:
            opened = coordinator_at(host, coordinator, identity)
            try:
                with contextlib.suppress(AlreadyInitialized):
                    await create_cluster(host, opened, nodes, partitions, fragments, _MAKING_S)
            finally:
                await opened.close()
        finally:
            host.close()

    # In a thread, because the caller may have an event loop in this one.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(lambda: asyncio.run(make())).result()
        except PolonaiseError as error:
            raise StartFailed(f"there is no cluster, and none was made: {error}") from error


def _start_together(nodes: Sequence[ChildNode], given_up: Callable[[], bool]) -> None:
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_listening(given_up=given_up)


def _first_line(descriptor: int, deadline_s: float, given_up: Callable[[], bool]) -> str:
    """Return the first line that the process prints, or what came of it until nobody waits any more."""
    until_s = time.monotonic() + deadline_s
    line = b""
    while not line.endswith(b"\n"):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or given_up():
            break
        if not select.select([descriptor], [], [], min(left_s, _SLICE_S))[0]:
            continue
        piece = os.read(descriptor, 256)
        if not piece:
            break
        line += piece
    return line.decode(errors="replace")

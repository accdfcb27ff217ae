"""No part of a password is told, whatever stands in it unescaped, and wherever its URL is given."""

from __future__ import annotations

import asyncio
import contextlib
import re
import string
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

import polonaise
from polonaise.cli import main
from polonaise.errors import BadOption
from polonaise.fragments.store import LateStore, open_store
from polonaise.host.address import parse_address
from polonaise.host.real import RealHost
from polonaise.node.addresses import coordinator_at, storage_nodes_of
from polonaise.node.embedded import parse_embedded
from polonaise.pipelines.declarations import load_view
from polonaise.pipelines.targetaddress import check_target, open_target
from polonaise.redaction import redacted, redacted_address
from polonaise.spark.options import read_options, write_options
from polonaise.terms import Transaction
from polonaise.views.dialects import database_url
from polonaise.views.sql import SqlView
from polonaise_proving.demo.checks import applied_at

RARE = "QXZJK97"
"""Letters of passwords, which no message has beside each other."""
PART = 4
"""The least letters that are a part of a password."""

DATABASE = "postgresql+psycopg://bank:{}@127.0.0.1:1/db"
STORE = "s3://key:{}@bucket/path"
SERVERS = "polonaise://bank:{}@127.0.0.1:0"
QUERY = "postgresql+psycopg://127.0.0.1:1/db?user=bank&password={}"
ZOOKEEPER = "zookeeper://bank:{}@127.0.0.1/bank/!"


class Accounts(SqlView):
    def apply(self, tx: Transaction, db: Connection) -> None: ...


def view(url: str) -> None:
    made = Accounts(url)
    try:
        made.prepare()
    finally:
        asyncio.run(made.close())


def target(url: str) -> None:
    check_target(url, there=True)
    open_target(None, url, None, "")  # type: ignore[arg-type]


def connected(address: str) -> None:
    async def connect() -> None:
        async with asyncio.timeout(2), polonaise.connect(address):
            pass

    asyncio.run(connect())


def coordinator(address: str) -> None:
    with contextlib.closing(RealHost()) as host:
        coordinator_at(host, address)


def listed(url: str) -> str:
    opened = open_store(url, make=False)

    async def listing() -> None:
        async with asyncio.timeout(2):
            await opened.list()

    asyncio.run(listing())
    return f"{opened} {opened!r}"


CALLS: list[tuple[Callable[[str], Any], str]] = [
    (view, DATABASE),
    (view, "mariadb+pymysql://bank:{}@127.0.0.1:1/db"),
    (view, QUERY),
    (view, "mariadb+pymysql://[::1]:1/db?user=bank&password={}"),
    (view, "foo://bank:{}@127.0.0.1/db"),
    (view, "sqlite://bank:{}@127.0.0.1/db"),
    (view, "postgresql+psycopg//bank:{}@127.0.0.1/db"),
    (view, "bank:{}@127.0.0.1/db"),
    (target, DATABASE),
    (target, "parquet:" + DATABASE),
    (applied_at, DATABASE),
    (database_url, DATABASE),
    (connected, ZOOKEEPER),
    (connected, SERVERS),
    (connected, "http://bank:{}@127.0.0.1/log"),
    (coordinator, ZOOKEEPER),
    (coordinator, SERVERS),
    (parse_embedded, f"embedded:/no/such/log?host=no&fragments={STORE}"),
    (parse_embedded, f"embedded:log?fragments={STORE}&storage=x"),
    (parse_address, "bank:{}@127.0.0.1"),
    (parse_address, "x://bank:{}@127.0.0.1:1"),
    (lambda text: storage_nodes_of([text], "--storage"), "bank:{}@127.0.0.1"),
    (lambda text: storage_nodes_of([text], "--storage"), "north=bank:{}@127.0.0.1:0"),
    (lambda url: repr(open_store(url, make=False)), STORE),
    (lambda url: repr(LateStore(url)), STORE),
    (listed, "file://key:{}@machine/path"),
    (listed, "http://key:{}@127.0.0.1:1/path"),
    (listed, "nostore://key:{}@127.0.0.1:1/path"),
    (lambda cluster: read_options({"cluster": cluster}), ZOOKEEPER),
    (lambda cluster: write_options({"cluster": cluster}, is_stream=False), SERVERS),
    (lambda cluster: read_options({"cluster": "file:/c", "fragments": cluster, "startingOffsets": "x"}), STORE),
    (redacted_address, DATABASE),
    (redacted_address, QUERY),
    (redacted_address, "postgresql+psycopg://127.0.0.1:1/db?user=bank&pasword={}"),
]


@st.composite
def passwords(draw: st.DrawFn) -> str:
    """Printable letters, most of them rare; those with which parts of URLs begin are drawn more often than others."""
    rare = st.text(RARE, min_size=2, max_size=7)
    ends = st.text(st.sampled_from("@:/?#%&=, " * 3 + string.punctuation + "é"), max_size=2)
    return "".join(draw(rare) + draw(ends) for _ in range(draw(st.integers(1, 4))))


def all_told(error: BaseException) -> Iterator[str]:
    """The texts of an error, of what it was caused by, and of what was under way."""
    # Without the numbers of lines, which may be a drawn password by chance.
    yield re.sub(r"\bline \d+, ", "line N, ", "".join(traceback.format_exception(error)))
    at: BaseException | None = error
    while at is not None:
        yield f"{at} {at!r} {at.args!r}"
        at = at.__cause__ or at.__context__


def parts_told(password: str, told: str) -> list[str]:
    parts = {password[at : at + PART].lower() for at in range(len(password) - PART + 1)}
    shown = told.lower() + unquote(told).lower()
    return [part for part in parts if sum(letter in RARE.lower() for letter in part) > 1 and part in shown]


@pytest.mark.exhaustive  # of places for a password
@pytest.mark.parametrize(("call", "form"), CALLS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("QX@ZJ:K97QXZ")
@example("QX@ZJ?K97QXZ=K9")
@example("QXZJ,KQXZ")
@example("QX/ZJK97")
@example("QXZ&JKQ97@XZJ=9")
@example("QX&ZJK97=")
@example("77&777777=")
@example("77&777=77")
@example("QX&ZJK97=5&GQ=7")
@example("QX[ZJK97")
@example("QX ZJK://97@XZ")
@example("QX\u2100ZJK97")  # what urlsplit refuses with the whole of what stands before the path
@given(passwords())
def test_no_part_of_a_password_is_told(call: Callable[[str], Any], form: str, password: str) -> None:
    told = ""
    try:
        told = repr(call(form.format(password)))
    except Exception as error:  # noqa: BLE001 - of any kind
        told = "\n".join(all_told(error))
    assert not parts_told(password, told)


BEHIND_AN_AT_SIGN = [
    "postgresql+psycopg://127.0.0.1:5432/bank?user=bank&password=abc@{}",
    "postgresql+psycopg://127.0.0.1:5432/bank?user=bank&password=abc@{}&sslmode=require",
    "postgresql+psycopg://bank@127.0.0.1:5432/bank?password=abc@{}",
    "postgresql+psycopg://db:/bank?user=bank&password=abc@{}",
    "postgresql+psycopg://db?user=bank&password=abc@{}",
    "postgresql+psycopg://db?user=bank&password=abc:d@{}",
    "mariadb+pymysql://[::1]:3306/bank?user=bank&password=abc@{}",
    "mariadb+pymysql://bank@[::1]:3306/bank?password=abc@{}",
    "mariadb+pymysql://[::1]/bank?user=bank&password=abc@{}",
]
"""URLs whose password is an option, and whose rest behind an at sign SQLAlchemy takes for a host."""


@pytest.mark.parametrize("form", BEHIND_AN_AT_SIGN)
def test_a_url_with_a_query_in_front_of_an_at_sign_is_refused_by_what_to_write(form: str) -> None:
    url = form.format("QXZJK97")
    for refused_by in (Accounts, lambda given: check_target(given, there=False), database_url):
        with pytest.raises(BadOption, match="%40") as refused:
            refused_by(url)
        assert not parts_told("QXZJK97", "\n".join(all_told(refused.value)))
    assert not parts_told("QXZJK97", redacted_address(url))
    assert not parts_told("QXZJK97", redacted(f"can't connect to {url}: no such host"))


def test_an_address_alone_tells_no_part_of_an_option_with_blanks() -> None:
    assert redacted_address("s3://h/db?password=abc SECRET&user=b") == "s3://h/db?password=***&user=b"
    assert redacted_address("mysql://h/db?init_command=SET PASSWORD='SECRET a'&mode=ro") == (
        "mysql://h/db?init_command=***&mode=ro"
    )


def test_a_password_with_a_question_mark_is_taken() -> None:
    assert database_url("postgresql+psycopg://bank:wh?t@127.0.0.1:1/db").password == "wh?t"
    assert database_url("postgresql+psycopg://bank@h/db?password=a@b").query["password"] == "a@b"


@pytest.mark.slow
@pytest.mark.parametrize("form", [DATABASE, QUERY, STORE, SERVERS, "north=bank:{}@127.0.0.1:0", CALLS[-1][1]])
@example("JJJZX://XZQZQ XZZQZ|")
@example("QX***@ZJ K97@XZ")
@example("%Q@XZ%2FJ%40 K97'@'X")
@given(passwords())
def test_what_is_redacted_once_stays_as_it_is(form: str, password: str) -> None:
    given = form.format(password)
    for text in (
        given,
        quote(given),
        f"embedded:/log?fragments={quote(given, safe='')}&host=no",
        f"can't connect to {given}: (1045, \"Access denied for user 'bank'@'localhost' (using password: YES)\")",
        f"can't connect to {redacted(given)}: (1045, \"Access denied for user 'bank'@'localhost'\")",
        f'{{"password": "{password}", "url": "{given}"}}, see https://{password}@h:1/x?token={password} or a@b',
        f"Server=h;Password={password};Uid=u --db-password {password} IDENTIFIED BY '{password}'",
    ):
        shown = redacted(text)
        assert redacted(shown) == shown
        assert redacted_address(redacted_address(text)) == redacted_address(text)


@pytest.mark.parametrize("url", ["bank:p@b:QXZJK97@127.0.0.1/db", "bank:p@b:QXZJK97/db", "bank:QXZJK97/db"])
def test_a_url_whose_password_is_taken_for_a_port_is_refused_by_what_to_write(url: str) -> None:
    with pytest.raises(BadOption, match="no views in a URL") as no_view:
        load_view(f"postgresql+psycopg://{url}")
    assert not parts_told("QXZJK97", "\n".join(all_told(no_view.value)))
    for refused_by in (Accounts, lambda given: check_target(given, there=False), database_url):
        with pytest.raises(BadOption, match=r"postgresql\+psycopg://bank:\*\*\*.*%40") as refused:
            refused_by(f"postgresql+psycopg://{url}")
        assert not parts_told("QXZJK97", "\n".join(all_told(refused.value)))


def test_what_stands_in_a_ports_place_is_hidden_with_the_password_in_any_text() -> None:
    for address, shown in (
        ("bank:p@b:QXZJK97/db", "bank:***@b:***"),
        ("bank:p@[::1]:QXZJK97/db, or", "bank:***@[::1]:***, or"),
        ("bank:p@[::1]:5432/db", "bank:***@[::1]:5432/db"),
        ("bank:p@b:5432: refused", "bank:***@b:5432: refused"),
        ("bank:p@b:2181,c:2181/cluster", "bank:***@b:2181,c:2181/cluster"),
        ("bank:p@b: no such host", "bank:***@b: no such host"),
        ("('bank:p@b:QXZJK97')", "('bank:***@b:***')"),
    ):
        assert redacted(f"no table {address}") == f"no table {shown}"


@pytest.mark.parametrize(
    "url", ["postgresql+psycopg://bank@city:p@127.0.0.1:1/db", "sqlite:////tmp/a@b.db", "sqlite:///a:b@c.db"]
)
def test_an_at_sign_that_is_no_part_of_a_password_is_taken(url: str) -> None:
    assert unquote(database_url(url).render_as_string(hide_password=False)) == url


def test_a_target_of_a_player_tells_no_part_of_the_password_of_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop_of_passwords.py").write_text(
        "from polonaise.player import SqlDeliveryTarget\nfrom sqlalchemy import MetaData\n\n"
        "def route(tx):\n    return ()\n\n"
        "class Orders(SqlDeliveryTarget):\n    metadata = MetaData()\n\n"
        "    def apply_entry(self, partition, entry, db):\n        pass\n"
    )
    config = tmp_path / "player.toml"
    config.write_text(
        f'[player]\nname = "x"\nlog = "embedded:{tmp_path}/log"\nroute = "shop_of_passwords:route"\n'
        f'python_path = ["{tmp_path}"]\n[targets.a]\nsql = "postgresql+psycopg://u:a@b:QXZJK97@127.0.0.1/db"\n'
        'apply = "shop_of_passwords:Orders"\n'
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["polonaise", "player", "start", "--check", "--config", str(config)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    assert ended.value.code
    assert "%40" in said.err
    assert not parts_told("QXZJK97", said.out + said.err)

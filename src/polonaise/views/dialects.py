"""Databases and their drivers: which ones serve, and what is set on each connection before it is used."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from polonaise.errors import BadOption
from polonaise.redaction import HIDDEN, redacted, redacted_address

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
MARIADB: Final = ("mariadb", "mysql")

_DRIVERS: Final = {SQLITE: "pysqlite", POSTGRESQL: "psycopg", "mariadb": "pymysql", "mysql": "pymysql"}
"""The driver that serves, by kind of database: each has error codes, states and habits of its own."""
_URLS: Final = {
    SQLITE: "sqlite:///",
    POSTGRESQL: "postgresql+psycopg://",
    "mariadb": "mariadb+pymysql://",
    "mysql": "mysql+pymysql://",
}

_MODES_WANTED: Final = ("STRICT_ALL_TABLES", "NO_ENGINE_SUBSTITUTION", "NO_AUTO_VALUE_ON_ZERO")
"""SQL modes of MariaDB without which a value that does not fit is cut, a table may have another engine, and a 0 becomes
the next number where a column is numbered."""
_MODES_UNWANTED: Final = ("EMPTY_STRING_IS_NULL", "NO_BACKSLASH_ESCAPES")
"""SQL modes of MariaDB that make another value of the one that was given."""
_BEGIN: Final = re.compile(r"(?:[\w+.\-]+://)?[^:?]*[:?]?")
"""What of a URL stands before a password, and before options."""
_BEFORE_HOST: Final = re.compile(r"\A[\w+]+://[^:/]*(?::[^@]*)?@")
"""A URL up to the end of what SQLAlchemy takes for its user and password. A user may have an at sign in it."""
_OPTIONS: Final = re.compile(r"\?[^=]*=")
"""Options in front of an at sign: `HOST:PORT/DATABASE?password=a@b`, of which SQLAlchemy takes `b` for the host."""
_ALL_ROWS: Final = 2**64 - 1
DIGITS: Final = ("extra_float_digits", "1")
"""The setting with which PostgreSQL sends floating-point numbers with all their digits."""


def engine_of(engine: Engine | URL | str, *, utc: bool) -> Engine:
    """Return an engine that serves: the given one, or a new one for a URL, set up. Raises `BadOption`."""
    if isinstance(engine, Engine):
        _check(engine.dialect.name, engine.dialect.driver)
        return engine
    if hasattr(engine, "sync_engine"):
        raise BadOption("an AsyncEngine can't be used: give an Engine, from create_engine, or a URL")
    parsed = database_url(engine)
    try:
        dialect = parsed.get_dialect()
        _check(parsed.get_backend_name(), dialect.driver)
        if parsed.get_backend_name() in MARIADB:
            _check_charset(parsed, dialect.import_dbapi())
        made = create_engine(parsed, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise BadOption(
            f"no SQL dialect for {_shown(engine)}: {error}; begin the URL with postgresql+psycopg://, "
            "mariadb+pymysql:// or sqlite:///"
        ) from error
    except (ArgumentError, ImportError, ValueError) as error:
        raise BadOption(
            f"no engine for SQL: {redacted(error)}; correct the URL, or install the database's driver"
        ) from error
    event.listen(made, "connect", lambda driver, _: set_up(made.dialect, driver, utc=utc))
    return made


def database_url(url: URL | str) -> URL:
    """Return a database's URL, parsed. SQLAlchemy would end a password at its first at sign, take its rest for a host,
    a port, a database or options, and tell it."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None:  # outside of the block, or SQLAlchemy's error would be kept as the context
        raise BadOption(
            f"invalid URL {_begin_of(url)}: write KIND://USER:PASSWORD@HOST:PORT/DATABASE, or sqlite:///PATH; "
            "the port is a number, and in a password, @ is written %40 and / is written %2F"
        )
    # Or the rest of the password would be looked up by name, and told. Of a URL in parts the options are meant so.
    before = _BEFORE_HOST.match(url) if isinstance(url, str) else None
    if before is not None and _OPTIONS.search(before[0]):
        raise BadOption(
            f"invalid URL {_begin_of(url)}: in an option, @ is written %40; in a password, ? is written %3F"
        )
    behind = url[before.end() if before else 0 :] if isinstance(url, str) else f"{parsed.host} {parsed.database}"
    if parsed.password is not None and "@" in behind:
        raise BadOption(
            f"invalid URL {_shown(url)}: in a password, @ is written %40 and / is written %2F, "
            "and so is an @ behind the host"
        )
    return parsed


def _check_charset(url: URL, pymysql: Any) -> None:
    """Raise `BadOption` for a charset that pymysql does not know, and would fail on with an error of its own code."""
    name = url.query.get("charset")
    if isinstance(name, str) and pymysql.charset.charset_by_name(name) is None:
        raise BadOption(
            f"unknown charset {redacted(name)!r} in {redacted(url)}: write charset=utf8mb4, or leave the charset out"
        )


def _shown(url: URL | str) -> str:
    return redacted_address(url) if isinstance(url, str) else redacted(url)


def _begin_of(url: object) -> str:
    """Return the scheme and the user of a URL that can't be parsed: the rest may be a password without its end."""
    begin = _BEGIN.match(str(url))
    assert begin is not None  # all of it may be missing
    return redacted(begin[0]) + (HIDDEN if begin.end() < len(str(url)) else "")


def _check(kind: str, driver: str) -> None:
    """Raise `BadOption` unless this kind of database and its driver serve."""
    wanted = _DRIVERS.get(kind)
    if wanted is None:
        raise BadOption(f"SQL views and targets need PostgreSQL, MariaDB or SQLite; this engine is for {kind}")
    if driver != wanted:
        raise BadOption(
            f"the driver {driver} can't be used for {kind}: its errors would be taken for others; use {wanted}, with "
            f"an address that begins with {_URLS[kind]}"
        )


def check_names(kind: str, tables: Iterable[str], columns: Iterable[str] = ()) -> None:
    """Raise `BadOption` for names of tables or columns that are too long for this kind of database."""
    if kind == SQLITE:
        return
    # PostgreSQL cuts longer names, so two of them may become one.
    most, what = (64, "letters") if kind in MARIADB else (63, "bytes in UTF-8")
    for of, names in (("table", tables), ("column", columns)):
        for name in names:
            size = len(name if kind in MARIADB else name.encode())
            if size > most:
                raise BadOption(
                    f"the name of {of} {name} has {size} {what}, and {kind} takes {most}: choose a shorter one"
                    f"{', or a shorter name for what it begins with' if of == 'table' else ''}"
                )


def folded(kind: str, column: str) -> str:
    """Return a column's name as this kind of database tells it from others: some pass over its case."""
    return column.lower() if kind in MARIADB or (kind == SQLITE and column.isascii()) else column


def set_up(dialect: Dialect, driver: Any, *, utc: bool) -> None:
    """Set a driver's new connection up, so that the server's defaults neither change values nor hide rows. With `utc`
    its times are in UTC. The time zone, and how `||` and `"` are read, stay else as the server has them."""
    if dialect.name in MARIADB:
        _set_up_mariadb(driver, utc)
    elif dialect.name == POSTGRESQL:
        _set_up_postgresql(driver, utc)


def _set_up_mariadb(driver: Any, utc: bool) -> None:
    driver.set_character_set("utf8mb4")
    with driver.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.sql_mode")
        modes = [mode for mode in cursor.fetchone()[0].split(",") if mode and mode not in _MODES_UNWANTED]
        modes += [mode for mode in _MODES_WANTED if mode not in modes]
        cursor.execute(
            "SET SESSION sql_mode = %s, sql_select_limit = %s, sql_safe_updates = 0, sql_auto_is_null = 0, "
            "sql_big_selects = 1, completion_type = 'NO_CHAIN'",
            (",".join(modes), _ALL_ROWS),
        )
        if utc:
            cursor.execute("SET SESSION time_zone = '+00:00'")
    driver.rollback()


def _set_up_postgresql(driver: Any, utc: bool) -> None:
    # Behind a pooler the next statement may come to another connection of the server, which does not know what this one
    # has prepared; and a plan that is kept fails when a table is altered.
    driver.prepare_threshold = None
    wanted = {} if driver.info.encoding == "utf-8" else {"client_encoding": "UTF8"}
    (digits,) = driver.execute("SHOW extra_float_digits").fetchone()
    if int(digits) < 1:
        wanted["extra_float_digits"] = "1"
    if utc:
        wanted |= {"TimeZone": "UTC", "DateStyle": "ISO, YMD"}
    # Poolers keep these for the client, and no others: digits are asked for in each transaction that only reads, too.
    for name, value in wanted.items():
        driver.execute(f"SET {name} TO '{value}'")
    driver.commit()


def read_whole_floats(db: Connection) -> None:
    """Have PostgreSQL, which may be set to fewer, send floating-point numbers with all digits in this transaction."""
    if db.dialect.name == POSTGRESQL:
        db.exec_driver_sql(f"SET LOCAL {' = '.join(DIGITS)}")


def unchain(dialect: Dialect, driver: Any) -> None:
    """Have the end of a transaction begin no other, in which an isolation level that is set would not hold. For a
    connection that stays the application's, which is not set up further."""
    if dialect.name in MARIADB:
        with driver.cursor() as cursor:
            cursor.execute("SET SESSION completion_type = 'NO_CHAIN'")
        driver.rollback()

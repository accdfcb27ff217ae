"""What tests do with database servers behind the back of whoever else uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import text

from polonaise_proving.stages.databaseservers import MariaDB, engine_at


def execute(url: str, *statements: str) -> None:
    """Run statements in one transaction, behind the back of whoever else uses the database."""
    with engine_at(url) as engine, engine.begin() as db:
        for statement in statements:
            db.execute(text(statement))


def change(url: str, statement: str, *names: str) -> None:
    """Execute the statement with these names of tables and columns in it, quoted where the database wants that."""
    with engine_at(url) as engine:
        execute(url, statement.format(*map(engine.dialect.identifier_preparer.quote, names)))


def make_procedure(url: str, name: str, body: str) -> None:
    """Make a stored procedure. MariaDB gets the table of its own that it keeps them in, which these servers lack."""
    if url.startswith("mariadb"):
        program = MariaDB.program()
        assert program is not None
        tables = (program.parent.parent / "share" / "mysql" / "mysql_system_tables.sql").read_text()
        kept_in = tables[tables.index(table := "CREATE TABLE IF NOT EXISTS proc ") + len(table) :].partition(";\n")[0]
        made = ("CREATE DATABASE IF NOT EXISTS mysql", f"CREATE TABLE IF NOT EXISTS mysql.proc {kept_in}")
        execute(url, *made, f"CREATE PROCEDURE {name}() BEGIN {body}; END")
    else:
        execute(url, f"CREATE PROCEDURE {name}() LANGUAGE plpgsql AS 'BEGIN {body}; END'")


@contextlib.contextmanager
def small_packets_of(mariadb_url: str) -> Iterator[None]:
    """Meanwhile the server closes the connection on a statement of 256 KiB."""
    with engine_at(mariadb_url, isolation_level="AUTOCOMMIT") as engine, engine.connect() as db:
        before = db.execute(text("SELECT @@GLOBAL.max_allowed_packet")).scalar_one()
    execute(mariadb_url, "SET GLOBAL max_allowed_packet = 262144")
    try:
        yield
    finally:
        execute(mariadb_url, f"SET GLOBAL max_allowed_packet = {before}")

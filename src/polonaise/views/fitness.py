"""Makes the tables that a view applies to, and checks that it can apply exactly once to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Column, Connection, Integer, Numeric, Row, String, Table, inspect, text
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError

from polonaise.errors import ViewUnfit
from polonaise.views.columntypes import ALTER_OWN, OTHER_NAME, catalogued, check_own_types
from polonaise.views.databaseerrors import Trouble, trouble_in
from polonaise.views.dialects import MARIADB, POSTGRESQL, SQLITE, folded
from polonaise.views.writerconnection import WriterConnection

_CREATE_TRIES: Final = 5
"""Processes that start together create the same tables together; all but one fail, and find them the next time."""


def create_tables(writer: WriterConnection, tables: Sequence[Table]) -> None:
    """Make the missing tables; try again if that fails, because another process may be making them too."""
    for tries_left in reversed(range(_CREATE_TRIES)):
        try:
            with writer.transaction() as db:
                for metadata in {table.metadata: None for table in tables}:
                    metadata.create_all(db)
            return
        except DBAPIError as error:
            if not tries_left or trouble_in(error) not in (None, Trouble.PASSING):
                raise


def has_table(db: Connection, table: Table) -> bool:
    return inspect(db).has_table(table.name, schema=table.schema)


def check_tables(db: Connection, tables: Sequence[Table], own: Sequence[Table]) -> None:
    """Raise `ViewUnfit` unless all these tables exist, can take the declared rows, and roll back with a transaction.
    `own` are Polonaise's own ones. Rows of these are read back as they were written, one for each key."""
    for table in own:
        _check_columns(db, table, ALTER_OWN)
    for table in tables:
        _check_columns(db, table, "alter it")
    for table in own:
        check_own_types(db, table)
        wrong = _wrong_key(db, table, own=True)
        if wrong:
            raise ViewUnfit(
                f"table {table.fullname} is of another shape: it has to have a primary key, or a unique index, over "
                f"exactly ({_names(table.primary_key)}), and no other one; it {wrong}: {ALTER_OWN}"
            )
    for table in [*own, *tables]:
        _check_transactional(db, table)


def check_spelling(db: Connection, tables: Sequence[Table]) -> None:
    """Raise `ViewUnfit` if the database takes a table's name for that of one which is there in another spelling. Where
    MariaDB makes all names lower (`lower_case_table_names=1`), that can't be told from its own."""
    kind, inspector = db.dialect.name, inspect(db)
    if kind != SQLITE and not (kind in MARIADB and db.exec_driver_sql("SELECT @@lower_case_table_names").scalar() == 2):
        return
    for table in tables:
        names = inspector.get_table_names(table.schema)
        alike = [name for name in names if name.lower() == table.name.lower()]
        if alike and table.name not in alike:
            raise ViewUnfit(
                f"table {table.fullname} can't be had beside {alike[0]}, which the database takes for the same: "
                f"{OTHER_NAME}, which differs in more than its case; or if it is meant, write it as it is there"
            )


def check_key_texts(db: Connection, table: Table) -> None:
    """Raise `ViewUnfit` if the database takes different texts in the table's key for the same one, as with the
    collation that is the database's default."""
    kind = db.dialect.name
    texts = [folded(kind, column.name) for column in table.primary_key if isinstance(column.type, String)]
    if not texts or kind not in (POSTGRESQL, *MARIADB):
        return
    if db.dialect.name == POSTGRESQL:
        found = db.execute(_POSTGRESQL_COLLATIONS, catalogued(db, table))
        wrong = [(row.name, row.collation) for row in found if folded(kind, row.name) in texts and not row.exact]
    else:
        found = db.execute(_MARIADB_COLLATIONS, catalogued(db, table))
        exact = ("_nopad_bin", "_0900_bin", "binary")
        wrong = [
            (row.name, row.collation)
            for row in found
            if folded(kind, row.name) in texts and not row.collation.endswith(exact)
        ]
    if wrong:
        columns = ", ".join(f"{name} ({collation})" for name, collation in wrong)
        raise ViewUnfit(
            f"table {table.fullname} takes different keys for the same one, by the collation of {columns}: drop it "
            "together with those of its marks and its definition, and the next run makes them anew, by bytes"
        )


def check_key(db: Connection, table: Table) -> None:
    """Raise `ViewUnfit` unless rows of the same key, and only these, become one row in the existing table."""
    wrong = _wrong_key(db, table)
    if wrong:
        raise ViewUnfit(
            f"table {table.fullname} has to have a primary key, or a unique index, over exactly the columns of the "
            f"view's key ({_names(table.primary_key)}), whole and compared by bytes; it {wrong}: alter it, or if it "
            "may be made anew from the log, drop it together with those of its marks and its definition"
        )


def _wrong_key(db: Connection, table: Table, *, own: bool = False) -> str:
    """Return what is wrong with the unique keys of the existing table; an empty text if nothing is.

    It has to have one over the columns of the declared key, whole and compared by bytes. MariaDB merges by every other
    unique key, too, and an `own` table has to take rows of all keys, so there may be none by which rows of different
    keys could be the same. By a number that the database gives to each row, no two are.
    """
    kind = db.dialect.name
    wanted = {folded(kind, column.name) for column in table.primary_key}
    if not wanted:
        return ""
    found: dict[str, list[Row[Any]]] = {}
    for row in db.execute(_UNIQUE_KEYS[kind], catalogued(db, table)):
        found.setdefault(row.key_name, []).append(row)
    declared = {folded(kind, column.name) for column in table.columns}
    fits, wrong = False, []
    for parts in found.values():
        # An expression has no name.
        names = {folded(kind, part.name or "") for part in parts}
        whole = {folded(kind, part.name or "") for part in parts if part.but is None}
        alone = any(part.numbered and folded(kind, part.name) not in declared for part in parts)
        if names == whole == wanted:
            fits = True
        elif names == wanted or ((own or kind in MARIADB) and not wanted <= whole and not alone):
            wrong.append(", ".join(f"{part.name} ({part.but})" if part.but else str(part.name) for part in parts))
    if wrong:
        return f"makes one row of different keys, by its unique key over {wrong[0]}"
    return "" if fits else "has no such key"


def _names(columns: Iterable[Column[Any]]) -> str:
    return ", ".join(column.name for column in columns)


def _check_columns(db: Connection, table: Table, mend: str) -> None:
    """Raise `ViewUnfit` unless the table exists and rows of the declared columns can be added to it. No declared column
    is missing, no declared number is a text there, and no other column has to be given a value."""
    inspector, kind = inspect(db), db.dialect.name
    if not inspector.has_table(table.name, schema=table.schema):
        raise ViewUnfit(f"table {table.fullname} is missing: create it, or have it made with create=True")
    found = inspector.get_columns(table.name, schema=table.schema)
    existing = {folded(kind, column["name"]): column for column in found}
    declared = {folded(kind, column.name): column for column in table.columns}
    wrong = [f"column {column.name} is missing" for name, column in declared.items() if name not in existing]
    wrong += [
        f"column {column.name} is {existing[name]['type']} and has to be {column.type}"
        for name, column in declared.items()
        if name in existing
        and isinstance(column.type, Integer | Numeric)
        and isinstance(existing[name]["type"], String)
    ]
    wrong += [
        f"column {column['name']} is not declared and has to be given a value"
        for name, column in existing.items()
        if name not in declared and _demands_a_value(column)
    ]
    if wrong:
        raise ViewUnfit(f"table {table.fullname} is of another shape: {', '.join(wrong)}; {mend}")


def _demands_a_value(column: ReflectedColumn) -> bool:
    supplied = column.get("default") is not None or "computed" in column or "identity" in column
    return not (column["nullable"] or supplied or column.get("autoincrement") is True)


_MARIADB_ENGINE = text(
    "SELECT t.engine, e.transactions FROM information_schema.tables t JOIN information_schema.engines e "
    "ON e.engine = t.engine WHERE t.table_schema = COALESCE(:schema, DATABASE()) AND t.table_name = :name"
)
_MARIADB_COLLATIONS = text(
    "SELECT column_name AS name, collation_name AS collation FROM information_schema.columns "
    "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name AND collation_name IS NOT NULL"
)
_POSTGRESQL_COLLATIONS = text(
    "SELECT a.attname AS name, c.collname AS collation, c.collisdeterministic AS exact FROM pg_attribute a "
    "JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0"
)
_MARIADB_KEYS = text(
    "SELECT s.index_name AS key_name, s.column_name AS name, c.extra LIKE '%auto_increment%' AS numbered, "
    "CONCAT('only the first ', s.sub_part) AS but FROM information_schema.statistics s "
    "LEFT JOIN information_schema.columns c ON c.table_schema = s.table_schema AND c.table_name = s.table_name "
    "AND c.column_name = s.column_name WHERE s.table_schema = COALESCE(:schema, DATABASE()) AND s.table_name = :name "
    "AND s.non_unique = 0 ORDER BY s.index_name, s.seq_in_index"
)
_UNIQUE_KEYS: Final = {
    # The key of a table whose rows SQLite numbers by it is in no index.
    SQLITE: text(
        "SELECT l.name AS key_name, x.name AS name, 0 AS numbered, NULLIF(x.coll, 'BINARY') AS but "
        "FROM pragma_index_list(:name, :schema) l, pragma_index_xinfo(l.name, :schema) x "
        'WHERE l."unique" AND NOT l.partial AND x.key '
        "UNION ALL SELECT '', name, 1, NULL FROM pragma_table_info(:name, :schema) WHERE pk "
        "AND NOT EXISTS (SELECT 1 FROM pragma_index_list(:name, :schema) WHERE origin = 'pk')"
    ),
    POSTGRESQL: text(
        "SELECT i.indexrelid AS key_name, a.attname AS name, (a.attidentity <> '' "
        "OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%') AS numbered, "
        "CASE WHEN NOT c.collisdeterministic THEN c.collname END AS but FROM pg_index i "
        "CROSS JOIN LATERAL generate_series(0, i.indnkeyatts - 1) AS at "
        "LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[at] "
        "LEFT JOIN pg_attrdef d ON d.adrelid = i.indrelid AND d.adnum = a.attnum "
        "LEFT JOIN pg_collation c ON c.oid = i.indcollation[at] WHERE i.indrelid = to_regclass(:name) "
        "AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL ORDER BY i.indexrelid, at"
    ),
    **dict.fromkeys(MARIADB, _MARIADB_KEYS),
}
"""By kind of database: the columns of a table's unique keys, and by what other than their bytes they are compared."""
_POSTGRESQL_PERSISTENCE = text("SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass(:name)")


def _check_transactional(db: Connection, table: Table) -> None:
    """Raise `ViewUnfit` unless the table's rows roll back together with the mark, and survive a crash as it does."""
    if db.dialect.name in MARIADB:
        row = db.execute(_MARIADB_ENGINE, catalogued(db, table)).one_or_none()
        if row is not None and row.transactions != "YES":
            raise ViewUnfit(
                f"table {table.fullname} is of the engine {row.engine}, which has no transactions: "
                f"ALTER TABLE {table.fullname} ENGINE=InnoDB"
            )
    elif db.dialect.name == POSTGRESQL:
        persistence = db.execute(_POSTGRESQL_PERSISTENCE, catalogued(db, table)).scalar()
        if persistence in ("u", "t"):
            kind = "unlogged and is emptied by a crash" if persistence == "u" else "temporary"
            raise ViewUnfit(
                f"table {table.fullname} is {kind}, while its high-water mark is not: "
                f"ALTER TABLE {table.fullname} SET LOGGED, or make a lasting table"
            )

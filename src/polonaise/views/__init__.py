"""Views kept in SQL databases: exactly once, also when several processes share the database.

- `sql.py`: `SqlView`, which applications subclass. Begin here.
- `marks.py`: the table that says how far each partition is applied: *exactly once* rests on how its rows are changed.
- `database.py`: connections to PostgreSQL, MariaDB and SQLite; `dialects.py`: which drivers serve, and what is set on
  each connection; `databaseerrors.py`: which of their errors may pass.
- `columns.py`: types and tables that hold the same values, in the same order, whatever the database defaults are.
- `fitness.py`: refuses tables to which nothing can be applied exactly once.
- `writerconnection.py`: SQL transactions that nobody else ends; `portions.py`: how much a database takes at a time.
- `worker.py`: the threads in which a `SqlView` applies; `retrying.py`: the connection that tries a transaction again.
- `oncetable.py`: the keys of `log.once`; `tables.py` and `letters.py`: tables whose rows a pipeline makes.

No other package imports SQLAlchemy; `pip install 'polonaise[sql]'` brings it. The tables of
marks and keys lie in users' databases: their columns must stay as they are.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("sqlalchemy") is None:
    raise ExtraMissing("views in SQL databases need SQLAlchemy: pip install 'polonaise[sql]'")

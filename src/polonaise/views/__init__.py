"""Views kept in SQL databases: exactly once, also when several processes share the database.

`sql` is what an application sees. Behind it: `marks` is the table that says how far each partition is applied,
`database` what PostgreSQL, MariaDB and SQLite need to be told, `fitness` refuses tables that could not keep the
promise, `faults` tells which of a database's errors is whose fault, `worker` is the thread that all this runs in.

In the library this is the only room that imports SQLAlchemy; `pip install 'polonaise[sql]'` brings it.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("sqlalchemy") is None:
    raise ExtraMissing("views in SQL databases need SQLAlchemy: pip install 'polonaise[sql]'")

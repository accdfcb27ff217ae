"""Views kept in SQL databases: exactly once, also when several processes share the database.

Begin with `sql.py`: `SqlView`, which applications subclass, then `marks.py`: *exactly once* rests on how the rows of
the table of marks are changed. `tablesbeside.py` makes and checks the tables of a view, a target or a pipeline, in the
order that matters; `claimedtables.py` and `lostmarks.py` notice what was lost of them. `database.py` makes connections
to PostgreSQL, MariaDB and SQLite, `writerconnection.py` SQL transactions that nobody else ends; `databaseerrors.py`
tells which errors may pass. `fitness.py` refuses tables to which nothing can be applied exactly once. `tables.py` are
tables whose rows a pipeline makes.

The tables of marks and keys lie in users' databases: their columns must stay as they are.
"""

from importlib.util import find_spec

from polonaise.errors import ExtraMissing

if find_spec("sqlalchemy") is None:
    raise ExtraMissing("views in SQL databases need SQLAlchemy: pip install 'polonaise[sql]'")

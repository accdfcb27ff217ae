"""The bank that `polonaise demo` runs: tellers on a shared view, two kills on the way, then the audit.

`payments` is what has to be paid, `bank` the application (tables, transactions, context), `teller` the process that
makes payments, `tellers` how such processes are kept, `run` the day, `checks` the audit.
"""

import polonaise.views  # noqa: F401 - before what needs it, so that whoever lacks SQLAlchemy is told how to get it

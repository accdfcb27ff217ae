"""The bank that `polonaise demo bank` runs: tellers on a shared view, two kills on the way, then the audit.

Begin with `bank`, the application: its tables, transactions and context. `payments` are read from a file or made up.
`teller` is the process that makes payments, `tellers` starts, kills and restarts such processes, and `run` is the whole
day. `checks` compares what the day left behind; `sparkjobs` archives, audits and reports it on Spark, with the views of
`views` and the page of `report`. All of it may be changed as an example is; the checks must not share code with what
they check, but for that which reads a transaction's body: `Payment` and `decode_opening`.
"""

import polonaise.views  # noqa: F401 - first: without SQLAlchemy this says how to get it

"""The bank that `polonaise demo bank` and `demo shards` run: tellers on a shared view, kills, then the audit.

Begin with `bank`, the application: its tables, transactions and context. `payments` are read from a file or made up.
`teller` is the process that makes payments, which is started, killed and restarted, and `run` is the whole day.
`checks` compares what the day left behind; `sparkjobs` archives, audits and reports it on Spark, with the views of
`views` and the page of `report`.

With shards: `shards` says which shard gets what and how it keeps it, and is the process of one; that of the player is
`polonaise player start`. `shardsrun` is the whole day.

All of it may be changed as an example is; the checks must not share code with what they check, but for that which reads
a transaction's body: `Payment` and `decode_opening`.
"""

import polonaise.views  # noqa: F401 - first: without SQLAlchemy this says how to get it

"""The decisions of the source and the sink, without clock or I/O.

Reading: `splits` cuts a range of history into tasks, `conditions` turns a SQL condition into ranges, `admission`
shares a micro-batch out among partitions, `ddl` checks a user's column list.
Writing: `blocks` lay rows out as the columns of an append, `plans` order blocks into groups, and `sinkprogress`
says, from the register `spark/<appId>`, what a batch still needs. Begin with `sinkprogress`: exactly-once rests on it.

The layouts of blocks, plans and the register outlive a process. Blocks and plans begin with a version number: another
layout takes another number. The register has none, so its layout must not change: another one takes another key.
"""

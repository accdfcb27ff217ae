"""What the long campaigns share: `tests.kill`, `tests.soak` and `tests.torture`, of processes that are killed while they use a log.

`journal` is what a process wrote down of what it asked and was told; `comparison` holds that against the log;
`running` keeps their files, their patience and the tables that they print.
"""

"""What the long campaigns share: those of `kill`, `soak` and both tortures, whose processes are killed at work.

`journal` is what a process wrote down of what it asked and was told; `comparison` holds that against the log;
`running` keeps their files, their patience and the tables that they print.
"""

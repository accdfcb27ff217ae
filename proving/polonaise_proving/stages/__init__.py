"""Stages: what a scenario runs on, and what can be done to it.

`simulated` is a machine that is made up, with whole clusters in one thread. `hosts` are real processes, on hosts of
their own where the machine allows it. On this machine alone: `processes`, `databaseservers`, and `soaknode`, a node
that fills its caches soon. A `watchdog` ends all of them if their run dies.
"""

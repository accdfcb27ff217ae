"""Stages: what a scenario runs on.

`simulated` is a machine that is made up, with whole clusters in one thread. `hosts` are real processes, on hosts of
their own where the machine allows it.
"""

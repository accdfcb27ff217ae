"""Polonaise beside what else a user would pick: the same work on the same cores and disk, in one run.

`python -m benchmarks.peers` installs what it needs into build/peers, starts each peer's servers on an empty directory,
loads them, and prints tables; with `--write` they replace those in docs/why.md. A peer that can't be had is left out,
and the table says why.
"""

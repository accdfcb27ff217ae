"""Scenarios: whole runs, each made of a stage, its work, its faults, and the verdict at the end.

Begin with `schedule`: one run of one seed in the simulated machine. `delivering` adds players and targets to it,
`trials` are exact tests at its end, and `program` runs many seeds: `python -m polonaise_proving.simulator`. `smoke` is
a run on real processes: `polonaise smoke`.
"""

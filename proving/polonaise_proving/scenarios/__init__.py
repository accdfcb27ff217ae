"""Scenarios: whole runs, each made of a stage, its work, its faults, and the verdict at the end.

In the simulated machine: begin with `schedule`, one run of one seed. `delivering` adds players and targets to it,
`trials` are exact tests at its end, and `program` runs many seeds: `python -m polonaise_proving.simulator`.

On real processes, each with a folder: `smoke` is `polonaise smoke`; `kill`, `soak`, `delivery` and `pipeline` are
campaigns, with `make` before their names in `CONTRIBUTING.md`; `running` has their options and tables.
"""

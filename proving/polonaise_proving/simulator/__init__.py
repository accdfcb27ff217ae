"""The command `python -m polonaise_proving.simulator`, which runs schedules in the simulated machine, one per seed."""

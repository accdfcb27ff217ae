"""Faults of the smoke test: `schedule` draws them from a seed, `injection` inflicts each on a node, and ends it."""

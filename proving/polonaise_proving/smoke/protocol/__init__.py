"""Decisions of the smoke test, as plain values: which faults come when, and what a recorded history must be like."""

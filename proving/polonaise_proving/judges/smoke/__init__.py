"""Judges of the smoke test, as functions of values: no clock, file or process.

`checks` compares a recorded history with the promises, `told` what a cluster's status says with the faults it has.
"""

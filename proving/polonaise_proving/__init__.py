"""Tries Polonaise: a simulator, a smoke test of real processes, and demos, all with faults and with judges."""

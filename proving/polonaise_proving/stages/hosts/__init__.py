"""The stage of the smoke test: processes on hosts of their own.

- `hosts`: network namespaces on a bridge, or this machine's loopback; `leftovers`: what a killed run has left.
- `town`: all processes of one run; `parts`: each of them; `clientjob`: what a client process is told; `clocked`: runs a
  node by a wall clock that the run sets.
"""

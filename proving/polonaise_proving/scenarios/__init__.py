"""Scenarios: whole runs, each made of a stage, its work, its faults, and the verdict at the end.

In the simulated machine: begin with `schedule`, one run of one seed. `delivering` adds players and targets to it,
`trials` are exact tests at its end. `python -m polonaise_proving.simulator` runs many seeds.

On real processes: `smoke` is `polonaise smoke`; `kill`, `soak`, `delivery` and `pipeline` are campaigns, with `make`
before their names in `CONTRIBUTING.md`; `running` has what they share: options, directory, bar, tables, exit status.
"""

import signal
import sys

# As `python -m` loads this, its own "-m" stands there. Loading a campaign takes seconds: until it runs, and says itself
# what Ctrl-C has broken off, that ends the process, as it ends any program, and not with a traceback of an import.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

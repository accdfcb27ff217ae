"""Run schedules: see `polonaise_proving.scenarios.program`."""

from __future__ import annotations

import sys

from polonaise_proving.scenarios.program import main

if __name__ == "__main__":
    sys.exit(main())

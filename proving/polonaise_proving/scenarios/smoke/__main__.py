"""Says how a smoke test is run: by the command `polonaise smoke`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.exit("a smoke test is run by the command: polonaise smoke; see polonaise smoke --help")

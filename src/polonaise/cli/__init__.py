"""The command line: `polonaise …`."""

from __future__ import annotations

import sys
from typing import Final

INTERRUPTED: Final = 130
"""Exit status of a command that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the command line; a fault of ours to tell is one line and exit status 1, never a traceback."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported and commands made, nobody else takes care of it
        sys.exit(INTERRUPTED)


def _run() -> None:
    from polonaise.cli.application import application
    from polonaise.errors import PolonaiseError

    try:
        application()
    except PolonaiseError as error:
        print(f"polonaise: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)

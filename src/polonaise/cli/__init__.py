"""The command line: `polonaise …`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a fault of ours to tell is one line and exit status 1, never a traceback."""
    from polonaise.cli.application import application
    from polonaise.errors import PolonaiseError

    try:
        application()
    except PolonaiseError as error:
        print(f"polonaise: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)

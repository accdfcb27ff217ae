"""The command line: runs `polonaise …`. Begin with `application`, which has every command in it, one module for each
group.

A command only reads its arguments (`inputs`), calls functions of other packages, mostly of `polonaise.admin`, and
prints what they returned (`output`). `opencluster` and `openlog` have the cluster or the log that a command runs on,
with its options; `addedoptions` what several commands take besides. The docstring of a command is its `--help`.
Commands load what they use in their functions: `polonaise --help` must not load Spark. `docs/tools.md` describes the
commands to users and changes with them.
"""

from __future__ import annotations

import sys

from polonaise.cli.exitstatus import ExitStatus


def main() -> None:
    """Run the command line. A `PolonaiseError` ends it with one line and exit status 1, never with a traceback."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are imported: once a command runs, it catches Ctrl-C itself
        sys.exit(ExitStatus.INTERRUPTED)


def _run() -> None:
    from polonaise.cli.application import application
    from polonaise.errors import PolonaiseError

    try:
        application()
    except PolonaiseError as error:
        print(f"polonaise: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(ExitStatus.FAILED)

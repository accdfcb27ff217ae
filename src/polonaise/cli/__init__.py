"""The command line: runs `polonaise …`.

`application` has every command in it, one module for each group: `cluster` (with `requirement` and `deletion`),
`server`, `storage`, `player`, `partition` (with `headreset`), `topic`, `zookeeper`, `config`, `log`, `segment`,
`archive`, `pipeline` (with its jobs in `pipeline_…`), `tls` and `bench`; it adds those that other packages bring. Begin
reading there. `running` has what commands that run nodes share, `looking` what those share that look at a cluster,
`opencluster` and `openlog` the cluster or the log that a command runs on, with its options, `settingoptions` the
options that give settings of nodes, and `tlsoptions` the TLS options of those that connect to nodes or run one.

A command only reads its arguments (`inputs`), calls functions of other packages, mostly of `polonaise.admin`, and
prints what they returned (`output`). The docstring of a command is its `--help`. Commands load what they use in their
functions: `polonaise --help` must not load Spark. In the library only this package prints tables, and no other one
imports it. `docs/tools.md` describes the commands to users and changes with them.
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

"""Run a job as a program of its own: `python -m polonaise.pipelines.archive …`, or as a file for `spark-submit`."""

from __future__ import annotations

import sys


def main(job: str) -> None:
    """Run `polonaise pipeline JOB` with this process's arguments."""
    from polonaise.cli import main as command

    sys.argv[1:1] = ["pipeline", job]
    command()

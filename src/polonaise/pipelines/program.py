"""A job as a program of its own: `python -m polonaise.pipelines.archive …`, or its file given to `spark-submit`."""

from __future__ import annotations

import sys


def main(job: str) -> None:
    """Be `polonaise pipeline JOB`, with the arguments that this process was given."""
    from polonaise.cli import main as command

    sys.argv[1:1] = ["pipeline", job]
    command()

"""Run a job as a program of its own: `python -m polonaise.pipelines.archive …`, or as a file for `spark-submit`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def main(job: str) -> NoReturn:
    """Become `polonaise pipeline JOB`, with this process's arguments and environment, as `spark-submit` set them."""
    os.execv(sys.executable, [sys.executable, "-m", "polonaise.cli", "pipeline", job, *sys.argv[1:]])

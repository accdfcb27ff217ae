"""The batches of these tests are made by the rig of the log's tests, which lies beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "log"))

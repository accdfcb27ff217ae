"""`--partitions` speaks of a new cluster: said of one that has another number, it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from polonaise.node.local import LocalCluster
from rigs.programs import run_polonaise


@pytest.mark.slow
def test_another_number_of_partitions_than_the_cluster_has_is_refused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, partitions=2) as cluster:
        done = run_polonaise("server", "run", "--coordinator", cluster.coordinator, "--partitions", 4)
    assert done.returncode == 1
    assert "bad_option" in done.stderr
    assert "2 partitions" in done.stderr
    assert "Traceback" not in done.stderr

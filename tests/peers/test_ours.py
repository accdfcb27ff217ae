"""Our own row is measured on a real cluster, for as long as our interface stays what the benchmark uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.peers.ours import Polonaise


@pytest.mark.slow
def test_appends_and_withdrawals_are_measured_and_nothing_runs_on(tmp_path: Path) -> None:
    peer = Polonaise()
    assert peer.install().startswith("Polonaise ")
    try:
        peer.start(tmp_path / "cluster")
        for load in (peer.load(1, 0.3), peer.load(8, 0.3), peer.withdraw(1, 4, 0.3), peer.withdraw(100, 4, 0.3)):
            assert load.per_second > 0
            assert 0 < load.p50_ms <= load.p99_ms
        cluster = peer._cluster
        assert cluster is not None
    finally:
        peer.stop()
    assert not any(node.alive for node in cluster.storage)

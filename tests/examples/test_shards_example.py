"""examples/shards.py: the shards hold the sums of the log, however often the program is killed on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

import polonaise
from rigs.examples import PATIENCE_S, Program, Programs, command, programs

pytestmark = pytest.mark.slow


def shards(started: Programs) -> Program:
    """The command of the docstring."""
    return started.start(*command("shards.py", "python"))


async def test_killed_on_the_way_it_goes_on_and_no_transfer_is_lost_or_doubled(tmp_path: Path) -> None:
    async with programs(tmp_path) as started:
        program = shards(started)
        async with polonaise.connect(f"embedded:{tmp_path / 'transfers'}?host=no", wait=PATIENCE_S) as log:
            for mark in (5, 400, 900, 1_500):
                while not await log.wait_committed({0: mark}, timeout=PATIENCE_S):
                    pass
                assert program.process.poll() is None
                program.kill()  # which hosts the log, and is the player
                program = shards(started)
        assert await program.end() == 0
        assert program.output == "2000 transfers: the shards hold the sums of the log\n"
        again = shards(started)
        assert await again.end() == 0
        assert again.output == program.output

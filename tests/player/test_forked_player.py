"""The forked child of a process that works for a log: nothing runs there; it says so, and leaves its parent alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rigs.programs import output_of, run_python

pytestmark = pytest.mark.slow

BEFORE = """
    import asyncio, os, sys
    import polonaise
    from polonaise.errors import PolonaiseError
    from polonaise.player import JsonLinesTarget, Player, remote, serve

    async def handle(tx):
        handled.append(tx.data)

    def told(use):
        try:
            print(use(), flush=True)
        except PolonaiseError as error:
            print(error.code, flush=True)

    def awaited(asked):
        return asyncio.run(asyncio.wait_for(asked, 5))

    handled = []
    directory = sys.argv[1]

    async def main():
        async with (
            polonaise.connect(f"embedded:{directory}/log") as log,
            log.group("workers", handler=handle) as group,
            log.lease("one", duration_s=3) as lease,
            serve(JsonLinesTarget(f"{directory}/lines"), "link://127.0.0.1:0") as server,
            Player(log, "p", lambda tx: {"a": tx.data}, {"a": remote(server.address)}) as player,
        ):
            first = await log.append(b"first", partition=0)
            await player.delivered("a", 0, first.id)
            while not (handled and all(each.health()["well"] for each in (group, player, server))):
                await asyncio.sleep(0.01)
            if not (child := os.fork()):
                in_child(group, lease, server, player)
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                await asyncio.sleep(0.01)
            second = await log.append(b"second", partition=0)
            await asyncio.wait_for(player.delivered("a", 0, second.id), 20)
            while b"second" not in handled:
                await asyncio.sleep(0.01)
            await asyncio.sleep(lease.duration_s / 2)
            print([each.health()["well"] for each in (group, player, server)], lease.held, group.partitions)
"""


def run(script: str, tmp_path: Path) -> list[str]:
    # Not over gRPC, whose own library may end a forked child before any of our code runs there.
    script = f"{textwrap.dedent(BEFORE)}\n{textwrap.dedent(script)}\nasyncio.run(main())\n"
    return output_of(run_python("-W", "ignore", "-c", script, tmp_path)).splitlines()


def test_in_a_forked_child_nothing_says_that_it_is_well(tmp_path: Path) -> None:
    said = run(
        """
        def in_child(group, lease, server, player):
            for health, why in ((group.health(), "trouble"), (player.health(), "ended"), (server.health(), "ended")):
                print(health["well"], "before the process forked" in health[why], flush=True)
            print(player.health()["targets"]["a"]["state"], flush=True)
            told(lambda: (lease.held, group.partitions))
            told(lambda: awaited(player.ended()))
            told(lambda: awaited(player.delivered("a", 0, 0)))
            told(lambda: awaited(server.ended()))
            told(lambda: awaited(group.ended()))
            told(lambda: player.add_target("b", None))
            os._exit(0)
        """,
        tmp_path,
    )
    assert said == [*["False True"] * 3, "down", "(False, ())", *["forked"] * 5, "[True, True, True] True (0,)"]


def test_a_forked_child_may_close_what_it_has_inherited_and_its_parent_goes_on(tmp_path: Path) -> None:
    said = run(
        """
        def in_child(group, lease, server, player):
            for close in (player.close, server.close, group.leave, lease.release):
                told(lambda: awaited(close()))
            print(awaited(player.finish(1)))
            sys.exit(0)  # through every `async with`, too
        """,
        tmp_path,
    )
    assert said == [*["None"] * 4, "True", "[True, True, True] True (0,)"]

"""Players and targets as processes: killed, stopped, hung, forked, and told to read their settings again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import polonaise
from polonaise.cli.exitstatus import ExitStatus
from polonaise.player import JsonLinesTarget, serve
from rigs.examples import EXAMPLES
from rigs.httpget import http_get
from rigs.playerprocesses import PlayerProcess, ShopWithShards, shop_with_shards
from rigs.programs import output_of, run_python
from rigs.waiting import nothing_happens_for, time_passes, wait_until

LEASE_S = 2.0
TURNS_MAX = 3
"""How often what must be quick may be tried on a busy machine."""


@asynccontextmanager
async def shop_at(directory: Path, **settings: object) -> AsyncIterator[tuple[ShopWithShards, polonaise.Log]]:
    """A shop on an embedded log that the test hosts."""
    async with polonaise.connect(f"embedded:{directory}/log") as log:
        with shop_with_shards(directory, f"embedded:{directory}/log?host=no", **settings) as shop:
            yield shop, log


async def until(process: PlayerProcess, beginning: str) -> str:
    return await asyncio.to_thread(process.until, beginning)


async def until_given(shop: ShopWithShards, name: str, count: int) -> None:
    await wait_until(lambda: shop.count(name) >= count, f"{name} was given {count}", every_s=0.02)


class Load:
    """Appends to a log all the time; what was appended is what shards have to have."""

    def __init__(self, log: polonaise.Log, pause_s: float = 0.0) -> None:
        """With pauses of so many seconds in between, a slow machine delivers as fast as it appends, too."""
        self.written: list[str] = []
        self._log = log
        self._pause_s = pause_s

    async def run(self) -> None:
        number = 0
        while True:
            await self._log.append(b"ab:%d" % number, partition=0)
            self.written.append(str(number))
            number += 1
            await time_passes(self._pause_s)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def check_all_once(shop: ShopWithShards, log: polonaise.Log) -> None:
    """Every shard ends up with exactly what the log has for it, in its order."""
    wanted = [tx.data.decode().partition(":")[2] async for tx in log.read(0)]
    for name in ("a", "b"):
        await until_given(shop, name, len(wanted))
        assert shop.payloads(name) == wanted


def balances(directory: Path) -> dict[int, int]:
    """The balances of all shards of the example."""
    found: dict[int, int] = {}
    for path in directory.glob("*.db"):
        with (
            contextlib.suppress(sqlite3.OperationalError),  # not made yet
            contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db,
        ):
            found.update(db.execute("select account, balance from accounts").fetchall())
    return found


async def taken_over_after_s(shop: ShopWithShards, name: str, until_pid: int, since_s: float) -> float:
    """Seconds from `since_s` until something was given to a shard by this process."""
    await wait_until(lambda: shop.count(name, until_pid), "it delivers", every_s=0.01)
    return time.monotonic() - since_s


async def check_takes_over(directory: Path, number: signal.Signals, within_s: float) -> None:
    """A standby takes over from a process that gets this signal; so soon at least once, if the machine is busy."""
    async with shop_at(directory) as (shop, log):
        shop.write_settings("a", "b")
        active = shop.start()
        await until(active, "active")
        taken_s = [float("inf")]
        while min(taken_s) >= within_s and len(taken_s) <= TURNS_MAX:
            standby = shop.start()
            await until(standby, "standby")
            # Who is stopped delivers first what is on the way, which is much where more is appended than delivered.
            async with Load(log, pause_s=0.002).going_on():
                await until_given(shop, "a", shop.count("a") + 200)
                active.send(number)
                taken_s.append(await taken_over_after_s(shop, "a", standby.pid, time.monotonic()))
                await until_given(shop, "a", shop.count("a") + 100)
            assert await asyncio.to_thread(active.process.wait, 60) == (0 if number == signal.SIGTERM else -number)
            active = standby
        await check_all_once(shop, log)
        assert {row[2] for row in shop.rows("b")} >= {shop.started[0].pid, shop.started[1].pid}
        assert min(taken_s) < within_s


@pytest.mark.slow
@pytest.mark.alone
async def test_a_standby_takes_over_from_one_that_is_killed_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    await check_takes_over(tmp_path, signal.SIGKILL, LEASE_S + 1.0)


@pytest.mark.slow
@pytest.mark.alone
async def test_a_process_that_is_stopped_hands_over_within_half_a_second(tmp_path: Path) -> None:
    await check_takes_over(tmp_path, signal.SIGTERM, 0.5)


@pytest.mark.slow
@pytest.mark.alone
async def test_one_that_hangs_is_replaced_and_stands_by_when_it_goes_on(tmp_path: Path) -> None:
    target = JsonLinesTarget(tmp_path / "a.jsonl", decode=bytes.decode)

    def given() -> list[str]:
        return [json.loads(line)["payload"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]

    async def until_more(count: int) -> None:
        wanted = len(given()) + count
        await wait_until(lambda: len(given()) >= wanted, every_s=0.05)

    async with shop_at(tmp_path) as (shop, log), serve(target, "link://127.0.0.1:0") as server:
        # Targets of a process that hangs may hang with it, and hold their locks: these are elsewhere.
        shop.write_settings(addresses={"a": server.address}, retired=["b"])
        first = shop.start("--http", "0")
        https = {first: (await until(first, "http ")).removeprefix("http ")}
        await until(first, "active")
        second = shop.start("--http", "0")
        https[second] = (await until(second, "http ")).removeprefix("http ")
        await until(second, "standby")
        async with Load(log).going_on():
            taken_s = [float("inf")]
            hanging, other = second, first
            while min(taken_s) >= LEASE_S + 1.0 and len(taken_s) <= TURNS_MAX:
                hanging, other = other, hanging
                await until_more(200)
                hanging.send(signal.SIGSTOP)
                began_s = time.monotonic()
                await until(other, "active")
                await until_more(1)
                taken_s.append(time.monotonic() - began_s)
                hanging.send(signal.SIGCONT)
                await until(hanging, "standby")
            assert min(taken_s) < LEASE_S + 1.0
            await until_more(200)

            async def names_the_other() -> bool:
                document = (await http_get(https[hanging], "/health")).document
                return document["state"] == "standby" and document["active"].endswith(f":{other.pid}")

            await wait_until(names_the_other, every_s=0.1)
        wanted = [tx.data.decode().partition(":")[2] async for tx in log.read(0)]
        await wait_until(lambda: len(given()) >= len(wanted), every_s=0.05)
        assert given() == wanted
    await target.close()


@pytest.mark.slow
async def test_an_idle_process_that_was_replaced_stops_to_count_itself_active(tmp_path: Path) -> None:
    async with shop_at(tmp_path) as (shop, _):
        shop.write_settings("a")
        first = shop.start()
        await until(first, "active")
        second = shop.start()
        await until(second, "standby")
        first.send(signal.SIGSTOP)
        await until(second, "active")
        first.send(signal.SIGCONT)
        assert "lease" in await until(first, "pausing")
        await until(first, "standby")


@pytest.mark.slow
async def test_targets_come_and_go_on_sighup_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    async with shop_at(tmp_path) as (shop, log):
        shop.write_settings("a", retired=["b"])
        process = shop.start()
        await until(process, "active")
        await log.append(b"ab:1", partition=0)
        await until_given(shop, "a", 1)
        shop.write_settings("a", "b")
        process.send(signal.SIGHUP)
        assert await until(process, "settings") == "settings read again: added: b"
        await until_given(shop, "b", 1)
        (tmp_path / "player.toml").write_text("[player]\nnam = 'x'\n")
        process.send(signal.SIGHUP)
        assert "unknown setting player.nam, did you mean name?" in await until(process, "settings")
        await log.append(b"ab:2", partition=0)
        await until_given(shop, "b", 2)
        shop.write_settings("b", retired=["a"], lease_s=9)
        process.send(signal.SIGHUP)
        assert await until(process, "settings") == "settings read again: removed: a; needs a restart: lease_s"
        await log.append(b"ab:3", partition=0)
        await until_given(shop, "b", 3)
        await nothing_happens_for(0.2)
        assert shop.payloads("a") == ["1", "2"]
        assert await asyncio.to_thread(process.end) == 0


@pytest.mark.slow
async def test_processes_that_want_leases_of_different_length_are_told(tmp_path: Path) -> None:
    async with shop_at(tmp_path) as (shop, _):
        shop.write_settings("a")
        first = shop.start()
        await until(first, "active")
        shop.write_settings("a", lease_s=30)
        second = shop.start()
        assert await asyncio.to_thread(second.process.wait, 60) == ExitStatus.SETTINGS
        assert "for another duration than 30 s" in second.errors


@pytest.mark.slow
async def test_the_example_keeps_the_shards_of_the_example_program(tmp_path: Path) -> None:
    """`examples/shards.toml` with the route function and the shards of `examples/shards.py`."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    (tmp_path / "shards").mkdir()
    async with polonaise.connect(f"embedded:{tmp_path}/log") as log:
        for number in range(50):
            await log.append(b"[%d, %d, %d]" % (number % 40, number * 7 % 40, number), partition=0)
        (tmp_path / "player.toml").symlink_to(EXAMPLES / "shards.toml")
        with contextlib.closing(PlayerProcess(tmp_path, "--log", f"embedded:{tmp_path}/log?host=no")) as process:
            await until(process, "active")
            sums: dict[int, int] = {}
            for number in range(50):
                for account, change in ((number % 40, -number), (number * 7 % 40, number)):
                    sums[account] = sums.get(account, 0) + change

            def held() -> dict[int, int]:
                return balances(tmp_path / "shards")

            await wait_until(lambda: held() == sums, "the shards hold the sums", every_s=0.05)
            assert await asyncio.to_thread(process.end) == 0


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


@pytest.mark.slow
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


@pytest.mark.slow
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

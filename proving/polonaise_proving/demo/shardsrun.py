"""Run the bank with its accounts on shards: processes of their own, a shard and the player killed, then the checks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

import polonaise
from polonaise.errors import BadOption
from polonaise.node.local import ANY_PORT, HTTP_OFF, LocalCluster
from polonaise.redaction import redacted_address, redacted_line
from polonaise_proving.demo.checks import (
    DemoVerdict,
    FoldedShards,
    ShardContents,
    applied_at,
    contents_of,
    fold_shards,
    shard_verdicts,
)
from polonaise_proving.demo.payments import Book
from polonaise_proving.demo.run import Bank, payments_shown, print_verdicts, started, without_tls
from polonaise_proving.demo.shards import SHARDS, ShardJob, shard_name
from polonaise_proving.stages.processes import Program, to_its_end

DOWN_S: Final = 1.0
"""Seconds that the killed shard stays away."""
_SHARD_KILLED_AT: Final = 0.3
_PLAYER_KILLED_AT: Final = 0.6
_DELIVERED_S_MAX: Final = 60.0
_LOOK_S: Final = 0.1
_STOPS_S: Final = 15.0
"""Longer than a process takes that hands over what it was doing."""
_LEASE_S: Final = 1.0
"""How long the lease of the player's active process lasts: not much longer than that takes the standby to take over."""


@dataclass
class ShardsDay:
    """What happened while the payments were made and delivered."""

    killed: list[str] = field(default_factory=list)
    epoch: str = ""
    """What the process of the player that took over last has said of itself."""
    late_s: float = 0.0
    """How long after the last payment every shard had everything."""


class Shards:
    """The processes of the shards and of the player, for one day of the bank."""

    def __init__(self, coordinator: str, databases: Sequence[str], directory: Path) -> None:
        self._coordinator = coordinator
        self.databases = list(databases)
        self._directory = directory
        self._settings = directory / "player.toml"
        self.day = ShardsDay()
        self.servers = [
            self._process(name, "polonaise_proving.demo.shards", str(directory / f"{name}.json"))
            for name in map(shard_name, range(len(databases)))
        ]
        self.players = [self._player("player-0"), self._player("player-1")]
        """The active one first; then the one that stands by."""

    def _process(self, name: str, *command: str) -> Program:
        return Program(name, self._directory / f"{name}.log", command=command, speaks=True, apart="")

    def _player(self, name: str) -> Program:
        options = ("--config", str(self._settings), "--http", HTTP_OFF, "--until-stdin-ends")
        return self._process(name, "polonaise.cli", "player", "start", *options)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all processes, and stop them at the end, whatever happens."""
        try:
            for number, database in enumerate(self.databases):
                ShardJob(database, f"link://{ANY_PORT}").write(self._directory / f"{shard_name(number)}.json")
            for server in self.servers:
                server.start()
            addresses = [await asyncio.to_thread(server.says, "link://") for server in self.servers]
            for number, (database, address) in enumerate(zip(self.databases, addresses, strict=True)):
                # Where the player looks for it, also after it was killed.
                ShardJob(database, address).write(self._directory / f"{shard_name(number)}.json")
            self._settings.write_text(player_settings(self._coordinator, addresses))
            active, standby = self.players
            active.start()
            self.day.epoch = await asyncio.to_thread(active.says, "active")
            standby.start()
            await asyncio.to_thread(standby.says, "standby")
            yield
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stop the player's processes, then the shards."""
        for group in (self.players, self.servers):
            await asyncio.gather(*(to_its_end(partial(each.end, _STOPS_S)) for each in group))

    async def kill_shard(self, server: Program, done: int) -> None:
        """Kill a shard with -9, and start it again a second later."""
        self.day.killed.append(f"{server.name} (process {server.pid}) with -9 after {done:,} payments")
        await to_its_end(server.kill)
        await asyncio.sleep(DOWN_S)
        server.start()
        await asyncio.to_thread(server.says, "link://")

    async def kill_player(self, done: int) -> None:
        """Kill the active process of the player with -9: the one that stands by takes over. Another then stands by."""
        # On a busy machine the active one may have lost its lease before this.
        standby, killed = sorted(self.players, key=_epoch)
        pid, heard = killed.pid, len(standby.said)
        began_s = time.monotonic()
        await to_its_end(killed.kill)
        self.day.epoch = await asyncio.to_thread(standby.says, "active", heard)
        took_s = time.monotonic() - began_s
        self.day.killed.append(
            f"{killed.name} (process {pid}) with -9 after {done:,} payments; {standby.name} took over in {took_s:.1f} s"
        )
        self.players = [standby, self._player("player-2")]
        self.players[1].start()

    async def delivered(self, folded: FoldedShards) -> None:
        """Wait until every shard has applied as many entries as it has to, for a minute at most."""
        began_s = time.monotonic()
        wanted = [len(shard.transactions) for shard in folded.shards]
        while time.monotonic() < began_s + _DELIVERED_S_MAX:
            found = await asyncio.gather(*(asyncio.to_thread(applied_at, database) for database in self.databases))
            if all(has >= must for has, must in zip(found, wanted, strict=True)):
                break
            await asyncio.sleep(_LOOK_S)
        self.day.late_s = time.monotonic() - began_s

    async def contents(self) -> list[ShardContents]:
        """Return what every shard holds. Its process may have ended."""
        return list(await asyncio.gather(*(asyncio.to_thread(contents_of, each) for each in self.databases)))


def player_settings(log: str, addresses: Sequence[str]) -> str:
    """Return the settings of `polonaise player start`, for shards at these addresses."""
    lines = [
        "[player]",
        'name = "bank-shards"',
        f"log = {json.dumps(log)}",
        'route = "polonaise_proving.demo.shards:route"',
    ]
    lines.append(f"lease_s = {_LEASE_S:g}")
    for number, address in enumerate(addresses):
        lines += [f"[targets.{shard_name(number)}]", f"address = {json.dumps(address)}"]
    return "\n".join(lines) + "\n"


async def run_shards(book: Book, tellers: int, console: Console, databases: Sequence[str] = ()) -> bool:
    """Run the bank with its accounts on shards, in a temporary directory. Return whether every check holds.

    The shards are in these databases, which must be empty, and keep what is there at the end; without any, in four of
    SQLite, which are removed. Raises `BadOption`, `StartFailed` and `GaveUp`.
    """
    if databases and len(databases) != SHARDS:
        raise BadOption(f"{len(databases)} databases of shards: give --shard {SHARDS} times, or not at all")
    for row in book.bad_rows:
        console.print(Text(f"not used: {row}", style="yellow"))  # a Text: what a file contains is no markup
    with without_tls(), tempfile.TemporaryDirectory(prefix="polonaise-demo-") as scratch:
        directory = Path(scratch)
        urls = list(databases) or [f"sqlite:///{directory / shard_name(number)}.db" for number in range(SHARDS)]
        await _check_empty(urls)
        console.print("starting a server and three storage nodes on loopback")
        async with started(LocalCluster(directory / "cluster")) as cluster:
            shards = Shards(cluster.coordinator, urls, directory)
            bank = Bank(cluster, book, tellers, directory)
            console.print(f"starting {len(urls)} shards, the player, and one that stands by, each a process of its own")
            async with shards.running():
                console.print(f"opening {len(book.opening):,} accounts, then {len(bank.tellers)} tellers begin")
                await bank.open_accounts()
                await _make_payments(bank, shards, book, console)
                console.print("folding the log, and waiting until every shard has what is its own")
                async with polonaise.connect(cluster.coordinator) as log:
                    folded = await fold_shards(log, len(urls))
                await shards.delivered(folded)
            results = shard_verdicts(folded, await shards.contents())
    _print(console, book, bank, shards, results)
    return all(result.holds for result in results)


async def _check_empty(urls: Sequence[str]) -> None:
    """Raise `BadOption` for a database that can't be used, or holds what an earlier day has left there."""
    for url in urls:
        try:
            count = await asyncio.to_thread(applied_at, url)
        except BadOption:
            raise
        except Exception as error:
            reason = redacted_line(getattr(error, "orig", None) or error)
            raise BadOption(f"the shard {redacted_address(url)} can't be used: {reason}") from error
        if count:
            raise BadOption(
                f"the shard {redacted_address(url)} holds an earlier day: give each shard an empty database"
            )


async def _make_payments(bank: Bank, shards: Shards, book: Book, console: Console) -> None:
    """Let the tellers make all payments; on the way, kill a shard, and the active process of the player."""

    async def kill_shard() -> None:
        await bank.reached(_SHARD_KILLED_AT)
        await shards.kill_shard(shards.servers[-1], bank.day.done)

    async def kill_player() -> None:
        await bank.reached(_PLAYER_KILLED_AT)
        await shards.kill_player(bank.day.done)

    with payments_shown(book, console) as show:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(kill_shard())
                group.create_task(kill_player())
                await bank.make_payments(show)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None


def _print(console: Console, book: Book, bank: Bank, shards: Shards, results: Sequence[DemoVerdict]) -> None:
    day = bank.day
    table = Table(title="The bank on shards", show_header=False)
    rows = {
        "payments": f"{len(book.payments):,} on {len(book.payments_of):,} accounts",
        "made": f"{len(day.made):,}",
        "refused for lack of money": f"{len(day.refused):,}",
        "shards": "\n".join(redacted_address(url) for url in shards.databases),
        "killed": "\n".join(day.killed + shards.day.killed),
        "the player at the end": shards.day.epoch,
        "throughput": f"{len(book.payments) / max(day.took_s, 1e-9):,.0f} payments/s in {day.took_s:.1f} s",
        "every shard had everything": f"{shards.day.late_s:.1f} s after the log was folded",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    console.print(table)
    print_verdicts(console, results)


def _epoch(player: Program) -> int:
    """Return the last epoch under which this process of the player has said to be active; 0 for none."""
    said = [line for line in player.said if line.startswith("active, epoch ")]
    return int(said[-1].rpartition(" ")[2]) if said else 0

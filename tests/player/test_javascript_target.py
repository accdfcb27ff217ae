"""A target in JavaScript that follows `proto/delivery.proto`, with a player: both are killed again and again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

import polonaise
from polonaise.player import Player, remote
from polonaise.player.protocol.entries import Fence
from polonaise.player.protocol.settings import PlayerSettings
from rigs.deliverystreams import SOURCE, opening
from rigs.lacking import program
from rigs.waiting import time_passes, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "target.mjs"

QUICK = PlayerSettings(
    retry_s_min=0.01, retry_s_max=0.1, start_patience_s=0.2, batch_entries_max=7, partition_window_bytes=2_000
)


class JavaScriptTarget:
    """The process of the example, with its file. It is started again at the same port."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.port = int((await asyncio.to_thread(self._first_line)).rpartition(" ")[2])

    def _first_line(self) -> str:
        command = [program("node", "nodejs"), str(EXAMPLE), f"127.0.0.1:{self.port}", str(self.file)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def steps(self) -> list[dict[str, Any]]:
        """The whole lines of its file."""
        text = self.file.read_text() if self.file.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def applied(self) -> dict[int, list[str]]:
        """The texts in its file, by partition; dummies have none."""
        found: dict[int, list[str]] = {}
        for step in self.steps():
            texts = [entry["text"] for entry in step.get("entries", ()) if "text" in entry]
            if texts:
                found.setdefault(step["partition"], []).extend(texts)
        return found


@pytest.fixture
async def target(tmp_path: Path) -> Any:
    made = JavaScriptTarget(tmp_path / "shard.jsonl")
    await made.start()
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_target_in_javascript_and_its_player_are_killed_and_nothing_is_missing_or_doubled(
    target: JavaScriptTarget, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    written: dict[int, list[str]] = {0: [], 1: []}

    async def write(log: polonaise.Log) -> None:
        for _ in range(random.randrange(5, 40)):
            partition = random.randrange(2)
            text = f"{len(written[partition])} é " * random.choice((1, 1, 50))
            await log.append(text.encode(), partition=partition)
            written[partition].append(text)

    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        kills = 0
        for _ in range(3):
            reached = {"js": remote(target.address)}
            async with Player(log, "p", lambda tx: {"js": tx.data}, reached, settings=QUICK):
                for _ in range(2):
                    await write(log)
                    await time_passes(random.random() * 0.05)
                    target.kill()
                    kills += 1
                    await write(log)
                    await target.start()
                await write(log)
        reached = {"js": remote(target.address)}
        async with Player(log, "p", lambda tx: {"js": tx.data}, reached, settings=QUICK) as player:
            await wait_until(lambda: target.applied() == written, "it has everything")
            await wait_until(lambda: player.health()["well"])
    fences = [tuple(map(int, step["fence"])) for step in target.steps() if "fence" in step]
    assert fences == sorted(set(fences))
    assert len(fences) >= kills // 2, "it was killed between streams, too, but not always"


async def test_a_target_in_javascript_refuses_what_it_can_t_apply_and_the_rest_goes_on(
    target: JavaScriptTarget, tmp_path: Path
) -> None:
    mended = False

    def route(tx: polonaise.Transaction) -> dict[str, bytes]:
        return {"js": tx.data.replace(b"\xff", b"mended") if mended else tx.data}

    async with polonaise.connect(f"embedded:{tmp_path / 'log'}?partitions=2") as log:
        for body in (b"a", b"\xff", b"b"):
            await log.append(body, partition=0)
        await log.append(b"c", partition=1)
        async with Player(log, "p", route, {"js": remote(target.address)}, settings=QUICK) as player:
            hindered = await wait_until(lambda: player.health()["targets"]["js"]["hindered"].get("0"))
            assert "entry 1 is no text" in hindered
            await player.delivered("js", 1, 0)
            assert target.applied() == {0: ["a"], 1: ["c"]}
        mended = True
        async with Player(log, "p", route, {"js": remote(target.address)}, settings=QUICK) as player:
            await player.delivered("js", 0, 2)
    assert target.applied() == {0: ["a", "mended", "b"], 1: ["c"]}


async def test_a_target_in_javascript_refuses_streams_as_the_contract_says(target: JavaScriptTarget) -> None:
    endpoint = remote(target.address)
    async with opening(endpoint, Fence(2, 1)) as stream:
        await stream.heard.until("connected", {})
    for lower in (Fence(2, 1), Fence(1, 9)):
        async with opening(endpoint, lower) as stream:
            await stream.heard.until("fenced", Fence(2, 1))
    async with opening(endpoint, Fence(3, 1), SOURCE._replace(log_key=b"another log's...")) as stream:
        await stream.heard.until("disconnected")
        assert "this file is of" in stream.heard.reason

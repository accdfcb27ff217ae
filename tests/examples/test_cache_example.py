"""examples/cache.py: what it answers is never older than the log, and never made up."""

from __future__ import annotations

from pathlib import Path

import pytest

import polonaise
from rigs.examples import Program, Programs, command, programs

pytestmark = pytest.mark.slow


def cache(started: Programs, address: str) -> Program:
    program, example, _ = command("cache.py", "python")
    return started.start(program, example, f"{address}?host=no")


async def test_a_cache_is_as_fresh_as_the_log_also_when_it_is_started_again(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'prices'}"
    async with programs(tmp_path) as started:
        async with polonaise.connect(address) as log:
            first = cache(started, address)
            assert await first.ask("tea") == "tea has no price"
            for price in range(50):
                receipt = await log.append(b"tea %d" % price)
                line = "tea" if price % 2 else f"tea {receipt.id}"
                assert await first.ask(line) == f"tea {price}"
            for wrong in ("tea x", "tea 1 2", "tea -2"):
                assert (await first.ask(wrong)).startswith("error: ")
            for body in (b"\xff", b"tea", b"tea much"):
                await log.append(body)
            assert await first.ask("tea") == "tea 49", "what is no price is passed over"
            assert await first.ask("tea 999") == (
                "error: [deadline_exceeded] transaction 999 of partition 0 was not applied within 5 s: applied up to 52"
            )
            assert first.errors.count("is no price") == 3

            first.kill()
            await log.append(b"tea 700")
            await log.append(b"milk 90")
            again = cache(started, address)
            assert await again.ask("tea") == "tea 700"
            assert await again.ask("milk 54") == "milk 90"
        assert (await again.ask("tea")).startswith("error: [deadline_exceeded]"), (
            "nobody can say whether it has changed"
        )
        assert await again.ask("tea 53") == "tea 700", "this much is known"
        async with polonaise.connect(address) as log:
            await log.append(b"tea 1")
            assert await again.ask("tea") == "tea 1"
        assert await again.end() == 0
        assert "Traceback" not in again.errors


async def test_the_commands_of_the_docstring_say_what_it_says(tmp_path: Path) -> None:
    async with programs(tmp_path) as started:
        append = started.start(*command("cache.py", "polonaise"))
        assert await append.end() == 0
        assert append.output == "0 0\n"
        program = started.start(*command("cache.py", "python"))
        assert [await program.ask(line) for line in ("tea", "tea 0")] == ["tea 310", "tea 310"]
        assert await program.end() == 0

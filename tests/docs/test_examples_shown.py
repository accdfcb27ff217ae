"""What the README and the pages show is what happens."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import polonaise
import polonaise.blocking
from polonaise.errors import Closed
from polonaise_proving.stages.databaseservers import engine_at
from rigs.programs import output_of, run_python
from rigs.waiting import wait_until

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def example_with(text: str) -> str:
    (example,) = [block for block in blocks("python") if text in block]
    return example


def run(script: Path) -> str:
    ended = run_python(script.name, cwd=script.parent)
    assert ended.stderr == ""
    return output_of(ended)


@pytest.mark.slow
def test_the_example_runs_as_it_stands_and_finds_its_log_again(tmp_path: Path) -> None:
    script = tmp_path / "bank.py"
    script.write_text(example_with("def withdraw"))
    assert run(script) == "account 1 has 70\n"
    assert (tmp_path / "bank" / "host.lock").exists()
    assert run(script) == "account 1 has 140\n"


@pytest.mark.slow
def test_the_shortest_one_does_as_well(tmp_path: Path) -> None:
    script = tmp_path / "shortest.py"
    script.write_text(example_with('append(b"hello")'))
    assert run(script) == "0 b'hello'\n"
    assert run(script) == "0 b'hello'\n1 b'hello'\n"


DOCUMENT = Path(__file__).parents[2] / "docs" / "workers.md"
COUNT = 12


def examples() -> list[str]:
    """Those with a view, with a handler, and with a handler for threads."""
    found = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(found) == 3
    return found


async def test_the_example_for_threads_works(tmp_path: Path) -> None:
    mails: list[bytes] = []
    address = f"embedded:{tmp_path}/log"
    names: dict[str, Any] = {"polonaise": polonaise, "address": address, "send_mail": lambda tx: mails.append(tx.data)}
    working = asyncio.create_task(asyncio.to_thread(exec, examples()[2], names))
    async with polonaise.connect(address) as log:
        await log.append(b"hello", 0)
        await wait_until(lambda: working.done() or mails == [b"hello"])
        await asyncio.to_thread(names["group"].leave)
        with pytest.raises(Closed):
            await working
    assert mails == [b"hello"]


@pytest.mark.slow
async def test_the_example_works(tmp_path: Path) -> None:
    example = examples()[0]
    names: dict[str, Any] = {}
    exec(example, names)
    address, url = f"embedded:{tmp_path}/log?partitions=3", f"sqlite:///{tmp_path}/invoices.db"

    def rows() -> int:
        with engine_at(url) as engine, engine.connect() as db:
            if not db.execute(text("SELECT 1 FROM sqlite_master WHERE name = 'invoices'")).all():
                return 0
            return int(db.execute(text("SELECT count(*) FROM invoices")).scalar_one())

    async with polonaise.connect(address) as log:
        working = [asyncio.create_task(names["work"](f"embedded:{tmp_path}/log", url)) for _ in range(2)]
        try:
            for number in range(COUNT):
                await log.append(b"%d" % number, number % 3)
            await wait_until(lambda: any(each.done() for each in working) or rows() == COUNT)
            assert rows() == COUNT
        finally:
            for each in working:
                each.cancel()
            await asyncio.wait(working)


PAGE = Path(__file__).parents[2] / "docs" / "tls.md"
PATIENCE_S = 180.0


def free_ports(count: int) -> list[int]:
    """Ports that the system has just chosen, for commands that name the same one twice."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.mark.slow
def test_the_first_commands_of_the_page_on_tls_append_a_transaction(tmp_path: Path) -> None:
    block = PAGE.read_text().split("```sh\n", 1)[1].split("```", 1)[0]
    commands = "".join(line for line in block.splitlines(keepends=True) if not line.startswith("pip install"))
    for shown, port in zip((7100, 7101, 7102), free_ports(3), strict=True):
        assert f"localhost:{shown}" in commands
        commands = commands.replace(f"localhost:{shown}", f"localhost:{port}")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("POLONAISE_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shell = subprocess.Popen(
        ["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert shell.stdout is not None
        status = shell.wait(PATIENCE_S)
        os.killpg(shell.pid, signal.SIGTERM)  # the nodes, which have the pipe open
        told = shell.communicate(timeout=PATIENCE_S)[0]
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert status == 0, told
    assert "Traceback" not in told
    assert "\n0 0\n" in told, "the partition and id of the transaction"

"""Examples as a reader runs them: by the commands of their docstrings, as processes of their own, none of which stays.

Programs run in a test's directory, in which `examples` is a link to the real one.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rigs.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 300.0
"""Seconds that an example may take: long, because a shared machine may be slow, above all with Spark."""


def command(example: str, program: str) -> list[str]:
    """Return the words of the only command in the example's docstring that runs this program."""
    text = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()))
    assert text is not None
    (line,) = re.findall(rf"^    ({program} .*)$", text, re.MULTILINE)
    return shlex.split(line)


class Program:
    """A process and the processes that it starts. Its output goes to files."""

    def __init__(self, words: list[str], directory: Path, environment: dict[str, str], number: int) -> None:
        if not (directory / "examples").exists():
            (directory / "examples").symlink_to(EXAMPLES)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._files = [directory / f"{name}-{number}" for name in ("output", "errors")]
        with self._files[0].open("wb") as output, self._files[1].open("wb") as errors:
            self.process = subprocess.Popen(
                words, cwd=directory, env={**os.environ, "PATH": path, **environment}, start_new_session=True,
                stdin=subprocess.PIPE, stdout=output, stderr=errors,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        return self._files[1].read_text()

    async def until_said(self, pattern: str, times: int = 1) -> str:
        """Wait until the program has written this `times` times, to either file. Return the last match."""

        def said() -> list[str]:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.output}{self.errors}"
            return re.findall(pattern, self.output + self.errors)

        await wait_until(lambda: len(said()) >= times, f"{pattern!r}, said {times} times", within_s=PATIENCE_S)
        return said()[-1]

    async def ask(self, line: str) -> str:
        """Write a line to the program's standard input. Return the line that it answers."""
        stdin, known = self.process.stdin, len(self.output.splitlines())
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()
        await wait_until(lambda: self.output.count("\n") > known, f"an answer to {line!r}", within_s=PATIENCE_S)
        return self.output.splitlines()[known]

    async def end(self) -> int:
        """Wait until the program has ended. Return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await wait_until(lambda: self.process.poll() is not None, "its end", within_s=PATIENCE_S)
        return self.process.returncode

    def kill(self) -> None:
        """Kill the program, and all that it has started, with -9."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def living(self) -> list[str]:
        """Return the names of the program's processes that still run."""
        names = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                before, _, after = file.read_text().rpartition(") ")
                state, _, group, *_ = after.split()
                if int(group) == self.pid and state not in "ZX":
                    names.append(before.partition("(")[2])
        return names


class Programs:
    """Starts programs in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.started: list[Program] = []

    def start(self, *words: str, **environment: str) -> Program:
        program = Program(list(words), self._directory, environment, len(self.started))
        self.started.append(program)
        return program


@contextlib.asynccontextmanager
async def programs(directory: Path) -> AsyncIterator[Programs]:
    """Yield a starter of programs. Check that a passing test has ended all of them, and all that they started."""
    group = Programs(directory)
    try:
        yield group
        assert all(program.process.poll() is not None for program in group.started)
        ended = "the end of all processes"
        await wait_until(lambda: not any(program.living() for program in group.started), ended, every_s=0.05)
    finally:
        for program in group.started:
            program.kill()


async def request(url: str, key: str = "", asked: Any = None) -> tuple[int, Any]:
    """Send a GET, or a POST with this body. Return status and answer. Raises `OSError` if the connection is lost."""

    def do() -> tuple[int, Any]:
        body = None if asked is None else json.dumps(asked).encode()
        sent = urllib.request.Request(url, body, {"Idempotency-Key": key} if key else {})
        try:
            with urllib.request.urlopen(sent, timeout=PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    return await asyncio.to_thread(do)

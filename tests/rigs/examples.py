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
"""Generous: a shared machine may take its time, for Spark above all."""


def command(example: str, program: str) -> list[str]:
    """The words of the one command of the example's docstring that runs this program."""
    text = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()))
    assert text is not None
    (line,) = re.findall(rf"^    ({program} .*)$", text, re.MULTILINE)
    return shlex.split(line)


class Program:
    """A process, with those that it starts. What it writes is in a file."""

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
        """Until it has written this so often, to either file; the last one."""

        def said() -> list[str]:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.output}{self.errors}"
            return re.findall(pattern, self.output + self.errors)

        await wait_until(lambda: len(said()) >= times, f"{pattern!r}, said {times} times", within_s=PATIENCE_S)
        return said()[-1]

    async def ask(self, line: str) -> str:
        """The line that it answers to one of standard input."""
        stdin, known = self.process.stdin, len(self.output.splitlines())
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()
        await wait_until(lambda: self.output.count("\n") > known, f"an answer to {line!r}", within_s=PATIENCE_S)
        return self.output.splitlines()[known]

    async def end(self) -> int:
        """Until it has ended; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await wait_until(lambda: self.process.poll() is not None, "its end", within_s=PATIENCE_S)
        return self.process.returncode

    def kill(self) -> None:
        """End it with -9, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def living(self) -> list[str]:
        """The names of its processes that run."""
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
    """A test that passes has ended or killed all of them itself, and what they have started is gone, too."""
    group = Programs(directory)
    try:
        yield group
        assert all(program.process.poll() is not None for program in group.started)
        await wait_until(lambda: not any(program.living() for program in group.started), "the end of all processes")
    finally:
        for program in group.started:
            program.kill()


async def request(url: str, key: str = "", asked: Any = None) -> tuple[int, Any]:
    """A GET, or a POST with this body; status and answer. Raises `OSError` where the connection is lost."""

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

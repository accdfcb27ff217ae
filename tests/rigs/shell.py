"""Runs `polonaise …` commands in this process, on logs in memory."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import pytest
import typer.main

import polonaise
from polonaise.cli import main
from polonaise.errors import BadOption
from polonaise.testing import MemoryCluster

get_command = cache(typer.main.get_command)
"""What is made of all the commands takes longer than most of them, and is the same for each."""


class Said(NamedTuple):
    """A command's output and exit status."""

    status: int
    output: str
    errors: str

    @property
    def rows(self) -> list[list[str]]:
        """Return the cells of the printed table without its heading."""
        return [line.split() for line in self.output.splitlines()[1:]]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]


class Shell:
    """Runs commands. `memory:NAME` is the address of a log in memory, which is made when it is first named.

    Embedded logs are real, and so are clusters.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        self.clusters: dict[str, MemoryCluster] = {}
        for name in ("POLONAISE_LOG", "POLONAISE_COORDINATOR", "POLONAISE_CONFIG"):
            monkeypatch.delenv(name, raising=False)
        self._real_connect = polonaise.connect
        monkeypatch.setattr(polonaise, "connect", self._connect, raising=False)
        monkeypatch.setattr(typer.main, "get_command", get_command)

    def _connect(self, address: str) -> Any:
        if address.startswith(("embedded:", "polonaise:", "zookeeper:")):
            return self._real_connect(address)
        if address not in self.clusters:
            raise BadOption(f"{address!r} is no address of a log")
        return self.clusters[address].connect()

    def cluster(self, address: str = "memory:log", partitions: int = 1) -> MemoryCluster:
        return self.clusters.setdefault(address, MemoryCluster(partitions))

    def environment(self, address: str) -> None:
        self._monkeypatch.setenv("POLONAISE_LOG", address)

    def run(self, *arguments: object, stdin: bytes = b"") -> Said:
        self._monkeypatch.setattr(sys, "argv", ["polonaise", *map(str, arguments)])
        self._capfd.readouterr()
        status = 0
        with _standard_input(stdin):
            try:
                main()
            except SystemExit as ended:
                status = int(ended.code or 0)
        sys.stdout.flush()
        return Said(status, *self._capfd.readouterr())

    def refuses(self, *arguments: object, code: str, naming: str = "", stdin: bytes = b"") -> None:
        """Check that a command ends with exit status 1, or 78 for settings, and one line that names the fault."""
        said = self.run(*arguments, stdin=stdin)
        of_nodes = arguments[:2] in (("server", "run"), ("storage", "run"), ("config", "show"))
        assert said.status in ((1, 78) if of_nodes else (1,)), said
        assert "listening" not in said.output
        assert said.errors.startswith(f"polonaise: [{code}] "), said.errors
        assert naming in said.errors
        assert len(said.errors.splitlines()) == 1, said.errors


@contextmanager
def _standard_input(raw: bytes) -> Iterator[None]:
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(raw)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        captured, sys.stdin = sys.stdin, io.TextIOWrapper(io.FileIO(0, closefd=False))  # for questions
        try:
            yield
        finally:
            sys.stdin = captured
            os.dup2(before, 0)
            os.close(before)

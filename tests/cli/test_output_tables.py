"""Tables say what is in their cells: a list line by line, and nothing that would steer a terminal.

An output that can't be written is told as that, and nothing else is.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

import polonaise
import polonaise_proving
from polonaise.cli.exitstatus import ExitStatus
from polonaise.cli.output import print_table, say, tidy
from polonaise.errors import DiskFailed


def test_a_cell_that_is_a_list_has_a_line_for_each_of_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["partition", "problems"], [(0, ["one thing", "another\nthing"]), (1, []), (2, "a\x1b[31m")])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "partition  problems",
        "0          one thing",
        r"           another\nthing",
        "1",
        r"2          a\x1b[31m",
    ]


def test_no_text_is_written_with_the_markup_of_a_page() -> None:
    """A terminal shows it as it is: `the *coordinator*`. Docstrings may have it; they are not said to operators."""
    markup = re.compile(r"(?<![\w*])\*{1,2}[A-Za-z][\w -]*\*{1,2}(?!\w)")
    marked, looked_at = [], 0
    packages = (Path(package.__file__).parent for package in (polonaise, polonaise_proving))
    for path in (each for package in packages for each in package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        told = [each for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for each in told:
            looked_at += 1
            if id(each) not in docstrings and markup.search(str(each.value)):
                marked.append(f"{path.name}:{each.lineno}: {each.value}")
    assert marked == []
    assert looked_at > 1000


def test_a_fault_of_the_work_is_not_told_as_one_of_the_output() -> None:
    with pytest.raises(PermissionError), tidy():
        raise PermissionError("a directory")


def test_a_table_for_a_full_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with _output("/dev/full", monkeypatch), pytest.raises(DiskFailed, match="standard output can't be written"), tidy():
        print_table(["partition"], [["x" * 100_000]])  # more than is buffered


def test_a_line_that_is_written_only_at_the_end_of_a_full_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with _output("/dev/full", monkeypatch), pytest.raises(DiskFailed, match="standard output can't be written"), tidy():
        say("x")


@pytest.mark.parametrize("command", ["log create", "log append", "segment dump"])
def test_a_closed_output_is_told_before_anything_is_done(tmp_path: Path, command: str) -> None:
    line = [sys.executable, "-m", "polonaise.cli", *command.split(), f"embedded:{tmp_path / 'log'}"]
    ended = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *line], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == ExitStatus.FAILED
    assert ended.stderr.startswith("polonaise: [disk_failed] standard output can't be written: it is closed")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_whose_reader_went_away_ends_as_every_output_does(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _output(writer, monkeypatch), pytest.raises(typer.Exit) as ended, tidy():
        print_table(["partition"], [["x" * 100_000]])
    assert ended.value.exit_code == ExitStatus.READER_GONE


@contextmanager
def _output(target: str | int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with open(target, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        yield
        monkeypatch.undo()

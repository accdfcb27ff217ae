"""A file that a user names is replaced in one step, through links; pipes, devices and directories are kept."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polonaise.errors import BadOption
from polonaise.host.replacing import check_replaceable, is_standard_output, may_be_replaced, replaced


def write(path: Path, contents: bytes = b"new") -> None:
    with replaced(path) as file:
        file.write(contents)


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, second = tmp_path / "far" / "file", tmp_path / "link", tmp_path / "second"
    link.symlink_to("far/file")
    second.symlink_to(link)
    write(second, b"first")  # there is no such file yet
    assert target.read_bytes() == b"first"
    target.chmod(0o640)
    write(second)
    assert link.is_symlink()
    assert second.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640, "who may read it is as before"
    assert os.listdir(tmp_path / "far") == ["file"]


def test_a_failure_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "file.new").write_bytes(b"another file of the user's")
    with contextlib.suppress(RuntimeError), replaced(tmp_path / "file") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "file").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["file", "file.new"]
    write(tmp_path / "file")
    assert (tmp_path / "file.new").read_bytes() == b"another file of the user's"


@pytest.mark.parametrize("through", ["pipe", "link"])
def test_a_pipe_is_written_into_and_stays(tmp_path: Path, through: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    opened = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(tmp_path / through)
        assert os.read(opened, 10) == b"new"
    finally:
        os.close(opened)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_more_than_a_pipe_holds_waits_for_its_reader() -> None:
    """As with `>(…)` of a shell."""
    (output, into), contents = os.pipe(), bytes(1 << 20)
    writing = threading.Thread(target=write, args=(Path(f"/proc/self/fd/{into}"), contents))
    with open(output, "rb") as reader, open(into, "wb"):
        writing.start()
        assert reader.read(len(contents)) == contents
        writing.join()


def test_a_pipe_that_nobody_reads_and_a_directory_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadOption, match="nobody reads from the pipe"):
        write(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    (tmp_path / "round").symlink_to("round")
    for path, told in (("directory", "is a directory"), ("link", "is a directory"), ("round", "leads to itself")):
        with pytest.raises(BadOption, match=told):
            write(tmp_path / path)
        assert not may_be_replaced(tmp_path / path)
    assert (tmp_path / "link").is_symlink()
    assert may_be_replaced(tmp_path / "pipe")
    assert may_be_replaced(tmp_path / "missing")
    assert check_replaceable(tmp_path / "missing") is None


@pytest.mark.parametrize("output", ["pipe", "file"])
def test_what_is_the_standard_output_is_written_to_it_and_stays(tmp_path: Path, output: str) -> None:
    link, told = tmp_path / "stdout", tmp_path / "told"
    link.symlink_to("/proc/self/fd/1")
    program = (
        "import sys; from pathlib import Path; from polonaise.host.replacing import *; p = Path(sys.argv[1])\n"
        "assert is_standard_output(p)\n"
        "with replaced(p) as file: file.write(b'new')\n"
        "print(' and more')"
    )
    command = [sys.executable, "-c", program, str(link)]
    if output == "pipe":
        assert subprocess.run(command, check=True, capture_output=True).stdout == b"new and more\n"
    else:
        with told.open("wb") as file:
            subprocess.run(command, check=True, stdout=file)
        assert told.read_bytes() == b"new and more\n"
    assert link.is_symlink()
    assert not is_standard_output(tmp_path / "other")

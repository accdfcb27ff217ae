"""What a newer version has written is refused, by a sentence that says so, and stays as it is; so does damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow.parquet as pq
import pytest

from polonaise.storage.files import NAME_FILE, encode_name
from rigs import keptlog
from rigs.shell import Shell
from rigs.storagefiles import flip, overwrite, segments

NODE = ("storage", "run", "--listen", "127.0.0.1:0", "--directory")
NEWEST = keptlog.VERSIONS[-1]


def with_number_2(path: Path) -> None:
    """Put another format number into a header, whose CRC is behind its first 124 bytes."""
    overwrite(path, 4, b"\2\0")
    overwrite(path, 124, crc32(path.read_bytes()[:124]).to_bytes(4, "little"))


def control_file(directory: Path) -> tuple[Any, ...]:
    with_number_2(directory / "storage-0" / "polonaise-storage.ctl")
    return (*NODE, directory / "storage-0")


def segment(directory: Path) -> tuple[Any, ...]:
    with_number_2(segments(directory / "storage-0")[0])
    return ("segment", "verify", directory / "storage-0")


def name_of_a_node(directory: Path) -> tuple[Any, ...]:
    path = directory / "storage-0" / NAME_FILE
    path.write_bytes(encode_name("storage-0").replace(b" 1 ", b" 2 ", 1))
    return (*NODE, directory / "storage-0")


def embedded_log(directory: Path) -> tuple[Any, ...]:
    (directory / "embedded" / "polonaise-embedded").write_text("polonaise-embedded 2\n")
    return ("log", "read", f"embedded:{directory / 'embedded'}")


def coordinator_line(directory: Path) -> tuple[Any, ...]:
    resealed(directory / "coordinator" / "description", lambda line: line.replace(b"coordinator 1", b"coordinator 2"))
    return ("server", "run", "--coordinator", f"file:{directory / 'coordinator'}")


def coordinator_value(directory: Path) -> tuple[Any, ...]:
    resealed(directory / "coordinator" / "description", contents=lambda json: json.replace(b'"key"', b'"hue":1,"key"'))
    return ("server", "run", "--coordinator", f"file:{directory / 'coordinator'}")


def resealed(path: Path, line: Callable[[bytes], bytes] = bytes, contents: Callable[[bytes], bytes] = bytes) -> None:
    """Rewrite a coordinator's value, with the length and the CRC that fit."""
    head, _, payload = path.read_bytes().partition(b"\n")
    payload = contents(payload)
    words = line(head).split(b" ")
    words[-2:] = [str(len(payload)).encode(), b""]
    front = b" ".join(words)
    path.write_bytes(front + f"{crc32(payload, crc32(front)):08x}\n".encode() + payload)


@pytest.mark.parametrize(
    ("change", "code", "naming"),
    [
        (control_file, "unsupported_format", "storage format 2"),
        (segment, "unsupported_format", "segment format 2"),
        (name_of_a_node, "unsupported_format", "format 2"),
        (embedded_log, "unsupported_format", "format 2"),
        (coordinator_line, "coordinator_newer", "coordinator format 2"),
        (coordinator_value, "coordinator_newer", "'hue', which this version of Polonaise does not know"),
    ],
)
def test_a_newer_format_is_refused_and_the_files_stay(
    change: Callable[[Path], tuple[Any, ...]], code: str, naming: str, tmp_path: Path, shell: Shell
) -> None:
    keptlog.unpack(NEWEST, tmp_path)
    command = change(tmp_path)
    before = contents(tmp_path)
    shell.refuses(*command, code=code, naming=naming)
    assert "run the version that wrote it, or a newer one" in shell.run(*command).errors
    assert contents(tmp_path) == before


def contents(directory: Path) -> dict[Path, bytes]:
    """All files but locks, which are empty."""
    return {path: raw for path in directory.rglob("*") if path.is_file() and (raw := path.read_bytes())}


def test_a_newer_fragment_is_refused(tmp_path: Path, shell: Shell) -> None:
    keptlog.unpack(NEWEST, tmp_path)
    path = min((tmp_path / "fragments" / "0").glob("*.parquet"))
    table = pq.read_table(path)
    metadata = {**(table.schema.metadata or {}), b"polonaise.format": b"2"}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    said = shell.run("archive", "restore", tmp_path / "fragments", tmp_path / "restored")
    assert said.status == 1
    assert not (tmp_path / "restored" / "polonaise-embedded").exists()


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("storage-0/polonaise-storage.ctl", "control_file_damaged"),
        ("coordinator/description", "coordinator_damaged"),
    ],
)
def test_damage_is_told_as_damage_and_not_as_a_newer_format(
    file: str, code: str, version: str, tmp_path: Path, shell: Shell
) -> None:
    keptlog.unpack(version, tmp_path)
    flip(tmp_path / file, 6)
    commands = {
        "control_file_damaged": (*NODE, tmp_path / "storage-0"),
        "coordinator_damaged": ("server", "run", "--coordinator", f"file:{tmp_path / 'coordinator'}"),
    }
    shell.refuses(*commands[code], code=code, naming=file)

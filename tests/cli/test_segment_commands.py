"""`polonaise segment …`: files looked at offline."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from clirig import Shell
from filesrig import flip, make_storage, segments

from polonaise.log.segment import FRAME_BYTES


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return make_storage(tmp_path / "storage", partitions=2)


def test_verify_whole_files(shell: Shell, storage: Path) -> None:
    said = shell.run("segment", "verify", storage)
    assert (said.status, said.rows) == (0, [["0", "3", "17", "good"], ["1", "3", "17", "good"]])
    said = shell.run("segment", "verify", storage / "1", segments(storage)[0], "--json")
    assert said.objects == [
        {"partition": 1, "segments": 3, "last": 17, "unsynced_bytes": 0, "damages": []},
        {"partition": None, "segments": 1, "last": 5, "unsynced_bytes": 0, "damages": []},
    ]


def test_verify_names_the_first_damage_and_exits_1(shell: Shell, storage: Path) -> None:
    path = segments(storage)[1]
    flip(path, 400)
    said = shell.run("segment", "verify", storage)
    assert said.status == 1
    assert said.errors == ""
    assert "DAMAGED from transaction" in said.output
    assert str(path) in said.output
    first, second = shell.run("segment", "verify", storage, "--json").objects
    assert second["damages"] == []
    damage = first["damages"][0]
    assert damage["path"] == str(path)
    assert 6 <= damage["transaction"] <= 11
    assert f"at offset {damage['offset']}" in said.output


def test_verify_says_what_an_unfinished_write_is(shell: Shell, storage: Path) -> None:
    path = segments(storage)[2]
    with path.open("ab") as file:
        file.write(b"torn")
    said = shell.run("segment", "verify", storage / "0")
    assert said.status == 0
    assert "good; 4 bytes of an unfinished write at its end" in said.output


def test_statistics(shell: Shell, storage: Path) -> None:
    said = shell.run("segment", "statistics", storage / "0")
    assert said.status == 0
    assert said.rows[0][1:7] == ["0", "0", "5", "3", "6", str(segments(storage)[0].stat().st_size)]
    assert said.rows[2][-1] == "1970-01-01T00:00:17.000000Z"
    first = shell.run("segment", "statistics", storage / "0", "--json").objects[0]
    assert (first["first"], first["last"], first["batches"], first["transactions"]) == (0, 5, 3, 6)
    assert (first["registers_changed"], first["damage"]) == (1, None)
    flip(segments(storage)[0], 200)
    said = shell.run("segment", "statistics", storage, "--json")
    assert said.status == 1
    assert said.objects[0]["damage"]["transaction"] == 0


def test_dump_batches_and_transactions(shell: Shell, storage: Path) -> None:
    said = shell.run("segment", "dump", storage / "0")
    assert [row[2:5] for row in said.rows] == [[str(2 * n), str(2 * n + 1), "1"] for n in range(9)]
    batches = shell.run("segment", "dump", storage / "0", "--json").objects
    assert [batch["previous_crc"] for batch in batches[1:]] == [batch["crc"] for batch in batches[:-1]]
    said = shell.run("segment", "dump", "-t", storage / "0", "--after", 14, "--json")
    assert [(tx["id"], tx["data"]) for tx in said.objects] == [(id, f"body {id}") for id in (15, 16, 17)]
    assert len(shell.run("segment", "dump", "-t", storage, "--limit", 3).rows) == 3
    assert shell.run("segment", "dump", storage, "--limit", 0).rows == []
    assert len(shell.run("segment", "dump", storage, "--json").objects) == 18


def test_a_dump_of_damaged_files_tells_what_it_can(shell: Shell, storage: Path) -> None:
    flip(segments(storage)[1], 128 + 100 + FRAME_BYTES)
    said = shell.run("segment", "dump", storage / "0")
    assert said.status == 1
    assert said.errors.startswith("polonaise: [segment_damaged] ")
    assert len(said.rows) >= 3


def test_binary_bodies_in_a_dump(shell: Shell, tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "binary", batches=1, body=b"\xfe\0")
    (tx, _) = shell.run("segment", "dump", "-t", storage, "--json").objects
    assert base64.b64decode(tx["data_base64"]) == b"\xfe\0"
    assert shell.run("segment", "dump", "-t", storage).rows[0][-1] == "0xfe00"


def test_what_is_no_storage(shell: Shell, tmp_path: Path) -> None:
    for verb in ("verify", "statistics", "dump"):
        shell.refuses("segment", verb, tmp_path / "nowhere", code="not_found")
        shell.refuses("segment", verb, tmp_path, code="bad_option", naming="no storage directory")
        assert shell.run("segment", verb).status == 2


def test_an_empty_storage_directory_is_good(shell: Shell, tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "empty", partitions=1, batches=0)
    assert shell.run("segment", "verify", storage).rows == [["0", "1", "-1", "good"]]
    assert shell.run("segment", "dump", storage).rows == []


def test_the_control_file_damaged_or_missing(shell: Shell, storage: Path) -> None:
    control = storage / "polonaise-storage.ctl"
    flip(control, 40)
    shell.refuses("segment", "verify", storage, code="control_file_damaged")
    control.unlink()
    shell.refuses("segment", "verify", storage, code="control_file_missing")
    assert shell.run("segment", "verify", storage / "0").status == 0

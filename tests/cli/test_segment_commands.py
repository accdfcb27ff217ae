"""`polonaise segment …`: files looked at offline."""

from __future__ import annotations

import base64
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from polonaise.checksum import crc32
from polonaise.errors import SegmentDamaged
from polonaise.log.control import Promises
from polonaise.log.segment import FRAME_BYTES, HEADER_BYTES
from polonaise.storage import files, offline
from polonaise.storage.files import NAME_FILE, encode_name
from rigs.shell import Shell
from rigs.storagefiles import flip, make_storage, promise, segments

pytestmark = pytest.mark.slow


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


def test_a_directory_that_may_not_be_read_is_told_in_one_line(
    shell: Shell, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", denied)  # whoever tests may be root, whom nothing is denied
    shell.refuses("segment", "verify", storage, code="access_denied", naming=str(storage))


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
    assert [(tx["transaction_id"], tx["data"]) for tx in said.objects] == [(id, f"body {id}") for id in (15, 16, 17)]
    assert len(shell.run("segment", "dump", "-t", storage, "--limit", 3).rows) == 3
    assert shell.run("segment", "dump", storage, "--limit", 0).rows == []
    assert len(shell.run("segment", "dump", storage, "--json").objects) == 18


def test_a_dump_of_damaged_files_tells_what_it_can(shell: Shell, storage: Path) -> None:
    flip(segments(storage)[1], 128 + 100 + FRAME_BYTES)
    said = shell.run("segment", "dump", storage / "0")
    assert said.status == 1
    assert said.errors.startswith("polonaise: [segment_damaged] ")
    assert len(said.rows) >= 3


def test_a_dump_goes_on_behind_damage_and_marks_what_is_there(shell: Shell, storage: Path) -> None:
    flip(segments(storage)[1], segments(storage)[1].stat().st_size // 2)
    assert len(shell.run("segment", "dump", storage / "0").rows) < 8
    said = shell.run("segment", "dump", storage / "0", "--after-damage")
    assert (said.status, len(said.rows)) == (1, 8)
    assert said.errors.startswith(f"DAMAGED: {segments(storage)[1]}: ")
    assert [row[-2:] == ["BEHIND", "DAMAGE"] for row in said.rows] == [False] * 4 + [True] + [False] * 3
    bodies = shell.run("segment", "dump", storage / "0", "--after-damage", "-t", "--json").objects
    assert [tx["transaction_id"] for tx in bodies] == [id for id in range(18) if id not in (8, 9)]
    assert [tx["transaction_id"] for tx in bodies if tx.get("behind_damage")] == [10, 11]
    good = shell.run("segment", "dump", storage / "1", "--after-damage")
    assert (good.status, len(good.rows), good.errors) == (0, 9, "")


async def test_wherever_a_byte_rots_all_batches_but_its_own_are_dumped(storage: Path) -> None:
    path = segments(storage)[1]
    good = path.read_bytes()
    for at in range(0, len(good), 11):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        told: list[SegmentDamaged] = []
        [found] = files.find(str(storage / "0"))
        dumped = [each async for each in offline.dump(found, told.append)]
        whole = [each.batch.first for each in dumped if each.path == str(path)]
        assert len(whole) >= 2, f"byte {at}"
        assert set(whole) <= {6, 8, 10}
        assert whole == sorted(whole)
        if told:
            assert len(told) == 1
            assert [each.batch.first for each in dumped if not each.behind_damage and each.path == str(path)] == [
                first for first in whole if first < min({6, 8, 10} - set(whole), default=-1)
            ]
        assert len(dumped) == 6 + len(whole)


def test_binary_bodies_in_a_dump(shell: Shell, tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "binary", batches=1, body=b"\xfe\0")
    (tx, _) = shell.run("segment", "dump", "-t", storage, "--json").objects
    assert base64.b64decode(tx["data_base64"]) == b"\xfe\0"
    assert shell.run("segment", "dump", "-t", storage).rows[0][-1] == "0xfe00"


def test_what_is_no_storage(shell: Shell, tmp_path: Path) -> None:
    for verb in ("verify", "statistics", "dump"):
        shell.refuses("segment", verb, tmp_path / "nowhere", code="not_found")
        shell.refuses("segment", verb, tmp_path, code="bad_option", naming="not a storage directory")
        assert shell.run("segment", verb).status == 2


def test_an_empty_storage_directory_is_good(shell: Shell, tmp_path: Path) -> None:
    storage = make_storage(tmp_path / "empty", partitions=1, batches=0)
    assert shell.run("segment", "verify", storage).rows == [["0", "1", "-1", "good"]]
    assert shell.run("segment", "dump", storage).rows == []


def test_the_control_file_damaged_or_missing(shell: Shell, storage: Path) -> None:
    control = storage / "polonaise-storage.ctl"
    flip(control, 40)
    shell.refuses("segment", "verify", storage, code="control_file_damaged", naming=str(control))
    control.unlink()
    shell.refuses("segment", "verify", storage, code="control_file_missing")
    assert shell.run("segment", "verify", storage / "0").status == 0


def test_a_segment_of_another_format_is_named(shell: Shell, storage: Path) -> None:
    first = min((storage / "0").glob("*.seq"))
    raw = bytearray(first.read_bytes())
    raw[4] = 9
    checked = HEADER_BYTES - 4
    raw[checked:HEADER_BYTES] = crc32(raw[:checked]).to_bytes(4, "little")
    first.write_bytes(raw)
    shell.refuses("segment", "verify", storage, code="unsupported_format", naming=f"{first}: segment format 9")


def test_one_replica_is_read_without_a_cluster_and_says_what_that_is_worth(shell: Shell, storage: Path) -> None:
    promise(storage, lambda slot: slot.save(replace(slot.promises, confirmed=13)))
    said = shell.run("segment", "read", storage, "--partition", 0, "--after", 11)
    assert said.status == 0
    assert [(row[1], row[2], row[-1]) for row in said.rows] == [
        (str(id), "committed" if id <= 13 else "unproved", str(id)) for id in range(12, 18)
    ]
    assert "body 12" in said.output
    assert said.errors.startswith("CAUTION: this is one replica of partition 0")
    assert "up to 13 to be committed; what it holds above that may NEVER HAVE BEEN COMMITTED" in said.errors
    assert "trust" not in said.errors
    found = shell.run("segment", "read", storage / "0", "--limit", 3, "--json").objects
    assert [(tx["transaction_id"], tx["standing"], tx["data"]) for tx in found] == [
        (id, "committed", f"body {id}") for id in range(3)
    ]
    before = {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()}
    shell.run("segment", "read", storage, "-p", 1)
    assert {path: path.read_bytes() for path in storage.rglob("*") if path.is_file()} == before


def test_what_a_replica_has_lost_and_does_not_trust_is_told(shell: Shell, storage: Path) -> None:
    promise(storage, lambda slot: slot.record_loss(9))
    said = shell.run("segment", "read", storage, "-p", 0, "--json")
    assert {tx["standing"] for tx in said.objects[:10]} == {"unproved"}
    assert {tx["standing"] for tx in said.objects[10:]} == {"untrusted"}
    assert "may have lost what was above 9. It does not trust what it holds above 9." in said.errors


def test_the_promises_in_the_control_file_are_printed(shell: Shell, storage: Path) -> None:
    promise(storage, lambda slot: slot.save(Promises(fence=7, joined=6, prepared=4, confirmed=5)))
    said = shell.run("segment", "promises", storage, "--json")
    assert said.status == 0
    assert [row["partition"] for row in said.objects] == [0, 1]
    assert {name: said.objects[0][name] for name in ("fence", "joined", "prepared", "confirmed", "lost_above")} == {
        "fence": 7, "joined": 6, "prepared": 4, "confirmed": 5, "lost_above": None,
    }  # fmt: skip
    assert said.objects[0]["synced"] == 17
    assert said.objects[0]["first"] == 0
    (row, _) = shell.run("segment", "promises", storage).rows
    assert row[1:8] == ["0", "7", "6", "4", "5", "17", "0"]


def test_promises_of_a_copy_that_may_have_lost_ids_exit_1(shell: Shell, storage: Path) -> None:
    promise(storage, lambda slot: slot.record_loss(9))
    said = shell.run("segment", "promises", storage / "0")
    assert said.status == 1
    assert "may have lost what was above 9" in said.output
    assert "does not trust what it holds above 9" in said.output


def test_promises_without_a_control_file(shell: Shell, storage: Path) -> None:
    (storage / "polonaise-storage.ctl").unlink()
    shell.refuses("segment", "promises", storage / "0", code="control_file_missing", naming="name a storage directory")


def test_a_replica_is_read_up_to_its_damage(shell: Shell, storage: Path) -> None:
    path = segments(storage)[1]
    flip(path, 400)
    said = shell.run("segment", "read", storage, "-p", 0)
    assert said.status == 1
    assert 6 <= len(said.rows) < 12
    assert f"[segment_damaged] {path}: " in said.errors
    assert "the first transaction that can't be had is" in said.errors


@pytest.mark.parametrize(("segment", "read", "missing"), [(0, 0, 0), (1, 6, 6), (2, 12, 12)])
def test_a_replica_that_lacks_a_segment_is_not_read_as_if_it_were_whole(
    shell: Shell, storage: Path, segment: int, read: int, missing: int
) -> None:
    segments(storage)[segment].unlink()
    said = shell.run("segment", "read", storage, "-p", 0)
    assert (said.status, len(said.rows)) == (1, read)
    assert "[segment_damaged]" in said.errors
    assert f"the first transaction that can't be had is {missing}" in said.errors


def test_reading_after_an_id_begins_with_its_segment(shell: Shell, storage: Path) -> None:
    """What is damaged far below is in nobody's way."""
    flip(segments(storage)[0], 400)
    for after in (5, 8, 11):
        said = shell.run("segment", "read", storage, "-p", 0, "--after", after)
        assert (said.status, [int(row[1]) for row in said.rows]) == (0, list(range(after + 1, 18)))
    assert shell.run("segment", "read", storage, "-p", 0, "--after", 4).status == 1


def test_a_damaged_header_is_told_with_its_file(shell: Shell, storage: Path) -> None:
    path = segments(storage)[1]
    flip(path, 3)
    said = shell.run("segment", "read", storage, "-p", 0)
    assert said.status == 1
    assert f"[segment_damaged] {path}: " in said.errors
    assert "the first transaction that can't be had is 6" in said.errors


def test_replicas_are_compared(shell: Shell, storage: Path, tmp_path: Path) -> None:
    behind = make_storage(tmp_path / "behind", partitions=1, batches=4)
    said = shell.run("segment", "compare", storage, behind)
    assert said.status == 0
    assert f"partition 0: the same up to 7; only {storage} goes on to 17" in said.output
    assert "partition 1: only one of these directories holds it" in said.output
    least = make_storage(tmp_path / "least", partitions=1, batches=2)
    said = shell.run("segment", "compare", storage, behind, least)
    assert f"partition 0: the same up to 7, but {least} ends at 3; only {storage}" in said.output
    other = make_storage(tmp_path / "other", partitions=1, body=b"other")
    said = shell.run("segment", "compare", storage, other, "--json")
    assert (said.status, said.objects[0]["differs_from"], said.objects[0]["same"]) == (0, 0, -1)
    assert said.objects[0]["sides"] == [[str(storage)], [str(other)]]
    assert [each["last"] for each in said.objects[0]["replicas"]] == [17, 17]
    for directory in (storage, other):
        promise(directory, lambda slot: slot.save(replace(slot.promises, confirmed=3)))
    said = shell.run("segment", "compare", storage, other)
    assert said.status == 1
    assert "the same up to -1; different from 0 on: " in said.output
    assert f"CONTRADICTION: {storage} and {other} know different transactions to be committed" in said.output
    segments(behind)[1].unlink()
    said = shell.run("segment", "compare", storage, behind)
    assert said.status == 1
    assert "the first transaction that can't be had is 6" in said.output
    (storage / NAME_FILE).write_bytes(encode_name("b"))
    (behind / NAME_FILE).write_bytes(b"not a name")
    named = shell.run("segment", "compare", storage, behind, least, "--json").objects[0]["replicas"]
    assert [each["node"] for each in named] == ["b", None, None]
    assert [str(behind / NAME_FILE) in each["damage"] for each in named] == [False, False, False], "others come first"
    assert f"{storage}  b " in shell.run("segment", "compare", storage, least).output
    empty = [make_storage(tmp_path / name, batches=0) for name in ("none", "nothing")]
    (empty[0] / NAME_FILE).write_bytes(b"not a name")
    assert "is damaged, and so the node does not know its name" in shell.run("segment", "compare", *empty).output
    assert "partition 0: none of these directories holds" in shell.run("segment", "compare", *empty).output
    shell.refuses("segment", "compare", storage, code="bad_option", naming="two storage directories")


def test_files_of_which_nothing_is_known_prove_nothing(shell: Shell, storage: Path) -> None:
    (storage / "polonaise-storage.ctl").unlink()
    shell.refuses("segment", "read", storage, code="control_file_missing")
    said = shell.run("segment", "read", storage / "0", "--json")
    assert {tx["standing"] for tx in said.objects} == {"unproved"}
    assert "up to -1 to be committed" in said.errors


def test_which_partition_of_a_replica_has_to_be_said(shell: Shell, storage: Path) -> None:
    shell.refuses("segment", "read", storage, code="bad_option", naming="has 0, 1: choose one with --partition")
    shell.refuses("segment", "read", storage, "-p", 7, code="unknown_partition", naming="has 0, 1")
    shell.refuses("segment", "read", storage / "nowhere", code="not_found")
    single = make_storage(storage.parent / "single")
    assert len(shell.run("segment", "read", single).rows) == 18


def test_the_directory_of_a_log_names_its_storage_directories(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert shell.run("log", "create", f"embedded:{log}", "--storage", 2).status == 0
    for verb in ("verify", "read", "dump", "statistics"):
        shell.refuses("segment", verb, log, code="bad_option", naming=f"one of them: {log}/storage-0, {log}/storage-1")
    assert shell.run("segment", "verify", log / "storage-1").status == 0

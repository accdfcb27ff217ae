"""`polonaise log …`: append, read, tail, high-water-mark, and what they are given by mistake."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import polonaise
from polonaise.admin.logs import TimeLimit
from polonaise.cli import log as log_commands
from polonaise.cli import openlog
from polonaise.errors import DeadlineExceeded, PartitionNotReady
from polonaise.node.condition import condition_of
from polonaise.terms import FailureReason
from rigs.clients import SilentDiscovery
from rigs.shell import Shell
from rigs.waiting import time_passes

pytestmark = pytest.mark.slow

LOG = "memory:log"


def bodies(shell: Shell, partition: int = 0) -> list[bytes]:
    return [tx.data for tx in shell.clusters[LOG].partition(partition).transactions()]


# ------------------------------------------------------------------ which log


@pytest.mark.parametrize("verb", ["read", "tail", "high-water-mark"])
def test_the_log_is_named_first_or_by_option_or_in_the_environment(shell: Shell, verb: str) -> None:
    shell.cluster()
    assert shell.run("log", verb, LOG).status == 0
    assert shell.run("log", verb, "--log", LOG).status == 0
    shell.refuses("log", verb, code="bad_option", naming="which log?")
    shell.environment(LOG)
    assert shell.run("log", verb).status == 0
    shell.refuses("log", verb, "memory:other", code="bad_option", naming="memory:other")


def test_a_single_argument_of_append_is_the_body_where_the_log_is_known(shell: Shell) -> None:
    shell.cluster()
    assert shell.run("log", "append", LOG, "a").output == "0 0\n"
    assert shell.run("log", "append", "b", "--log", LOG).output == "0 1\n"
    shell.environment(LOG)
    assert shell.run("log", "append", "c").output == "0 2\n"
    shell.refuses("log", "append", LOG, code="bad_option", naming="Give both")
    shell.refuses("log", "append", LOG, "a", "b", code="bad_option", naming="quote")
    assert bodies(shell) == [b"a", b"b", b"c"]


# ------------------------------------------------------------------ append


def test_append_takes_lines_a_file_or_all_of_standard_input(shell: Shell, tmp_path: object) -> None:
    shell.cluster()
    said = shell.run("log", "append", LOG, "--json", stdin=b"one\r\n\ntwo\nthree")
    assert said.objects == [{"partition": 0, "transaction_id": id} for id in range(4)]
    file = tmp_path / "body"  # type: ignore[operator]
    file.write_bytes(b"\0\xff\n")
    assert shell.run("log", "append", LOG, "--file", file).status == 0
    assert shell.run("log", "append", LOG, "--file", "-", stdin=b"all\nof it\n").status == 0
    assert bodies(shell) == [b"one", b"", b"two", b"three", b"\0\xff\n", b"all\nof it\n"]


@pytest.mark.parametrize("nothing", [b"", b"\xef\xbb\xbf"], ids=["no byte", "a byte order mark alone"])
def test_nothing_on_standard_input_appends_nothing(shell: Shell, nothing: bytes) -> None:
    shell.cluster()
    assert shell.run("log", "append", LOG, stdin=nothing) == (0, "", "")
    assert bodies(shell) == []


def test_lines_are_those_that_another_system_has_written(shell: Shell) -> None:
    shell.cluster()
    assert shell.run("log", "append", LOG, stdin=b"\xef\xbb\xbfone\r\ntwo\rhalves\r\n\xef\xbb\xbfthree\r").status == 0
    bodies = [
        base64.b64decode(each["data_base64"]) if "data_base64" in each else each["data"].encode()
        for each in shell.run("log", "read", LOG, "--json").objects
    ]
    assert bodies == [b"one", b"two\rhalves", "\ufeffthree".encode()]


@pytest.mark.parametrize("end", [b"", b"\nnext"], ids=["the last line", "a line amid others"])
def test_a_line_that_is_too_long_is_named_by_its_number(shell: Shell, end: bytes) -> None:
    shell.cluster()
    lines = b"one\ntwo\n" + bytes(2 * 2**20) + end
    shell.refuses("log", "append", LOG, code="body_too_large", naming="line 3 is too long", stdin=lines)


READ = 65_536
"""Bytes that are read at once."""


@pytest.mark.parametrize(
    ("before", "end"),
    [
        (b"c" * (READ - 2) + b"\n", b"\r\n"),
        (b"c" * (READ - 2) + b"\n", b"\r"),
        (b"\xef\xbb\xbf", b"\n"),
        (b"\xef\xbb\xbf", b""),
        (b"\xef\xbb\xbf", b"\r\n"),
    ],
    ids=["CR LF over two reads", "CR at the end", "a mark before", "a mark before the only line", "both"],
)
def test_what_is_no_part_of_a_line_does_not_make_it_too_long_wherever_a_read_ends(
    shell: Shell, before: bytes, end: bytes
) -> None:
    shell.cluster()
    body = b"a" * 2**20
    assert shell.run("log", "append", LOG, stdin=before + body + end).status == 0
    assert bodies(shell)[-1] == body
    shell.refuses("log", "append", LOG, code="body_too_large", naming="is too long", stdin=before + body + b"a" + end)


def test_thousands_of_lines_go_out_together(shell: Shell) -> None:
    shell.cluster()
    said = shell.run("log", "append", LOG, stdin=b"".join(b"%d\n" % number for number in range(5_000)))
    assert said.output.splitlines()[-1] == "0 4999"
    assert bodies(shell) == [b"%d" % number for number in range(5_000)]


def test_headers_locks_and_registers(shell: Shell) -> None:
    cluster = shell.cluster()
    assert shell.run("log", "append", LOG, "a", "--header", "-7", "--write-lock", "account:1").status == 0
    assert cluster.partition(0).transactions()[0].header == -7
    shell.refuses(
        "log", "append", LOG, "b", "--read-lock", "account:1", "--high-water-mark", -1, code="lock_conflict", naming="0"
    )
    assert shell.run("log", "append", LOG, "b", "--append-lock", "account:1", "--high-water-mark", -1).status == 0
    assert shell.run("log", "append", LOG, "c", "--expect-absent", "k", "--set", "k=v=w").status == 0
    assert cluster.partition(0).registers == {b"k": b"v=w"}
    shell.refuses("log", "append", LOG, "d", "--expect-absent", "k", code="expectation_failed")
    shell.refuses("log", "append", LOG, "d", "--expect", "k=x", code="expectation_failed")
    assert shell.run("log", "append", LOG, "d", "--expect", "k=v=w").status == 0
    shell.refuses("log", "append", LOG, "e", "--expect-position", 3, code="expectation_failed")
    assert shell.run("log", "append", LOG, "e", "--expect-position", 4).status == 0
    assert bodies(shell) == [b"a", b"b", b"c", b"d", b"e"]


def test_registers_are_listed_and_those_of_the_library_are_told(shell: Shell) -> None:
    cluster = shell.cluster(partitions=2)
    assert shell.run("log", "registers", LOG).rows == []
    changes = ["--set", "seat/1=anna", "--set", "seat/2=x\x1b[31m", "--set", "day=1"]
    assert shell.run("log", "append", LOG, "a", "-p", 1, *changes, "--set", "\udcfe=\udcfd").status == 0
    shell.refuses("log", "append", LOG, "b", "-p", 1, "--set", "spark/loads=s", code="bad_option", naming="spark/")
    cluster.partition(1).registers[b"spark/loads"] = b"s"  # as the sink does it
    said = shell.run("log", "registers", LOG, "-p", 1)
    assert [" ".join(row) for row in said.rows] == [
        "1 the application day = 1",
        "1 the application seat/1 = anna",
        "1 the application seat/2 = x\\x1b[31m",
        "1 the Spark sink spark/loads = s",
        "1 the application 0xfe = 0xfd",
    ]
    found = shell.run("log", "registers", LOG, "--prefix", "seat/", "--json").objects
    assert found == [
        {"partition": 1, "key": "seat/1", "value": "anna", "of": ""},
        {"partition": 1, "key": "seat/2", "value": "x\x1b[31m", "of": ""},
    ]
    (odd,) = shell.run("log", "registers", LOG, "--prefix", "\udcfe", "--json").objects
    assert odd == {"partition": 1, "key_base64": "/g==", "value_base64": "/Q==", "of": ""}
    assert len(said.rows) == len(cluster.partition(1).registers)
    shell.refuses("log", "registers", LOG, "-p", 7, code="unknown_partition")
    shell.refuses("log", "registers", LOG, "--prefix", "k" * 1_025, code="bad_option", naming="1024")


def test_lines_under_one_lock_do_not_conflict_with_each_other(shell: Shell) -> None:
    shell.cluster()
    assert shell.run("log", "append", LOG, "--write-lock", "account:1", stdin=b"a\nb\nc").status == 0
    assert bodies(shell) == [b"a", b"b", b"c"]


def test_the_first_that_fails_ends_it(shell: Shell) -> None:
    cluster = shell.cluster()
    cluster.server.armed.next_reasons.append(FailureReason.SESSION_ENDED)
    shell.refuses("log", "append", LOG, "--write-lock", "a:1", code="append_failed", stdin=b"a\nb\nc")
    assert bodies(shell) == []


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (["--write-lock", "account"], "NAME:ID"),
        (["--write-lock", ":1"], "NAME:ID"),
        (["--read-lock", "account:x"], "NAME:ID"),
        (["--append-lock", "account:9223372036854775808"], "NAME:ID"),
        (["--expect", "k"], "KEY=VALUE"),
        (["--set", "=v"], "KEY=VALUE"),
        (["--header", "2147483648"], "32 bits"),
        (["--high-water-mark", "5"], "committed up to id -1"),
        (["--high-water-mark", "-2"], "committed up to id -1"),
        (["--set", f"{'k' * 1_025}=v"], "1024"),
        (["--file", "body"], "only one"),
        (["--write-lock", "a\udcff:1"], "NAME:ID"),
    ],
)
def test_an_invalid_append(shell: Shell, options: list[str], naming: str) -> None:
    shell.cluster()
    shell.refuses("log", "append", LOG, "body", *options, code="bad_option", naming=naming)
    assert bodies(shell) == []


def test_what_is_said_of_one_transaction_is_not_said_of_lines(shell: Shell) -> None:
    shell.cluster()
    for option in ("--high-water-mark", "--expect-position"):
        shell.refuses("log", "append", LOG, option, 0, code="bad_option", naming="one transaction", stdin=b"a")


def test_a_file_that_is_not_there_and_bodies_that_are_too_large(shell: Shell, tmp_path: object) -> None:
    shell.cluster()
    shell.refuses("log", "append", LOG, "--file", "there-is-none", code="not_found")
    shell.refuses("log", "append", LOG, "--file", tmp_path, code="disk_failed")
    large = b"x" * (1024 * 1024 + 1)
    shell.refuses("log", "append", LOG, "--file", "-", code="body_too_large", stdin=large)
    shell.refuses("log", "append", LOG, code="body_too_large", stdin=large)
    assert bodies(shell) == []


# ------------------------------------------------------------------ read and tail


@pytest.fixture
def filled(shell: Shell) -> Shell:
    """Five transactions in partition 0 and three in partition 1, of three."""
    shell.cluster(partitions=3)
    assert shell.run("log", "append", LOG, "-p", 0, stdin=b"a\nb\nc\nd\ne").status == 0
    assert shell.run("log", "append", LOG, "-p", 1, "--header", 4, stdin=b"x\ny\nz").status == 0
    return shell


def read(shell: Shell, *options: object, verb: str = "read") -> str:
    said = shell.run("log", verb, LOG, "--json", *options)
    assert said.status == 0, said.errors
    return "".join(tx["data"] for tx in said.objects)


def test_read_from_where_to_where(filled: Shell) -> None:
    assert read(filled, "-p", 0) == "abcde"
    assert read(filled, "-p", 0, "--after", 1) == "cde"
    assert read(filled, "-p", 0, "--after", 1, "--until", 3) == "cd"
    assert read(filled, "-p", 0, "--limit", 2) == "ab"
    assert read(filled, "-p", 0, "--limit", 0) == ""
    assert read(filled, "-p", 0, "--after", 4) == ""
    assert read(filled, "-p", "all") == "abcdexyz"
    assert read(filled, "-p", "all", "--limit", 6) == "abcdex"
    assert read(filled, "-p", "1-2") == "xyz"
    assert read(filled, "-p", "1,0") == "xyzabcde"
    assert read(filled, "-p", 2) == ""


def test_read_by_time(filled: Shell) -> None:
    filled.run("log", "append", LOG, "late", "-p", 0)
    late = filled.clusters[LOG].partition(0).transactions()[-1].commit_time_us
    since = datetime.fromtimestamp(late / 1_000_000, UTC).isoformat()
    assert read(filled, "-p", 0, "--since", since) == "late"
    assert read(filled, "-p", 0, "--since", "1999-12-31T00:00:00+01:00") == "abcdelate"
    assert read(filled, "-p", 0, "--since", "90s") == "", "the log in memory lives in the year 2000"
    for since, naming in (
        ("yesterday", "invalid time"),
        ("2000-01-01T00:00:00", "time zone"),
        ("9" * 30 + "d", "invalid time"),
    ):
        filled.refuses("log", "read", LOG, "-p", 0, "--since", since, code="bad_option", naming=naming)
    filled.refuses("log", "read", LOG, "-p", 0, "--since", "1d", "--after", 1, code="bad_option", naming="--after")


def test_follow_ends_with_the_limit(filled: Shell) -> None:
    assert read(filled, "-p", 0, "--follow", "--limit", 5) == "abcde"
    assert sorted(read(filled, "-p", "all", "--follow", "--limit", 8)) == sorted("abcdexyz")
    assert sorted(read(filled, "-p", "all", "-n", 1, "--follow", "--limit", 2, verb="tail")) == ["e", "z"]


def test_follow_ends_when_every_partition_has_reached_the_last_id(filled: Shell) -> None:
    assert sorted(read(filled, "-p", "0-1", "--follow", "--until", 2)) == sorted("abcxyz")


def test_tail_shows_the_last(filled: Shell) -> None:
    assert read(filled, "-p", 0, "-n", 2, verb="tail") == "de"
    assert read(filled, "-p", 0, "-n", 0, verb="tail") == ""
    assert read(filled, "-p", 0, verb="tail") == "abcde"
    assert read(filled, "-p", "all", "-n", 1, verb="tail") == "ez"


def test_tail_does_not_count_what_the_library_wrote_for_itself(filled: Shell) -> None:
    async def open_producers() -> None:
        async with filled.clusters[LOG].connect() as log:
            for name in ("one", "two", "three"):
                await log.producer(name, partition=1)

    asyncio.run(open_producers())
    (told,) = filled.run("log", "high-water-mark", LOG, "-p", 1, "--json").objects
    assert told["committed_high_water_mark"] == 5
    for count, last in ((0, ""), (1, "z"), (2, "yz"), (3, "xyz"), (9, "xyz")):
        assert read(filled, "-p", 1, "-n", count, verb="tail") == last
    assert read(filled, "-p", 1, "-n", 1, "--follow", "--limit", 1, verb="tail") == "z"


def test_a_transaction_for_people_and_for_machines(filled: Shell) -> None:
    said = filled.run("log", "read", LOG, "-p", 1, "--limit", 1)
    assert said.output.splitlines()[0].split() == ["partition", "id", "commit", "time", "header", "data"]
    assert said.rows == [["1", "0", "2000-01-01T00:00:00.001000Z", "4", "x"]]
    (tx,) = filled.run("log", "read", LOG, "-p", 1, "--limit", 1, "--json").objects
    assert tx["sequence"] > 10**15, "above the time of the client's id, in microseconds"
    assert tx | {"client_id": 0, "sequence": 1} == {
        "partition": 1,
        "transaction_id": 0,
        "header": 4,
        "timestamp": "2000-01-01T00:00:00.001000Z",
        "client_id": 0,
        "generation": 1,
        "sequence": 1,
        "data": "x",
    }


def test_binary_bodies_and_what_a_terminal_would_obey(shell: Shell) -> None:
    shell.cluster()
    raw = [b"\xff\0binary", "tab\t bell\a \x1b[31mred é \u202e".encode(), b"[bold]no markup[/bold]"]
    for body in raw:
        shell.run("log", "append", LOG, "--file", "-", stdin=body)
    objects = shell.run("log", "read", LOG, "--json").objects
    assert base64.b64decode(objects[0]["data_base64"]) == raw[0]
    assert [tx["data"].encode() for tx in objects[1:]] == raw[1:]
    lines = shell.run("log", "read", LOG).output.splitlines()
    assert lines[1].endswith(" 0xff0062696e617279")
    assert lines[2].endswith(r"tab\t bell\x07 \x1b[31mred é \u202e")
    assert lines[3].endswith("[bold]no markup[/bold]")


def test_arguments_are_the_bytes_that_were_typed(shell: Shell) -> None:
    cluster = shell.cluster()
    assert shell.run("log", "append", LOG, "\udcff", "--set", "\udcfe=\udcfd").status == 0
    assert (bodies(shell), cluster.partition(0).registers) == ([b"\xff"], {b"\xfe": b"\xfd"})


def test_an_output_that_takes_no_more_than_ascii(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.cluster()
    shell.run("log", "append", LOG, "é")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(openlog, "while_read", lambda work: work)
    for option in ((), ("--json",)):
        assert shell.run("log", "read", LOG, *option).status == 0
    lines = raw.getvalue().splitlines()
    assert lines[1].endswith(b"\\xe9")
    assert json.loads(lines[2])["data"] == "é"


def test_partitions_that_are_not_there(filled: Shell) -> None:
    for verb in ("read", "tail"):
        filled.refuses("log", verb, LOG, code="bad_option", naming="the log has 3 partitions")
        filled.refuses("log", verb, LOG, "-p", 3, code="unknown_partition", naming="0 to 2")
        for wrong in ("x", "", "1-", "2-1", "-1", "0,,1", "1-2-3"):
            filled.refuses("log", verb, LOG, f"--partition={wrong}", code="bad_option", naming="invalid partitions")
    filled.refuses("log", "append", LOG, "x", code="bad_option", naming="which of 3")
    filled.refuses("log", "append", LOG, "x", "-p", 3, code="unknown_partition")


# ------------------------------------------------------------------ high-water marks


def test_high_water_marks(filled: Shell) -> None:
    assert filled.run("log", "high-water-mark", LOG).rows == [["0", "4"], ["1", "2"], ["2", "-1"]]
    assert filled.run("log", "high-water-mark", LOG, "-p", 1, "--json").objects == [
        {"partition": 1, "committed_high_water_mark": 2}
    ]


# ------------------------------------------------------------------ trouble


def test_that_no_server_is_there_is_said_within_the_timeout(shell: Shell) -> None:
    shell.cluster().server.lose_connections(reachable=False)
    for verb in ("read", "tail", "high-water-mark"):
        shell.refuses("log", verb, LOG, "--timeout", 0.1, code="deadline_exceeded", naming="memory:1")
    shell.refuses("log", "append", LOG, "x", "--timeout", 0.1, code="deadline_exceeded", naming="not ready")


@pytest.mark.parametrize("scheme", ["zookeeper", "polonaise"])
@pytest.mark.parametrize(
    "command",
    [("log", "append", LOG, "x"), ("log", "read", LOG), ("log", "health", LOG), ("group", "list", LOG)],
    ids=lambda command: " ".join(command[:2]),
)
def test_who_says_nothing_is_waited_for_no_longer_than_the_timeout(
    shell: Shell, command: tuple[str, ...], scheme: str
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}" + "/bank" * (scheme == "zookeeper")
        asking = [address if word == LOG else word for word in command]
        began_s = time.monotonic()
        shell.refuses(
            *asking, "--timeout", 0.5, code="deadline_exceeded", naming=f"{address} did not answer within 0.5 s"
        )
        assert time.monotonic() - began_s < 4.0


def test_why_a_log_could_not_be_opened_in_time_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polonaise.node.connecting.ServerDiscovery", lambda *_: SilentDiscovery())
    told = f"polonaise://a:1 could not be opened within 0.2 s: {SilentDiscovery.trouble}"
    shell.refuses("log", "append", "polonaise://a:1", "x", "--timeout", 0.2, code="deadline_exceeded", naming=told)


@pytest.mark.parametrize("told_before", [True, False])
def test_what_keeps_a_partition_is_told_with_the_deadline(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *, told_before: bool
) -> None:
    why = "the disks of c are slow: a sync takes seconds, and commits wait for it"
    keeps = {"ready": False, "waits_for": why, "committed": -1, "generation": 1}

    async def health(log: polonaise.Log, partition: int, *, timeout: float) -> Any:
        return {"server": 1, "storage": {}, "partitions": {"0": keeps}}

    async def ready(log: polonaise.Log, partition: int | None = None, *, timeout: float) -> None:
        await time_passes(timeout)
        raise DeadlineExceeded(f"partition 0 was not ready: {why if told_before else 'it waits for its owner'}")

    shell.cluster()
    monkeypatch.setattr(polonaise.Log, "health", health)
    monkeypatch.setattr(polonaise.Log, "ready", ready)
    said = shell.run("log", "append", LOG, "x", "--timeout", 0.5)
    assert said.status == 1
    assert said.errors.count(why) == 1
    assert ("; what keeps it, as its server says: partition 0: the disks of c are slow" in said.errors) != told_before
    assert said.errors.endswith("Give it more time with --timeout if that may pass\n")


@pytest.mark.parametrize("known", [True, False])
def test_many_partitions_are_blamed_only_where_no_reason_is_known(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    async def ready(log: polonaise.Log, partition: int | None = None, *, timeout: float) -> None:
        raise DeadlineExceeded("partition 0 was not ready") from (PartitionNotReady("no quorum") if known else None)

    shell.cluster()
    monkeypatch.setattr(polonaise.Log, "ready", ready)
    said = shell.run("log", "append", LOG, "x", "--timeout", 0.5)
    assert ("many partitions" in said.errors) != known
    assert "--timeout" in said.errors


@pytest.mark.exhaustive  # of commands
@pytest.mark.parametrize("verb", ["append", "read", "tail", "health", "high-water-mark", "registers"])
def test_the_time_in_which_a_log_was_found_counts(shell: Shell, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = shell.cluster()
    cluster.server.lose_connections(reachable=False)
    found_at: list[float] = []

    @asynccontextmanager
    async def slowly() -> AsyncIterator[polonaise.Log]:
        await time_passes(1.5)
        async with connect() as log:
            found_at.append(time.monotonic())
            yield log

    connect = cluster.connect
    monkeypatch.setattr(cluster, "connect", slowly)
    shell.refuses("log", verb, LOG, *["x"] * (verb == "append"), "--timeout", 2, code="deadline_exceeded")
    assert time.monotonic() - found_at[0] < 1.5, "half a second was left"


async def test_a_time_limit_counts_anew_from_each_answer_and_not_what_is_waited_for_input() -> None:
    limit = TimeLimit(10.0)
    limit.begin()
    assert limit.left_s() == 10.0
    limit.until_s -= 8.0
    assert limit.left_s() == 2.0
    limit.pass_over(3.0)
    assert limit.left_s() == 5.0
    limit.pass_over(60.0)
    assert limit.left_s() == 10.0, "and never more than all of it"
    limit.until_s -= 20.0
    assert limit.left_s() == TimeLimit.LEAST_S
    limit.begin()
    assert limit.left_s() == 10.0


def test_an_append_that_is_not_decided_in_time_may_still_commit(shell: Shell) -> None:
    shell.cluster().server.armed.next_unknown.append(True)
    shell.refuses("log", "append", LOG, "x", "--timeout", 0.2, code="append_unknown", naming="may still commit")
    assert bodies(shell) == [b"x"]


@pytest.mark.parametrize(
    "arguments",
    [["--limit", "-1"], *[["--timeout", wrong] for wrong in ("0", "nan", "inf", "x")], ["--nonsense"], ["a", "b"]],
)
def test_an_invalid_command_line_is_exit_status_2(shell: Shell, arguments: list[str]) -> None:
    shell.cluster()
    assert shell.run("log", "read", *arguments).status == 2


@pytest.mark.parametrize("command", [["log"], ["segment"], ["log", "append"], ["segment", "verify"]])
def test_help_tells_the_exit_statuses(shell: Shell, command: list[str]) -> None:
    said = shell.run(*command, "--help")
    assert said.status == 0
    assert "Exit status" in said.output


@pytest.mark.parametrize("verb", ["read", "tail", "high-water-mark"])
def test_looking_at_an_embedded_log_that_is_not_there_makes_none(shell: Shell, verb: str, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    shell.refuses("log", verb, address, code="not_initialized", naming=str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


def test_health_says_that_a_partition_is_ready(shell: Shell) -> None:
    shell.cluster()
    said = shell.run("log", "health", LOG, "--json")
    assert said.status == 0
    assert [(each["partition"], each["ready"], each["left_out"]) for each in said.objects] == [(0, True, {})]
    assert "ready" in shell.run("log", "health", LOG).output


def test_health_of_a_log_whose_storage_directory_was_wiped_says_so_and_claims_no_mark(
    shell: Shell, tmp_path: Path
) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    assert shell.run("log", "create", address).status == 0
    assert shell.run("log", "append", address, "kept").status == 0
    shutil.rmtree(tmp_path / "log" / "storage-0")
    said = shell.run("log", "health", address, "--json")
    assert said.status == 1
    assert said.objects[0]["committed_high_water_mark"] is None
    assert "unix:storage-0 answers, but is empty" in said.objects[0]["waits_for"]
    table = shell.run("log", "health", address).output
    assert re.search(r"NOT READY +unknown ", table), table


def test_a_mark_that_is_not_proved_is_none() -> None:
    told = {"server": 1, "storage": {}}
    for ready, committed, expected in ((False, -1, None), (False, 7, 7), (True, -1, -1)):
        health = {"ready": ready, "committed": committed, "waits_for": "a quorum", "generation": 1}
        assert condition_of(0, told, health).committed_high_water_mark == expected


def test_health_says_how_far_the_scrub_of_each_storage_node_is(shell: Shell, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    assert shell.run("log", "create", address).status == 0
    said = shell.run("log", "health", address, "--json")
    assert said.status == 0
    (scrub,) = said.objects[0]["scrub"].values()
    assert (scrub["rounds"], scrub["found"], scrub["repaired"], scrub["damages"]) == (0, 0, 0, [])
    assert re.search("^scrub of .*: no round has ended yet$", shell.run("log", "health", address).output, re.MULTILINE)


def test_health_prints_what_it_has_when_a_server_does_not_answer_in_time(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.cluster(LOG, partitions=3)
    asked: list[int] = []

    async def health(log: polonaise.Log, partition: int, *, timeout: float) -> Any:
        asked.append(partition)
        if partition == 0:
            told = await real(log, partition, timeout=timeout)
            return {**told, "partitions": {"0": told["partitions"]["0"]}}
        raise DeadlineExceeded(f"partition {partition} did not answer")

    real = polonaise.Log.health
    monkeypatch.setattr(polonaise.Log, "health", health)
    said = shell.run("log", "health", LOG, "-p", "all", "--timeout", 7)
    assert (said.status, len(said.rows)) == (1, 1)
    assert said.rows[0][:2] == ["0", "ready"]
    assert "partition 1 did not answer" in said.errors
    assert "longer than 7 s: give it more with --timeout" in said.errors
    assert asked == [0, 1], "each silent one takes all of the time"
    alone = shell.run("log", "health", LOG, "-p", "2", "--json")
    assert (alone.status, alone.output) == (1, "")


def test_the_progress_of_a_scrub_in_words() -> None:
    scrub = {"bytes_per_s": 1, "rounds": 2, "started_us": 5_000_000, "finished_us": 4_000_000, "bytes": 3_000,
             "partitions": 1, "partitions_of": 4, "found": 2, "repaired": 1}  # fmt: skip
    assert log_commands.progress_of(scrub) == (
        "last round ended 1970-01-01T00:00:04.000000Z; current round: 3,000 bytes read, 1 of 4 partitions done; "
        "2 damages found, 1 repaired"
    )
    assert log_commands.progress_of({**scrub, "bytes_per_s": 0}) == "switched off (storage run --scrub-bytes)"
    assert "(server run --scrub-bytes)" in log_commands.progress_of({**scrub, "bytes_per_s": 0}, "fragment")


# ------------------------------------------------------------------ an empty log


def test_an_empty_log_is_made_where_there_is_none(shell: Shell, tmp_path: Path) -> None:
    address = f"embedded:{tmp_path / 'log'}"
    made = shell.run("log", "create", address, "--partitions", 3, "--storage", 2)
    assert (made.status, made.output) == (0, f"{address} is an empty log of 3 partitions\n"), made.errors
    assert sorted(path.name for path in (tmp_path / "log").glob("storage-*")) == ["storage-0", "storage-1"]
    assert shell.run("log", "read", address, "-p", "all", "--json").objects == []
    marks = shell.run("log", "high-water-mark", address, "--json").objects
    assert [mark["committed_high_water_mark"] for mark in marks] == [-1, -1, -1]
    shell.refuses("log", "create", address, code="already_initialized", naming="holds a log already")
    another = f"embedded:{tmp_path / 'another'}?partitions=2"
    assert shell.run("log", "create", another, "--json").objects == [{"log": another, "partitions": 2}]


def test_what_makes_no_log_is_refused_and_nothing_is_touched(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    for address, code, naming in (
        ("file:coordinator", "bad_option", "write embedded:PATH"),
        (f"embedded:{tmp_path / 'x'}?host=no", "bad_option", "host=no"),
        (f"embedded:{tmp_path / 'x'}?partitions=2", "bad_option", "partitions is given twice"),
        (f"embedded:{tmp_path / 'mine'}", "not_embedded_log", "not empty (it holds letter)"),
    ):
        shell.refuses("log", "create", address, "--partitions", 3, code=code, naming=naming)
    too_many = shell.run("log", "create", f"embedded:{tmp_path / 'x'}", "--partitions", 5_000)
    assert too_many.status == 1
    assert "a number from 1 to 4096" in too_many.errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter"]

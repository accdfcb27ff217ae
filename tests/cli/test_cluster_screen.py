"""The screen of `cluster status`: bounded, what is not well first, and true to the exit status."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import rich.console
from rich.console import Console

from polonaise.admin.belief import Belief
from polonaise.admin.cluster import ClusterStatus, PartitionStatus, ServerStatus, StorageStatus
from polonaise.cli.cluster import ROWS_MAX, _watch, fitting, screen_of
from polonaise.cli.opencluster import partition_rows, size, storage_rows
from polonaise.cli.output import table_of
from polonaise.coordination.values import ClusterDescription, ExpectedServer, ExpectedServers, Owner
from polonaise.errors import CoordinatorUnavailable
from polonaise.node.reasons import Condition

NAMES = ["a:1", "b:1", "c:1"]


def partition(number: int, *, ready: bool = True, out: str = "") -> PartitionStatus:
    left_out = {out: "[connection_lost] gone"} if out else {}
    engaged = [name for name in NAMES if name != out] if ready else []
    waits_for = "" if ready else "two replicas are missing"
    condition = Condition(number, 1, ready, 41, engaged, left_out, waits_for, {}, None, "", 2, 7, list(left_out))
    return PartitionStatus(number, Owner(1, "s:1", 2), condition)


def cluster(partitions: list[PartitionStatus], error: CoordinatorUnavailable | None = None) -> ClusterStatus:
    description = ClusterDescription(bytes(16), len(partitions), tuple(NAMES))
    servers = [ServerStatus(1, "s:1", True, len(partitions)), ServerStatus(2, "t:1", True, 0, "[connection_lost] gone")]
    storage = [StorageStatus(name, f"{name}:1", "", "/d", 7, 2**30, 2**40) for name in NAMES]
    return ClusterStatus("zookeeper://z:1/bank", error, description, servers, storage, partitions, {}, 0.1)


def text_of(parts: list[object], width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    for part in parts:
        console.print(part)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_thousands_of_partitions_make_a_screen_with_those_that_are_not_well_first() -> None:
    partitions = [partition(number) for number in range(5_000)]
    partitions[4_321] = partition(4_321, ready=False)
    partitions[17] = partition(17, out="b:1")
    lines = text_of(list(screen_of(cluster(partitions))))
    assert len(lines) < 45
    assert "5,000 partitions: 4,998 ready, 1 degraded, 1 not ready" in lines
    rows = [line.split()[:2] for line in lines if line.split()[:1] and line.split()[0] in ("4321", "17", "0")]
    assert rows == [["4321", "NOT"], ["17", "degraded"], ["0", "ready"]]
    assert f"and {5_000 - ROWS_MAX:,} partitions more, all of them well (--all shows all)" in lines


def test_what_commits_need_is_shown_if_somebody_requires_anything() -> None:
    status = cluster([partition(0)])
    assert not any("need" in line for line in text_of(list(screen_of(status))))
    assert (status.document()["required"], status.document()["topics_required"]) == ("", {})
    assert status.description is not None
    names = [f"t{number}" for number in range(5)]
    wanted = replace(status.description, topics={name: (number,) for number, name in enumerate(names)})
    wanted = wanted.requiring(2, 2)
    for name in names:
        wanted = wanted.requiring(0 if name == "t0" else 3, 0, name)
    status = replace(status, description=wanted)
    assert [line for line in text_of(list(screen_of(status))) if line.startswith(("commits", "and to"))] == [
        "commits need 2 copies in 2 zones",
        *(f"commits to topic t{number} need 3 copies" for number in (1, 2, 3)),
        "and to 1 topic more: see `polonaise topic list`",
    ]
    assert status.document()["required"] == "2 copies in 2 zones"
    assert status.document()["topics_required"] == dict.fromkeys(names[1:], "3 copies")


def test_all_that_is_wrong_with_a_row_is_shown_when_all_is_asked_for_and_its_cause_else() -> None:
    told = ["server b is not registered", "the clock of this server is off"]
    status = replace(cluster([partition(0)]), servers=[ServerStatus(1, "s:1", False, 0, told=told, unable=told[1:])])
    short, whole = ("\n".join(text_of(list(screen_of(status, rows)))) for rows in (ROWS_MAX, None))
    assert "has left the servers that may own partitions: the clock of this server is off (and 1 more)" in short
    assert "server b is not registered" in whole
    assert "more" not in whole


@pytest.mark.slow
def test_all_rows_are_shown_when_they_are_asked_for() -> None:
    lines = text_of(list(screen_of(cluster([partition(number) for number in range(300)]), None)))
    assert sum(" ready " in line for line in lines) == 300
    assert not any("more" in line for line in lines)


def test_what_many_partitions_suffer_from_is_summed_up() -> None:
    lines = text_of(list(screen_of(cluster([partition(number, out="b:1") for number in range(100)]))))
    assert "  100 of them: b:1 is not engaged: [connection_lost] gone" in lines
    assert any("80 of them not well" in line for line in lines)


def test_on_a_narrow_terminal_reasons_are_cut_and_addresses_are_not() -> None:
    screen = screen_of(cluster([partition(number, out="b:1") for number in range(3)]))
    lines = text_of(list(screen), 80)
    row = next(line for line in lines if line.strip().startswith("0  degraded"))
    assert "2, 1 out" in row
    assert " b:1 is" in row
    assert row.endswith("…")
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("width", [60, 66, 70, 80, 120])
def test_on_a_terminal_of_any_width_numbers_are_whole_and_what_is_cut_is_marked(width: int) -> None:
    names = [f"storage-{number}.a-rather-long-domain.example.com:17100" for number in range(3)]
    whole = Condition(1234, 2, True, 123_456_789_012, names, {}, "", {}, None, "", 4321, 8765, [])
    status = cluster([PartitionStatus(1234, Owner(77, "s:1", 4321), whole), partition(1, out="b:1")])
    status = replace(status, storage=[StorageStatus(name, name, "no answer") for name in names])
    lines = text_of(list(screen_of(status)), width)
    row = next(line for line in lines if line.split()[:1] == ["1234"]).split()
    assert {"1234", "77", "4321", "8765", "123456789012"} <= set(row)
    tables = [line for line in lines if not line.startswith(("cluster", "coordinator", "2 partitions"))]
    assert all(len(line) <= width for line in tables)
    for name in names:
        shown = next(line.split()[0] for line in tables if line.split()[:1] and line.startswith(name[:9]))
        assert shown == name or (shown.endswith("…") and name.startswith(shown[:-1]))


def test_where_not_even_the_numbers_fit_they_are_marked_as_cut() -> None:
    row = ("a", 123_456_789_012, "b")
    (_, line) = text_of([table_of(["name", "count", "why"], [row], right=(1,), lines=True)], 14)
    assert line.split() == ["a", "12…", "b"]


def test_the_key_of_a_cluster_is_not_shown_whole() -> None:
    assert text_of(list(screen_of(cluster([partition(0)]))))[0] == "cluster 00000000: DEGRADED"


def test_a_table_that_fits_is_not_cut() -> None:
    lines = text_of(
        [table_of(["name", "count", "why"], [("a", 1, "b"), ("c", 22, "d" * 20)], right=(1,), lines=True)], 33
    )
    assert [line.rstrip() for line in lines] == ["name  count  why", "a         1  b", "c        22  " + "d" * 20]


async def test_what_a_node_says_does_not_steer_the_terminal_that_is_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ended(Exception):
        pass

    class Observer:
        looks = 0

        async def look(self) -> ClusterStatus:
            self.looks += 1
            if self.looks > 1:
                raise Ended
            return cluster([partition(0)], CoordinatorUnavailable("\x1b]0;owned\x07 [bold]gone"))

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    with pytest.raises(Ended):
        await _watch(Observer(), 0.0, all_rows=False, as_json=False)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert "\x1b]0;" not in printed
    assert "\x07" not in printed
    assert r"\x1b]0;owned\x07 [bold]gone" in printed


@pytest.mark.parametrize("height", [12, 24, 50])
def test_a_screen_fits_the_terminal(height: int) -> None:
    screen = fitting(cluster([partition(number) for number in range(1_000)]), height, 200)
    if height > 15:
        assert len(text_of(list(screen))) <= height


@pytest.mark.slow
def test_lines_that_are_wrapped_count_as_often_as_they_are_drawn() -> None:
    error = CoordinatorUnavailable("a reason that takes many words and more than one line " * 6)
    screen = fitting(cluster([partition(number) for number in range(1_000)], error), 30, 60)
    assert len(text_of(list(screen), 60)) <= 30


def test_a_coordinator_that_is_not_read_is_said_at_the_top() -> None:
    status = cluster([partition(0)], CoordinatorUnavailable("gone"))
    lines = text_of(list(screen_of(status)))
    assert "DEGRADED" in lines[0], "its partition is ready"
    assert "[coordinator_unavailable] gone" in lines[1]
    assert "said last" in lines[2]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (2**40, "1.0 TiB"), (300 * 2**30, "300 GiB")]
)
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert size(count) == text


def test_copies_that_were_given_up_are_told_apart_and_what_is_not_known_is_told_as_that() -> None:
    whole = StorageStatus("a", "a:1", partitions=5, known=5)
    fewer = StorageStatus("b", "b:1", partitions=5, known=8)
    unsure = StorageStatus("c", "c:1", partitions=None, known=8)
    silent = StorageStatus("d", "d:1", "no answer")
    shown = [row[3] for row in storage_rows([whole, fewer, unsure, silent]).rows]
    assert shown == ["5", "5, 3 given up", "8 at most", "unknown"]
    assert [each.document()["given_up"] for each in (whole, fewer, unsure, silent)] == [0, 3, None, None]


def test_an_owner_is_shown_by_its_name() -> None:
    named = replace(partition(0), owner_name="till")
    rows = partition_rows([named, partition(1)]).rows
    assert [row[2] for row in rows] == ["till", 1]
    assert named.document()["owner"] == {"server": 1, "name": "till", "address": "s:1"}


def test_a_server_that_does_not_reach_a_storage_node_is_named() -> None:
    expected = ExpectedServers({"till": ExpectedServer(1, "s:1")})
    status = StorageStatus("a", "a:1", not_connected={1: "gone", 2: "gone"}, server_names=expected)
    assert status.troubles == ["server 1 (till) does not reach it: gone", "server 2 does not reach it: gone"]


def test_what_an_older_coordinator_tells_of_partitions_is_said_to_be_what_it_holds() -> None:
    status = cluster([partition(0)])
    assert not any("may not be so" in line for line in text_of(list(screen_of(status))))
    lines = text_of(list(screen_of(replace(status, belief=Belief("it is not believed by server 3")))))
    assert lines[1:3] == [
        "coordinator zookeeper://z:1/bank: it is not believed by server 3",
        "which partitions, servers and owners there are is below as it holds it, and may not be so",
    ]

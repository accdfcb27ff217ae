"""Rows of a DataFrame: what the sink takes, in which partition it puts it, and what it refuses by name."""

from __future__ import annotations

from typing import Any
from uuid import UUID
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from polonaise.client.protocol.draft import Limits
from polonaise.client.protocol.locks import Lock
from polonaise.errors import BodyTooLarge, TooManyLocks, UnknownPartition
from polonaise.spark.rows import RowColumns, SinkColumns, divided, sink_columns
from polonaise.terms import LockMode
from rigs.faults import raises_code

LIMITS = Limits(body_bytes_max=8, locks_max=2)
_UUID = UUID("01234567-89ab-cdef-0123-456789abcdef")
LOCKS = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))


def schema(ddl: str) -> StructType:
    """Without a session, which `StructType.fromDDL` needs."""

    def kind(word: str) -> Any:
        """`locks` has ids that are long, `locks:string` others."""
        if not word.startswith("locks"):
            return word
        return {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": [
            {"name": "name", "type": "string", "nullable": True, "metadata": {}},
            {"name": "id", "type": word.partition(":")[2] or "long", "nullable": True, "metadata": {}},
        ]}}  # fmt: skip

    fields = [each.split() for each in ddl.split(",")]
    return StructType.fromJson(
        {"fields": [{"name": n, "type": kind(t), "nullable": True, "metadata": {}} for n, t in fields]}
    )


def columns(ddl: str, partition_by: str | None = None) -> SinkColumns:
    return sink_columns(schema(ddl), partition_by)


def divide(columns: SinkColumns, partitions: int = 4, **values: Any) -> dict[int, RowColumns]:
    return dict(divided(pa.RecordBatch.from_pydict(values), columns, partitions, LIMITS))


def bodies(piece: RowColumns) -> list[bytes]:
    ends = piece.lengths.cumsum().tolist()
    return [bytes(piece.data[start:stop]) for start, stop in zip([0, *ends], ends, strict=False)]


# ------------------------------------------------------------------ columns


def test_the_columns_of_a_sink_are_data_and_at_will_header_partition_and_locks() -> None:
    assert columns("data binary") == SinkColumns()
    assert columns("locks locks,partition short,data string,header long") == SinkColumns(True, True, True)
    assert columns("data binary,account string", "account") == SinkColumns(partition_by="account")
    assert columns("data binary,header integer", "header") == SinkColumns(header=True, partition_by="header")


@pytest.mark.parametrize(
    ("ddl", "partition_by", "words"),
    [
        ("header integer", None, "no column data"),
        ("data integer", None, "data is int"),
        ("data binary,header string", None, "header is string"),
        ("data binary,header double", None, "header is double"),
        ("data binary,partition string", None, "partition is string"),
        ("data binary,locks string", None, "locks is string"),
        ("data binary,locks locks:double", None, "with the id as string, or as binary for UUIDs"),
        ("data binary,headr integer", None, "did you mean header"),
        ("data binary,DATA binary", None, "no column 'DATA'"),
        ("Data binary,DATA binary", None, "no column data"),
        ("data binary,HEADER string", None, "header is string"),
        ("data binary,Header integer,HEADER integer", None, "did you mean header"),
        ("data binary,account string", None, "no column 'account'"),
        ("data binary,account double", "account", "account is double"),
        ("data binary", "account", "no such column"),
        ("data binary,partition integer,account string", "account", "keep one of them"),
        ("data binary,locks locks", "locks", "one value in each row"),
        ("data binary,data binary", None, "twice"),
    ],
)
def test_other_columns_are_refused_by_name(ddl: str, partition_by: str | None, words: str) -> None:
    with raises_code("bad_columns", match=words):
        columns(ddl, partition_by)


def test_a_column_is_found_by_its_name_in_any_case_as_spark_finds_it() -> None:
    found = columns("DATA binary,Header integer,Account string", "account")
    assert (found.header, found.partition, found.partition_by) == (True, False, "account")
    same = columns("data binary,header integer,account string", "account")
    given = {"data": [b"a", b"bb"], "header": [1, -2], "account": ["x", "y"]}
    wanted = divide(same, **given)
    pieces = divide(found, DATA=given["data"], Header=given["header"], Account=given["account"])
    assert {at: (bodies(piece), piece.headers.tolist()) for at, piece in pieces.items()} == {
        at: (bodies(piece), piece.headers.tolist()) for at, piece in wanted.items()
    }


# ------------------------------------------------------------------ partitions


def test_rows_go_to_the_partitions_that_they_name_in_their_order() -> None:
    found = divide(
        columns("data binary,header integer,partition integer"),
        data=[b"a", b"bb", b"", b"d"],
        header=[1, -2, 3, 4],
        partition=[2, 0, 2, 0],
    )
    assert {partition: bodies(piece) for partition, piece in found.items()} == {0: [b"bb", b"d"], 2: [b"a", b""]}
    assert found[0].headers.tolist() == [-2, 4]
    assert found[2].crcs.tolist() == [crc32(b"a"), crc32(b"")]


def test_without_a_partition_column_the_data_decides_the_partition() -> None:
    rows = [b"%d" % n for n in range(100)]
    alone = {row: partition for row in rows for partition in divide(columns("data binary"), data=[row])}
    together = divide(columns("data binary"), data=rows)
    assert {row: partition for partition, piece in together.items() for row in bodies(piece)} == alone
    assert set(alone.values()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.string(), ["x", None, "x", "y"]), (pa.binary(), [b"x", None, b"x", b"y"]), (pa.int32(), [7, None, 7, 8])],
    ids=["string", "binary", "integer"],
)
def test_rows_of_one_key_go_to_one_partition(kind: pa.DataType, keys: list[Any]) -> None:
    sink = SinkColumns(partition_by="key")
    found = divide(sink, 1_000, data=[b"a", b"b", b"c", b"d"], key=pa.array(keys, kind))
    where = {body: partition for partition, piece in found.items() for body in bodies(piece)}
    assert where[b"a"] == where[b"c"] != where[b"d"]
    assert where[b"b"] == 0, "all nulls are one key"


def test_an_integer_key_counts_by_its_value_and_not_by_its_width() -> None:
    sink = SinkColumns(partition_by="key")
    wide, narrow = (divide(sink, 1_000, data=[b"a"], key=pa.array([7], kind)) for kind in (pa.int64(), pa.int8()))
    assert wide.keys() == narrow.keys()


def test_strings_are_their_utf_8_and_slices_of_batches_are_read_from_their_place() -> None:
    batch = pa.RecordBatch.from_pydict({"data": ["left out", "ä", "b"]}).slice(1)
    ((_, piece),) = divided(batch, SinkColumns(), 1, LIMITS)
    assert bodies(piece) == ["ä".encode(), b"b"]


# ------------------------------------------------------------------ locks


def test_locks_are_for_appending() -> None:
    ((_, piece),) = divide(
        columns("data binary,locks locks"),
        1,
        data=[b"a", b"b", b"c"],
        locks=pa.array([[{"name": "account", "id": 7}, {"name": "account", "id": 8}], None, []], LOCKS),
    ).items()
    locks = [Lock("account", number, LockMode.APPEND) for number in (7, 8)]
    assert piece.locks == [b"".join(locks), b"", b""]


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        ("long", 7, 7),
        ("short", 7, 7),
        ("string", "7", "7"),
        ("string", "seat 12 ä", "seat 12 ä"),
        ("string", "", ""),
        ("binary", _UUID.bytes, _UUID),
    ],
)
def test_locks_are_the_very_ones_of_clients_in_python(kind: str, given: Any, meant: Any) -> None:
    """A number, a text or a UUID: each is another lock, as it is there."""
    assert columns(f"data binary,locks locks:{kind}") == SinkColumns(locks=True)
    arrow = {"long": pa.int64(), "short": pa.int16(), "string": pa.string(), "binary": pa.binary()}[kind]
    locks = pa.list_(pa.struct([("name", pa.string()), ("id", arrow)]))
    ((_, piece),) = divide(
        SinkColumns(locks=True), 1, data=[b"a"], locks=pa.array([[{"name": "account", "id": given}]], locks)
    ).items()
    assert piece.locks == [bytes(Lock("account", meant, LockMode.APPEND))]


# ------------------------------------------------------------------ rows that are refused


def _locks(*locks: Any) -> pa.Array:
    return pa.array([list(locks)], LOCKS)


REFUSED: dict[str, tuple[SinkColumns, dict[str, Any], str, str]] = {
    "no data": (SinkColumns(), {"data": pa.array([b"a", None], pa.binary())}, "bad_row", "no data"),
    "no header": (SinkColumns(header=True), {"header": pa.array([None], pa.int32())}, "bad_row", "no header"),
    "a header of more than 32 bits": (SinkColumns(header=True), {"header": [2**31]}, "bad_row", "2147483648"),
    "no partition": (SinkColumns(partition=True), {"partition": pa.array([None], pa.int32())}, "bad_row", "no partit"),
    "a partition below 0": (SinkColumns(partition=True), {"partition": [-1]}, UnknownPartition.code, "0 to 3"),
    "a partition beyond": (SinkColumns(partition=True), {"partition": [4]}, UnknownPartition.code, "0 to 3"),
    "a body past the limit": (SinkColumns(), {"data": [b"123456789"]}, BodyTooLarge.code, "9 bytes"),
    "too many locks": (
        SinkColumns(locks=True),
        {"locks": _locks(*[{"name": "a", "id": 1}] * 3)},
        TooManyLocks.code,
        "3 l",
    ),
    "no lock": (SinkColumns(locks=True), {"locks": _locks(None)}, "bad_row", "lock"),
    "a lock without a name": (SinkColumns(locks=True), {"locks": _locks({"name": None, "id": 1})}, "bad_row", "lock"),
    "a lock without an id": (SinkColumns(locks=True), {"locks": _locks({"name": "a", "id": None})}, "bad_row", "lock"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_row_that_the_log_can_not_take_is_refused(what: str) -> None:
    sink, row, code, told = REFUSED[what]
    with raises_code(code, match=told):
        divide(sink, **{"data": [b"a"], **row})


@pytest.mark.parametrize("id", [b"", bytes(15), bytes(17)])
def test_a_binary_id_of_a_lock_that_is_no_uuid_is_refused(id: bytes) -> None:
    locks = pa.list_(pa.struct([("name", pa.string()), ("id", pa.binary())]))
    with raises_code("bad_row", match=f"an id of {len(id)} bytes: as binary it is a UUID of 16"):
        divide(SinkColumns(locks=True), data=[b"a"], locks=pa.array([[{"name": "a", "id": id}]], locks))

"""A decoder changes nothing on the way: what does not fit a column as it is, is undecodable, and never bent to fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from io import BytesIO
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf.struct_pb2 import ListValue, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from polonaise.errors import BadOption
from polonaise.spark.jsonbodies import JsonBodies
from rigs.faults import raises_code
from rigs.spark import columns, decoded_rows

FLOAT, DOUBLE, INT, TEXT = pa.float32(), pa.float64(), pa.int32(), pa.string()
ZONED, UNZONED, DAY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
NOON = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - without a zone it is what `timestamp_ntz` holds
CORRUPT = object()


def a(kind: pa.DataType, bodies: list[bytes], **options: Any) -> list[Any]:
    """The column `a` of these bodies, `CORRUPT` for one that is undecodable: decoded together, and each alone."""
    schema = columns(a=kind, _corrupt=pa.binary())
    together = decoded_rows(bodies, schema, failOnDecodeError=False, **options)
    alone = [decoded_rows([body], schema, failOnDecodeError=False, **options)[0] for body in bodies]
    assert together == alone
    assert all(row["_corrupt"] in (None, body) for row, body in zip(alone, bodies, strict=True))
    return [row["a"] if row["_corrupt"] is None else CORRUPT for row in alone]


def of_json(kind: pa.DataType, *values: str) -> list[Any]:
    return a(kind, [b'{"a": %s}' % value.encode() for value in values])


def of_msgpack(kind: pa.DataType, *values: Any) -> list[Any]:
    return a(kind, [msgpack.packb({"a": value}, datetime=True) for value in values], decoder="msgpack")


def of_python(kind: pa.DataType, *values: Any) -> list[Any]:
    """By a function of one's own, which returns just these."""
    VALUES[:] = values
    return a(kind, [b"%d" % place for place in range(len(values))], decoder=f"{__name__}:value_at")


VALUES: list[Any] = []


def value_at(body: bytes) -> dict[str, Any]:
    return {"a": VALUES[int(body)]}


# ------------------------------------------------------------------ numbers


def test_a_number_that_is_too_large_for_a_float_is_undecodable() -> None:
    assert of_json(FLOAT, "1e39", "-1e39", "1e400", "1.5", "3.4028235e38", "null") == [
        CORRUPT, CORRUPT, CORRUPT, 1.5, 3.4028234663852886e38, None,
    ]  # fmt: skip
    assert of_json(DOUBLE, "1e400", "-1e400", "1e308") == [CORRUPT, CORRUPT, 1e308]
    assert of_json(pa.list_(FLOAT), "[1, 1e39]", "[1, null]", "null") == [CORRUPT, [1, None], None]
    assert of_json(pa.struct([("b", pa.list_(FLOAT))]), '{"b": [1e39]}', '{"b": [1]}') == [CORRUPT, {"b": [1]}]
    assert of_json(pa.map_(TEXT, FLOAT), '{"x": 1e39}', '{"x": 1e400}', '{"x": 1}') == [CORRUPT, CORRUPT, [("x", 1)]]
    assert of_json(pa.map_(TEXT, DOUBLE), '{"x": -1e400}', '{"x": 1e39}') == [CORRUPT, [("x", 1e39)]]


def test_a_number_that_is_too_large_for_a_float_is_undecodable_in_messagepack_and_infinity_is_not() -> None:
    assert of_msgpack(FLOAT, 1e39, -1e39, 1.5, float("inf")) == [CORRUPT, CORRUPT, 1.5, float("inf")]
    assert of_msgpack(pa.map_(TEXT, DOUBLE), {"x": float("-inf")}, {"x": 1e39}) == [
        [("x", float("-inf"))], [("x", 1e39)],
    ]  # fmt: skip


def test_the_least_number_that_overflows_a_float_is_told_from_the_largest_that_does_not() -> None:
    least = float(2**128 - 2**103)
    assert of_msgpack(FLOAT, least, least - 2.0**80) == [CORRUPT, 3.4028234663852886e38]


def test_a_boolean_is_no_number() -> None:
    for kind in (INT, FLOAT, DOUBLE):
        assert of_json(kind, "true", "1") == [CORRUPT, 1]
        assert of_json(pa.map_(TEXT, kind), '{"x": true}', '{"x": 1}') == [CORRUPT, [("x", 1)]]
        assert of_msgpack(kind, True, 1) == [CORRUPT, 1]
    assert of_json(pa.map_(TEXT, pa.bool_()), '{"x": 1}', '{"x": true}') == [CORRUPT, [("x", True)]]


def test_nan_and_infinity_are_no_json() -> None:
    for word in ("NaN", "Infinity", "-Infinity", "Inf", "-Inf"):
        assert of_json(DOUBLE, word, "1") == [CORRUPT, 1]
        assert of_json(pa.map_(TEXT, DOUBLE), f'{{"x": {word}}}', "{}") == [CORRUPT, []]
        assert of_json(INT, f'1, "passed over": {word}', f'1, "passed over": "{word}"') == [CORRUPT, 1]
    assert of_json(TEXT, '"NaN"', '"Inf"') == ["NaN", "Inf"]


def test_a_fraction_is_no_whole_number_wherever_it_is() -> None:
    assert of_msgpack(INT, 1.0, 1) == [CORRUPT, 1]
    assert of_python(pa.struct([("b", INT)]), {"b": 1.5}, [("b", 1.5)], (1,), {"b": 1}) == [
        CORRUPT, CORRUPT, CORRUPT, {"b": 1},
    ]  # fmt: skip


def test_a_text_is_no_list_of_its_letters() -> None:
    assert of_msgpack(pa.list_(TEXT), "ab", b"ab", ["ab"]) == [CORRUPT, CORRUPT, ["ab"]]
    assert of_json(pa.map_(TEXT, pa.list_(TEXT)), '{"x": "ab"}', '{"x": ["ab"]}') == [CORRUPT, [("x", ["ab"])]]


# ------------------------------------------------------------------ what is said twice


def test_a_key_that_is_twice_in_a_map_is_undecodable() -> None:
    kind = pa.map_(TEXT, INT)
    assert of_json(kind, '{"x": 1, "x": 2}', '{"x": 1, "y": 1}') == [CORRUPT, [("x", 1), ("y", 1)]]
    assert of_json(kind, '{"x": 1, "\\u0078": 1}') == [CORRUPT]
    twice = b"\x81\xa1a\x82\xa1x\x01\xa1x\x02"
    assert a(kind, [twice, msgpack.packb({"a": {"x": 1}})], decoder="msgpack") == [CORRUPT, [("x", 1)]]
    assert of_python(kind, [("x", 1), ("x", 2)], [("x", 1), ("y", 2)], {"x": 1, b"x": 2}) == [
        CORRUPT, [("x", 1), ("y", 2)], CORRUPT,
    ]  # fmt: skip


def test_a_column_that_is_twice_in_a_body_is_undecodable_and_what_no_column_asks_for_is_passed_over() -> None:
    for kind, value in ((INT, "1"), (pa.map_(TEXT, INT), '{"x": 1}'), (pa.struct([("b", INT)]), '{"b": 1, "b": 1}')):
        assert of_json(kind, f'{value}, "a": {value}') == [CORRUPT]
    for kind, value, read in ((INT, "1", 1), (pa.map_(TEXT, INT), "{}", []), (pa.struct([("b", INT)]), "null", None)):
        assert of_json(kind, f'{value}, "z": 1, "z": 2') == [read]
    inside = pa.map_(TEXT, pa.struct([("b", INT)]))
    assert of_json(inside, '{"x": {"b": 1, "b": 2}}', '{"x": {"b": 1, "z": 1, "z": 2}}') == [
        CORRUPT, [("x", {"b": 1})],
    ]  # fmt: skip
    twice = b"\x82\xa1a\x01\xa1a\x02"
    assert a(INT, [twice, b"\x83\xa1a\x01\xa1z\x01\xa1z\x02"], decoder="msgpack") == [CORRUPT, 1]


# ------------------------------------------------------------------ dates and times


def test_a_timestamp_without_a_zone_is_undecodable() -> None:
    said = ['"2026-01-31T12:00:00Z"', '"2026-01-31T13:00:00+01:00"', '"2026-01-31T12:00:00"', '"2026-01-31"', "7"]
    read = [NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), CORRUPT, CORRUPT, CORRUPT]
    assert of_json(ZONED, *said) == read
    assert of_json(pa.list_(ZONED), *(f"[{each}]" for each in said)) == [
        each if each is CORRUPT else [each] for each in read
    ]
    assert of_python(ZONED, NOON.replace(tzinfo=UTC), NOON, 7, NOON.date()) == [
        NOON.replace(tzinfo=UTC), CORRUPT, CORRUPT, CORRUPT,
    ]  # fmt: skip


def test_a_timestamp_ntz_with_a_zone_is_undecodable() -> None:
    assert of_json(UNZONED, '"2026-01-31T12:00:00"', '"2026-01-31T12:00:00Z"', '"2026-01-31T12:00:00+01:00"') == [
        NOON, CORRUPT, CORRUPT,
    ]  # fmt: skip
    assert of_python(UNZONED, NOON, NOON.replace(tzinfo=UTC), 7) == [NOON, CORRUPT, CORRUPT]


def test_a_date_with_a_time_is_undecodable() -> None:
    assert of_json(DAY, '"2026-01-31"', '"2026-01-31T12:00:00Z"', '"2026-01-31T00:00:00"', '"2026-02-30"', "5") == [
        NOON.date(), CORRUPT, CORRUPT, CORRUPT, CORRUPT,
    ]  # fmt: skip
    assert of_json(pa.struct([("b", DAY)]), '{"b": "2026-01-31"}', '{"b": "2026-01-31T12:00:00Z"}') == [
        {"b": NOON.date()}, CORRUPT,
    ]  # fmt: skip
    assert of_python(DAY, NOON.date(), NOON, 5) == [NOON.date(), CORRUPT, CORRUPT]


def test_times_and_intervals_of_a_function_of_ones_own() -> None:
    assert of_python(pa.time64("ns"), time(1, 2), 7) == [time(1, 2), CORRUPT]
    assert of_python(pa.duration("us"), timedelta(days=1), 7) == [timedelta(days=1), CORRUPT]


AVRO = {
    "type": "record", "name": "At", "fields": [
        {"name": "a", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "of", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "rate", "type": "double"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "read"),
    [
        ("a", ZONED, NOON.replace(tzinfo=UTC)), ("a", UNZONED, CORRUPT), ("a", DAY, CORRUPT),
        ("local", UNZONED, NOON), ("local", ZONED, CORRUPT), ("day", DAY, NOON.date()), ("day", ZONED, CORRUPT),
        ("of", pa.time64("ns"), time(12)), ("rate", FLOAT, CORRUPT), ("rate", DOUBLE, 1e39), ("rate", INT, CORRUPT),
    ],
)  # fmt: skip
def test_avro_is_as_strict(name: str, kind: pa.DataType, read: Any) -> None:
    sink = BytesIO()
    row = {"a": NOON.replace(tzinfo=UTC), "local": NOON, "day": NOON.date(), "of": time(12), "rate": 1e39}
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), row)
    schema = columns(**{name: kind, "_corrupt": pa.binary()})
    (found,) = decoded_rows(
        [sink.getvalue()], schema, decoder="avro", decoder__schema=json.dumps(AVRO), failOnDecodeError=False
    )
    assert (found[name] if found["_corrupt"] is None else CORRUPT) == read


def test_protocol_buffers_are_as_strict() -> None:
    schema = columns(number_value=FLOAT, _corrupt=pa.binary())
    told = {"decoder": "protobuf", "decoder__message": "google.protobuf.struct_pb2:Value", "failOnDecodeError": False}
    bodies = [Value(number_value=number).SerializeToString() for number in (1.5, 1e39)]
    rows = decoded_rows(bodies, schema, **told)
    assert [(row["number_value"], row["_corrupt"]) for row in rows] == [(1.5, None), (None, bodies[1])]
    listed = ListValue(values=[Value(number_value=1.5)]).SerializeToString()
    schema = columns(values=pa.list_(pa.struct([("number_value", INT)])), _corrupt=pa.binary())
    (row,) = decoded_rows([listed], schema, **{**told, "decoder__message": "google.protobuf.struct_pb2:ListValue"})
    assert row["_corrupt"] == listed


# ------------------------------------------------------------------ columns that no body could fill


@pytest.mark.parametrize(
    ("decoder", "kind", "said"),
    [
        ("json", TimeType(), r"a is time\(6\), which decoder=json does not make.*string; there are boolean, .*, map"),
        ("json", NullType(), "a is void"),
        ("json", DayTimeIntervalType(), "a is interval day to second"),
        ("json", YearMonthIntervalType(), "a is interval year to month"),
        ("json", VariantType(), "a is variant"),
        ("json", VarcharType(2), r"a is varchar\(2\), which .* read it as another type, such as string"),
        ("json", CharType(2), r"a is char\(2\)"),
        ("json", ArrayType(StructType([StructField("b", VarcharType(2))])), r"a holds varchar\(2\)"),
        ("json", MapType(IntegerType(), LongType()), r"a is map<int,bigint>, and .* keys of a map are texts"),
        ("json", MapType(StringType(), TimeType()), r"a holds time\(6\)"),
        ("msgpack", DateType(), "a is date"),
        ("msgpack", TimestampNTZType(), "a is timestamp_ntz"),
        ("msgpack", MapType(LongType(), LongType()), "a is map<bigint,bigint>, and .* keys of a map are texts"),
        ("avro", DayTimeIntervalType(), "a is interval"),
        ("avro", MapType(LongType(), LongType()), "a is map<bigint,bigint>, and .* keys of a map are texts"),
        ("protobuf", TimestampType(), "a is timestamp"),
        (f"{__name__}:value_at", NullType(), "a is void"),
        (f"{__name__}:value_at", VarcharType(2), "a is varchar"),
    ],
)  # fmt: skip
def test_a_column_that_the_decoder_never_makes_is_refused_before_a_job_starts(
    decoder: str, kind: DataType, said: str
) -> None:
    with pytest.raises(BadOption, match=f"decoderSchema: {said}"):
        decoded_rows([], StructType([StructField("a", kind)]), decoder=decoder)


# ------------------------------------------------------------------ whatever it raises, and however many


def leaves(body: bytes) -> dict[str, Any]:
    RAISES[body]()
    return {"a": 1}


class Panic(BaseException):
    """As extension modules raise it."""


def interrupt() -> None:
    raise KeyboardInterrupt


def panic() -> None:
    raise Panic


RAISES: Mapping[bytes, Callable[[], Any]] = {
    b"good": int, b"exit": lambda: sys.exit(3), b"interrupt": interrupt, b"panic": panic,
}  # fmt: skip


def test_a_decoder_that_calls_exit_makes_the_body_undecodable() -> None:
    told = {"decoder": f"{__name__}:leaves"}
    assert a(INT, [b"good", b"exit", b"panic", b"good"], **told) == [1, CORRUPT, CORRUPT, 1]
    with raises_code("body_undecodable", match=r"transaction 101 .*SystemExit\(3\)"):
        decoded_rows([b"good", b"exit"], columns(a=INT), **told)


def test_an_interrupt_in_a_decoder_is_no_matter_of_the_body() -> None:
    with pytest.raises(KeyboardInterrupt):
        decoded_rows(
            [b"interrupt"],
            columns(a=INT, _corrupt=pa.binary()),
            decoder=f"{__name__}:leaves",
            onUndecodable="column",
        )


CALLS: list[bytes] = []


def counted(body: bytes) -> dict[str, Any]:
    CALLS.append(body)
    return {"a": int(body)}


def test_many_undecodable_bodies_cost_a_function_one_call_each() -> None:
    CALLS.clear()
    bodies = [b"x" if place % 3 else b"%d" % place for place in range(99)]
    assert a(INT, bodies, decoder=f"{__name__}:counted") == [CORRUPT if place % 3 else place for place in range(99)]
    assert bodies * 2 == CALLS  # together, and each alone


@pytest.mark.parametrize("share", [1, 2, 50])
def test_many_undecodable_bodies_are_found_with_few_readings(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading has a price of its own, whatever it reads."""
    readings: list[int] = []
    columns_of = JsonBodies.columns
    monkeypatch.setattr(
        JsonBodies, "columns", lambda self, found: readings.append(len(found)) or columns_of(self, found)
    )
    count = 1024
    bodies = [b'{"a": "text"}' if place % share == 0 else b'{"a": %d}' % place for place in range(count)]
    rows = decoded_rows(bodies, columns(a=INT, _corrupt=pa.binary()), failOnDecodeError=False)
    assert [row["_corrupt"] is not None for row in rows] == [place % share == 0 for place in range(count)]
    assert len(readings) <= 1.5 * count
    readings.clear()
    rows = decoded_rows([b"no JSON"] * count, columns(a=INT, _corrupt=pa.binary()), failOnDecodeError=False)
    assert all(row["_corrupt"] == b"no JSON" for row in rows)
    assert len(readings) <= 1


def test_undecodable_bodies_can_be_asked_for_without_the_columns() -> None:
    schema = columns(_corrupt=pa.binary())
    good = {"json": b"{}", "msgpack": b"\x80", f"{__name__}:counted": b"7"}
    for decoder, body in good.items():
        rows = decoded_rows([body, b"\xff", body], schema, decoder=decoder, failOnDecodeError=False)
        assert [row["_corrupt"] for row in rows] == [None, b"\xff", None]
        assert decoded_rows([body], schema, decoder=decoder, failOnDecodeError=False) == [{"_corrupt": None}]


def test_of_several_undecodable_bodies_the_first_is_named() -> None:
    for first, second in ((b'{"a": "x"}', b"no JSON"), (b"no JSON", b'{"a": "x"}')):
        with raises_code("body_undecodable", match="transaction 101 "):
            decoded_rows([b"{}", first, second], columns(a=INT))
    with raises_code("body_undecodable", match="transaction 101 "):
        decoded_rows([msgpack.packb({}), msgpack.packb({"a": "x"}), b""], columns(a=INT), decoder="msgpack")


values = st.sampled_from(
    ["1", "1e39", "1e400", "NaN", "-Inf", "true", '"NaN"', '"2026-01-31"', '"2026-01-31T12:00:00Z"', "null", "[1]",
     '{"x": 1}', '{"x": 1, "x": 2}', "{}, ", "{"]
)  # fmt: skip


@settings(max_examples=25)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdz"), values), max_size=3), max_size=20))
def test_what_stands_around_a_strict_body_never_changes_how_it_reads(listed: list[list[tuple[str, str]]]) -> None:
    schema = columns(a=FLOAT, b=ZONED, c=DAY, d=pa.map_(TEXT, DOUBLE), _corrupt=pa.binary())
    bodies = [b"{%s}" % ", ".join(f'"{key}": {value}' for key, value in each).encode() for each in listed]
    alone = [decoded_rows([body], schema, failOnDecodeError=False)[0] for body in bodies]
    assert decoded_rows(bodies, schema, failOnDecodeError=False) == alone
    for body, row in zip(bodies, alone, strict=True):
        if row["_corrupt"] is None:
            json.loads(body, parse_constant=lambda word: pytest.fail(word))
            assert row["c"] is None or isinstance(row["c"], date)

"""Bodies become columns by whatever they were written with; a body that does not read is named, or put aside."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from polonaise.errors import BadOption, ExtraMissing
from polonaise.spark.options import read_options
from polonaise.spark.schemas import ddl_of
from rigs.faults import raises_code
from rigs.spark import columns, decoded_rows, texts

PAYMENT = columns(id=pa.int64(), name=pa.string())
WHOLE = columns(
    id=pa.int64(), name=pa.string(), amount=pa.decimal128(12, 2), at=pa.timestamp("us", "UTC"), day=pa.date32(),
    open=pa.bool_(), rate=pa.float64(), tags=pa.list_(pa.string()),
    owner=pa.struct([("first", pa.string()), ("ages", pa.list_(pa.int32()))]),
)  # fmt: skip
ID_STRUCT = pa.struct([("id", pa.int64())])
CORRUPT = columns(id=pa.int64(), name=pa.string(), _corrupt=pa.binary())


def decoded(bodies: Sequence[bytes], schema: StructType = PAYMENT, **options: Any) -> list[dict[str, Any]]:
    return decoded_rows(bodies, schema, **options)


# ------------------------------------------------------------------ JSON


def test_json_of_all_types() -> None:
    body = {
        "id": 7, "name": "Zoë", "amount": 12.5, "at": "2026-01-31T12:00:00+01:00", "day": "2026-01-31", "open": True,
        "rate": 0.25, "tags": ["a", None], "owner": {"first": "x", "ages": [1, 2], "more": {}}, "more": [{}, 1],
    }  # fmt: skip
    assert decoded([json.dumps(body, indent=1).encode(), b" {} \n"], WHOLE) == [
        {
            "id": 7, "name": "Zoë", "amount": Decimal("12.50"), "at": datetime(2026, 1, 31, 11, tzinfo=UTC),
            "day": date(2026, 1, 31), "open": True, "rate": 0.25, "tags": ["a", None],
            "owner": {"first": "x", "ages": [1, 2]},
        },
        dict.fromkeys(WHOLE.names),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [("12:00:00.123456789Z", 123456), ("12:00:00.9999999Z", 999999), ("13:00:00.123456789+01:00", 123456)],
)
def test_a_time_with_nanoseconds_is_cut_to_microseconds_in_json_as_in_messagepack(text: str, microsecond: int) -> None:
    schema = columns(
        id=pa.int64(), at=pa.timestamp("us", "UTC"), all=pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))]))
    )
    at = datetime(2026, 1, 31, 12, 0, 0, microsecond, tzinfo=UTC)
    body = {"id": 1, "at": f"2026-01-31T{text}", "all": [None, {"at": f"1969-01-31T{text}"}]}
    assert decoded([json.dumps(body).encode(), b"{}"], schema) == [
        {"id": 1, "at": at, "all": [None, {"at": at.replace(year=1969)}]},
        dict.fromkeys(schema.names),
    ]
    packed = msgpack.packb({"at": msgpack.Timestamp(int(at.timestamp()), microsecond * 1000 + 789)})
    assert decoded([packed], columns(at=pa.timestamp("us", "UTC")), decoder="msgpack") == [{"at": at}]


def test_a_time_with_more_digits_than_nanoseconds_have_does_not_decode() -> None:
    with raises_code("body_undecodable"):
        decoded([b'{"at": "2026-01-31T12:00:00.1234567890Z"}'], columns(at=pa.timestamp("us", "UTC")))


def test_the_reason_why_a_body_does_not_decode_can_be_kept_by_any_table() -> None:
    """It quotes the body, and PostgreSQL has no NUL in texts."""
    decoded_to = pa.struct([("id", pa.int64()), ("name", pa.string())])
    schema = columns(data=pa.binary(), _reason=pa.string(), _decoded=decoded_to)
    bad = [
        b'{"id": "\\u0000\\ud800\\u2028", "name": 7}',
        b'{"id": 1, "na\\u0000me": 1, "na\\u0000me": 2, "id": 2}',
        b"\0",
    ]
    for decoder in ("json", "decoders_of_tests:raises"):
        with pytest.MonkeyPatch.context() as patch:
            module = type(sys)("decoders_of_tests")
            module.raises = lambda body: (_ for _ in ()).throw(ValueError(f"{body!s} is \0 \ud800"))  # type: ignore[attr-defined]
            patch.setitem(sys.modules, "decoders_of_tests", module)
            found = decoded(bad, schema, decoder=decoder, onUndecodable="only")
        assert len(found) >= 2
        assert all(row["_reason"] and row["_reason"].isprintable() for row in found), found


def test_json_objects_as_maps() -> None:
    schema = columns(counts=pa.map_(pa.string(), pa.int64()))
    assert decoded([b'{"counts": {"a": 1, "b": 2}}', b"{}"], schema) == [
        {"counts": [("a", 1), ("b", 2)]},
        {"counts": None},
    ]


JSON_CORRUPT = [
    b"", b" ", b"null", b"7", b"[1]", b'"x"', b'{"id": 1', b'{"id": 1}}', b'{"id": "x"}', b'{"id": 1.5}',
    b'{"id": 99999999999999999999}', b'{"id": 1}{"id": 2}', b'{"id": 1}\n{"id": 2}', b'{"id": 1},"more":{"id": 2}',
    b'{"id": 1} , "more": 3', b'{"id": 1}}{"":{"id": 2}',
    b'{"name": "\xff"}', b'{"id": 1, "id": 2}', b"\x00", b'{"id":',
    b'"}', b'3}',
]  # fmt: skip


@pytest.mark.parametrize("bad", JSON_CORRUPT)
@pytest.mark.parametrize(
    "schema", [CORRUPT, columns(id=pa.int64(), m=pa.map_(pa.string(), pa.string()), _corrupt=pa.binary())]
)
def test_a_body_that_is_no_json_object_of_these_columns_is_put_aside_alone(bad: bytes, schema: StructType) -> None:
    found = decoded([b'{"id": 1}', bad, b'{"id": 3}'], schema, failOnDecodeError=False)
    assert [row["id"] for row in found] == [1, None, 3]
    assert [row["_corrupt"] for row in found] == [None, bad, None]


bodies = st.one_of(
    st.sampled_from(
        [*JSON_CORRUPT, b'{"id": 5}', b'{"id":', b"3}", b'{"id": 1}{"id": 2}', b'{"name": "a", "x": {}, "y": 1}']
    ),
    st.binary(max_size=6),
    st.dictionaries(st.sampled_from(["id", "name", "z"]), st.integers(0, 9) | st.text(max_size=3)).map(
        lambda body: json.dumps(body).encode()
    ),
)


@settings(max_examples=25)
@given(st.lists(bodies, max_size=8))
def test_what_stands_around_a_body_never_changes_how_it_reads(listed: list[bytes]) -> None:
    """One corrupt body may not shift the others, nor two of them make a good one."""
    alone = [decoded([body], CORRUPT, failOnDecodeError=False)[0] for body in listed]
    assert decoded(listed, CORRUPT, failOnDecodeError=False) == alone


def test_an_undecodable_body_is_named_by_its_transaction() -> None:
    with raises_code(
        "body_undecodable", match=r"transaction 101 of partition 4 does not decode by 'json'.*onUndecodable=skip"
    ):
        decoded([b"{}", b"x", b"{}", b"y"])


# ------------------------------------------------------------------ what becomes of bodies that do not decode

ONLY = columns(
    transaction_id=pa.int64(), data=pa.binary(), _reason=pa.string(),
    _decoded=pa.struct([("id", pa.int64()), ("name", pa.string())]),
)  # fmt: skip


@pytest.mark.parametrize("decoder", ["json", "msgpack"])
def test_undecodable_bodies_are_left_out_or_are_all_that_there_is(
    decoder: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack = msgpack.packb if decoder == "msgpack" else lambda value: json.dumps(value).encode()
    bodies = [pack(value) for value in ({"id": 0}, "no object", {"id": 2}, {"id": "x"}, {"id": 4})]
    bad = {101: bodies[1], 103: bodies[3]}
    schema = columns(transaction_id=pa.int64(), id=pa.int64(), name=pa.string())
    found = decoded(bodies, schema, decoder=decoder, onUndecodable="skip")
    assert [(row["transaction_id"], row["id"]) for row in found] == [(100, 0), (102, 2), (104, 4)]
    assert "2 of 5 bodies of partition 4 do not decode and are left out, the first of them transaction 101: " in (
        caplog.text
    )
    found = decoded(bodies, ONLY, decoder=decoder, onUndecodable="only")
    assert {row["transaction_id"]: row["data"] for row in found} == bad
    assert all(row["_reason"] and row["_decoded"] is None for row in found)
    schema = columns(id=pa.int64(), name=pa.string(), _corrupt=pa.binary(), _reason=pa.string())
    told = decoded(bodies, schema, decoder=decoder, onUndecodable="column")
    assert [row["_corrupt"] for row in told] == [None, bad[101], None, bad[103], None]
    assert [row["_reason"] for row in told if row["_reason"] is not None] == [row["_reason"] for row in found]


@pytest.mark.parametrize("mode", ["skip", "only"])
@pytest.mark.parametrize(("bodies", "good"), [([b"{}", b"{}"], 2), ([b"x", b"y", b""], 0)])
def test_a_batch_of_only_good_or_only_bad_bodies_is_decoded(mode: str, bodies: list[bytes], good: int) -> None:
    schema = ONLY if mode == "only" else PAYMENT
    expected = len(bodies) - good if mode == "only" else good
    assert len(decoded(bodies, schema, onUndecodable=mode)) == expected


def test_a_column_that_is_not_null_may_be_missing_where_such_bodies_are_left_out() -> None:
    required = from_arrow_schema(pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    assert decoded([b'{"id": 1}', b"{}"], required, onUndecodable="skip") == [{"id": 1}]
    only = columns(data=pa.binary(), _reason=pa.string(), _decoded=pa.struct([pa.field("id", pa.int64(), False)]))
    (found,) = decoded([b'{"id": 1}', b"{}"], only, onUndecodable="only")
    assert found == {"data": b"{}", "_reason": "id is NOT NULL, and is missing", "_decoded": None}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"onUndecodable": "drop"}, "onUndecodable='drop': write fail, skip, column, only"),
        ({"onUndecodable": "table"}, "table is for polonaise pipeline views"),
        ({"onUndecodable": "skip", "failOnDecodeError": "true"}, "give onUndecodable only"),
    ],
)
def test_invalid_options_of_undecodable_bodies_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        decoded([], **options)
    with pytest.raises(BadOption, match="onUndecodable without a decoder"):
        read_options(texts("embedded:x", {"onUndecodable": "skip"}))
    with pytest.raises(BadOption, match="without the column _decoded"):
        decoded([], columns(data=pa.binary(), _reason=pa.string()), onUndecodable="only")


@pytest.mark.parametrize(
    ("mode", "schema", "said"),
    [
        ("fail", CORRUPT, "fail has no column _corrupt: leave it out, or write onUndecodable=column"),
        ("skip", CORRUPT, "skip has no column _corrupt: leave it out, or write onUndecodable=column"),
        ("only", columns(_decoded=ID_STRUCT, _corrupt=pa.binary()), "only has no column _corrupt"),
        ("only", columns(_decoded=ID_STRUCT, name=pa.string()), "only has no column name: .* write it into _decoded"),
    ],
)
def test_a_column_that_the_choice_does_not_fill_is_refused(mode: str, schema: StructType, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        decoded([b"{"], schema, onUndecodable=mode)


# ------------------------------------------------------------------ NOT NULL


def test_a_column_that_is_not_null_has_to_be_there() -> None:
    schema = from_arrow_schema(pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())]))
    assert decoded([b'{"id": 1}'], schema) == [{"id": 1, "name": None}]
    for bad in (b"{}", b'{"id": null}'):
        with raises_code("body_undecodable", match=r"transaction 101 .*id is NOT NULL"):
            decoded([b'{"id": 1}', bad], schema)
        with raises_code("body_undecodable", match="NOT NULL"):
            decoded([msgpack.packb(json.loads(bad))], schema, decoder="msgpack")


def test_not_null_that_can_not_hold_or_is_not_checked_is_refused() -> None:
    required = pa.field("id", pa.int64(), nullable=False)
    with pytest.raises(BadOption, match="failOnDecodeError"):
        decoded([], from_arrow_schema(pa.schema([required])), failOnDecodeError=False)
    with pytest.raises(BadOption, match="NOT NULL inside owner"):
        decoded([], from_arrow_schema(pa.schema([("owner", pa.struct([required]))])))


# ------------------------------------------------------------------ the others


def test_messagepack() -> None:
    body = {"id": 7, "name": "x", "at": datetime(2026, 1, 31, tzinfo=UTC), "tags": ["a"], "owner": {"ages": [1]}}
    schema = columns(**{name: _arrow(name) for name in body})
    (found,) = decoded([msgpack.packb(body, datetime=True)], schema, decoder="msgpack")
    assert found == {**body, "owner": {"first": None, "ages": [1]}}
    for bad in (b"", b"\xc1", msgpack.packb(7), msgpack.packb([["id", 1]]), msgpack.packb({"id": "x"}), b"\x80\x80"):
        rows = decoded([msgpack.packb({"id": 1}), bad], CORRUPT, decoder="msgpack", failOnDecodeError=False)
        assert [row["_corrupt"] for row in rows] == [None, bad]


def _arrow(name: str) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(WHOLE, timezone="UTC").field(name).type


AVRO = {
    "type": "record", "name": "Payment", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
        {"name": "owner", "type": {"type": "record", "name": "Owner", "fields": [{"name": "first", "type": "string"}]}},
    ],
}  # fmt: skip


def avro(body: dict[str, Any]) -> bytes:
    sink = BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), body)
    return sink.getvalue()


def test_avro(tmp_path: Path) -> None:
    schema = columns(id=pa.int64(), name=pa.string(), owner=pa.struct([("first", pa.string())]))
    body = {"id": 7, "name": None, "owner": {"first": "x"}}
    (tmp_path / "payment.avsc").write_text(json.dumps(AVRO))
    for where in ({"decoder__schema": json.dumps(AVRO)}, {"decoder__schemaFile": tmp_path / "payment.avsc"}):
        said = {key.lower(): value for key, value in where.items()}
        assert decoded([avro(body)], schema, decoder="avro", **said) == [body]
    told = {"decoder": "avro", "decoder__schema": json.dumps(AVRO), "failOnDecodeError": False}
    for bad in (b"", avro(body)[:-1], avro(body) + b"x"):
        assert [row["_corrupt"] for row in decoded([avro(body), bad], CORRUPT, **told)] == [None, bad]


def test_protocol_buffers() -> None:
    """Of messages that the library has itself: fields within fields, repeated ones, and those that are not set."""
    message = DescriptorProto(name="Payment")
    message.field.add(name="id", number=0, type=FieldDescriptorProto.TYPE_INT64)
    message.field.add(name="unset")
    schema = columns(
        name=pa.string(), field=pa.list_(
            pa.struct([("name", pa.string()), ("number", pa.int32()), ("type", pa.int32())])
        ),
        options=pa.struct([("deprecated", pa.bool_())]),
    )  # fmt: skip
    told = {"decoder": "protobuf", "decoder__message": "google.protobuf.descriptor_pb2:DescriptorProto"}
    assert decoded([message.SerializeToString(), b""], schema, **told) == [
        {
            "name": "Payment",
            "field": [{"name": "id", "number": 0, "type": 3}, {"name": "unset", "number": None, "type": None}],
            "options": None,
        },
        {"name": None, "field": [], "options": None},
    ]
    schema = columns(name=pa.string(), _corrupt=pa.binary())
    for bad in (b"\xff", message.SerializeToString()[:-1]):
        rows = decoded([message.SerializeToString(), bad], schema, failOnDecodeError=False, **told)
        assert [row["_corrupt"] for row in rows] == [None, bad]


def test_maps_of_protocol_buffers() -> None:
    body = Struct()
    body.update({"a": 1.5})
    value = pa.struct([("number_value", pa.float64()), ("string_value", pa.string())])
    schema = columns(fields=pa.map_(pa.string(), value))
    (found,) = decoded(
        [body.SerializeToString()], schema, decoder="protobuf", decoder__message="google.protobuf.struct_pb2:Struct"
    )
    assert found == {"fields": [("a", {"number_value": 1.5, "string_value": None})]}


def split_at_comma(body: bytes) -> dict[str, Any]:
    id, name = body.decode().split(",")
    return {"id": int(id), "name": name}


def test_a_function_of_ones_own() -> None:
    assert decoded([b"1,x"], decoder=f"{__name__}:split_at_comma") == [{"id": 1, "name": "x"}]
    assert decoded([b"1,x"], decoder=f"{__name__}.split_at_comma") == [{"id": 1, "name": "x"}]
    rows = decoded([b"1", b"1,x"], CORRUPT, decoder=f"{__name__}:split_at_comma", failOnDecodeError=False)
    assert [row["_corrupt"] for row in rows] == [b"1", None]


# ------------------------------------------------------------------ what is refused before a job starts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decoder": "xml"}, "'xml' is not known: write json, msgpack, avro, protobuf or module:function"),
        ({"decoder": "no.such:thing"}, "can't be imported.*; write json, msgpack, avro, protobuf or module:function"),
        ({"decoder": f"{__name__}:PAYMENT"}, "is no function"),
        ({"decoder": "avro"}, r"decoder\.schema"),
        ({"decoder": "avro", "decoder__schema": "{"}, "holds no Avro schema: "),
        ({"decoder": "avro", "decoder__schemafile": "/no/such/file"}, "holds no Avro schema: "),
        ({"decoder": "protobuf"}, r"decoder\.message"),
        ({"decoder": "protobuf", "decoder__message": "json:loads"}, "no Protocol Buffers message"),
        ({"decoder": "protobuf", "decoder__message": "no.such:Message"}, "can't be imported.*; write module:Name"),
        ({"decoder": "protobuf", "decoder__message": "Message"}, "'Message' is not known: write module:Name"),
    ],
)
def test_an_invalid_decoder_is_refused(options: Any, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        decoded([], **options)


@pytest.mark.parametrize(
    ("decoder", "library"), [("msgpack", "msgpack"), ("avro", "fastavro"), ("protobuf", "google.protobuf")]
)
def test_a_decoder_whose_library_is_missing_names_the_extra(
    decoder: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ExtraMissing, match=rf"needs {library}: pip install 'polonaise\[decoders\]'"):
        decoded([], decoder=decoder)


def test_a_decoder_of_no_columns_is_refused() -> None:
    with pytest.raises(BadOption, match="decoderSchema"):
        ddl_of(read_options(texts("embedded:x", {"decoder": "json"})))


def test_a_decoded_column_may_not_have_the_name_of_one_of_the_logs() -> None:
    schema = from_arrow_schema(pa.schema([("data", pa.binary()), ("Data", pa.string())]))
    with pytest.raises(BadOption, match="Data"):
        decoded([], schema)

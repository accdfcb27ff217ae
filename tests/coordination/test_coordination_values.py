"""The coordinator's values as bytes: what is written reads back, and nothing else reads at all."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.values import Assignment, ClusterDescription, Engagement, Owner, PartitionValue
from polonaise.errors import CoordinatorDamaged

addresses = st.text(max_size=20)
numbers = st.integers(-(2**63), 2**63 - 1)
members = st.lists(addresses, max_size=4).map(tuple)

partition_values = st.builds(
    PartitionValue,
    generation=numbers,
    session=numbers,
    members=members,
    next=st.none() | members,
    engagements=st.dictionaries(addresses, st.builds(Engagement, numbers, numbers), max_size=4),
)
assignments = st.builds(Assignment, st.dictionaries(numbers, st.builds(Owner, numbers, addresses, numbers), max_size=4))
descriptions = st.builds(ClusterDescription, st.binary(min_size=16, max_size=16), numbers, members)
values = partition_values | assignments | descriptions

Decode = Callable[[bytes], object]
DECODERS: tuple[Decode, ...] = (PartitionValue.decode, Assignment.decode, ClusterDescription.decode)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = ("generation", "session", "members", "next", "engagements", "owners", "key", "partitions", "storage")


def reads_or_is_refused(decode: Decode, raw: bytes) -> None:
    try:
        value = decode(raw)
    except CoordinatorDamaged:
        return
    assert value.encode() == raw  # type: ignore[attr-defined]


@given(values)
def test_a_value_reads_back_as_it_was_written(value: PartitionValue | Assignment | ClusterDescription) -> None:
    assert type(value).decode(value.encode()) == value


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(raw: bytes) -> None:
    for decode in DECODERS:
        reads_or_is_refused(decode, raw)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(fields), anything))
def test_arbitrary_fields_are_refused(document: object) -> None:
    for decode in DECODERS:
        reads_or_is_refused(decode, json.dumps(document).encode())


@given(values, st.data())
def test_a_damaged_value_is_refused_or_is_another_whole_value(
    value: PartitionValue | Assignment | ClusterDescription, data: st.DataObject
) -> None:
    raw = bytearray(value.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for decode in DECODERS:
        reads_or_is_refused(decode, bytes(raw))
        reads_or_is_refused(decode, bytes(raw[:cut]))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"generation":Infinity,"session":0,"members":[],"next":null,"engagements":{}}',
        b'{"engagements":{},"generation":1,"members":"abc","next":null,"session":0}',
        b'{"engagements":{},"generation":1,"members":[["a"]],"next":null,"session":0}',
        b'{"engagements":{},"generation":1.5,"members":[],"next":null,"session":0}',
        b'{"engagements":{},"generation":true,"members":[],"next":null,"session":0}',
        b'{"engagements":{},"generation":"1","members":[],"next":null,"session":0}',
        b'{"engagements":{},"generation":1,"members":[],"next":null,"session":0,"unknown":1}',
        b'{"engagements":{"a":[1]},"generation":1,"members":[],"next":null,"session":0}',
        b'{"owners":{"00":[1,"a",1]}}',
        b'{"owners":{"0":[1,2,1]}}',
        b'{"owners":[]}',
        b'{"key":"00","partitions":1,"storage":[]}',
        b'{"key":"{00010203-0405-0607-0809-0a0b0c0d0e0f}","partitions":1,"storage":[]}',
    ],
)
def test_what_is_not_in_the_written_form_is_refused(raw: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(CoordinatorDamaged):
            decode(raw)


@pytest.mark.parametrize(("members", "following"), [('"abc"', "null"), ("[]", '["a",7]')])
def test_a_list_of_storage_nodes_that_is_none_is_named(members: str, following: str) -> None:
    raw = f'{{"engagements":{{}},"generation":1,"members":{members},"next":{following},"session":0}}'
    field = "members" if following == "null" else "next"
    with pytest.raises(CoordinatorDamaged, match=f"PartitionValue: {field} is .* instead of a list"):
        PartitionValue.decode(raw.encode())


def test_a_description_without_addresses_and_zones_is_written_as_versions_before_names_read_it() -> None:
    raw = b'{"key":"00010203-0405-0607-0809-0a0b0c0d0e0f","partitions":2,"storage":["a:1","b:1"]}'
    description = ClusterDescription.decode(raw)
    assert description.encode() == raw
    assert description.nodes == {"a:1": "a:1", "b:1": "b:1"}
    assert ClusterDescription.new(description.key, 2, {"a:1": "a:1", "b:1": "b:1"}).encode() == raw


def test_a_node_that_moved_and_moved_back_leaves_nothing_in_the_description() -> None:
    description = ClusterDescription.new(bytes(16), 1, {"a": "h:1", "h:2": "h:2"})
    assert description.storage == ("a", "h:2")
    assert description.addresses == {"a": "h:1"}
    moved = description.moved("h:2", "h:3")
    assert moved.nodes == {"a": "h:1", "h:2": "h:3"}
    assert ClusterDescription.decode(moved.encode()) == moved
    assert moved.moved("h:2", "h:2") == description


@pytest.mark.parametrize(
    "more",
    [
        {"addresses": {"c": "h:3"}}, {"addresses": {"a": 7}}, {"addresses": ["a"]}, {"addresses": {}},
        {"addresses": {"a": "a"}}, {"zones": {"c": "z"}}, {"zones": {"a": None}}, {"zones": None},
    ],
)  # fmt: skip
def test_a_description_with_addresses_or_zones_that_are_none_is_refused(more: dict[str, object]) -> None:
    fields = {"key": str(uuid.UUID(int=1)), "partitions": 1, "storage": ["a", "b"], **more}
    with pytest.raises(CoordinatorDamaged, match="no valid ClusterDescription"):
        ClusterDescription.decode(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

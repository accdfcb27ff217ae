"""Ranges out of conditions: never less than the condition leaves, whatever it says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.fragments.protocol.coverage import Span
from polonaise.spark.protocol.conditions import Ranges, ranges_in

MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("partition = 3", Ranges(frozenset({3}))),
        ("PARTITION in (1, 2) AND partition IN (2,3)", Ranges(frozenset({2}))),
        ("header = 1 and header = 2", Ranges(headers=frozenset())),
        ("header = 99999999999", Ranges(headers=frozenset())),
        ("transaction_id >= 10 and transaction_id < 20", Ranges(ids=Span(10, 19))),
        ("transaction_id > 10 and transaction_id <= 20 and data is null", Ranges(ids=Span(11, 20))),
        ("transaction_id = 7", Ranges(ids=Span(7, 7))),
        ("transaction_id < -5", Ranges(ids=Span(0, -6))),
        ("timestamp >= '2026-01-31T12:00:00Z'", Ranges(since=MOMENT)),
        ("timestamp < timestamp '2026-01-31 13:00:00+01:00'", Ranges(until=MOMENT + MICROSECOND)),
        ("timestamp <= '9999-12-31T23:59:59.999999Z' and partition = 1", Ranges(frozenset({1}))),
        ("upper(text) = 'A' and partition = 1", Ranges(frozenset({1}))),
        ("text = 'x and partition = 3' and partition = 1", Ranges(frozenset({1}))),
        ("(partition = 3) and header = 2", Ranges(headers=frozenset({2}))),
    ],
)
def test_bounds_joined_by_and_are_taken(where: str, expected: Ranges) -> None:
    assert ranges_in(where) == expected


@pytest.mark.parametrize(
    "where",
    [
        "partition = 1 or header = 2",
        "not partition = 1",
        "text = 'x and partition = 3 and y'",
        'text = "x and partition = 3 and y"',
        "if(header = 1 and partition = 2 and header = 3, true, false)",
        "(header = 1 and partition = 2 and header = 3) = false",
        "! (a and partition = 2 and b)",
        "a -- and partition = 2 and b",
        "a /* and partition = 2 and b */",
        r"text = 'it\'s and partition = 2 and so on'",
        "case when a and partition = 2 and b then 1 end = 1",
        "transaction_id = 'seven'",
        "transaction_id > 5.5",
        "partition = '3'",
        "timestamp > '2026-01-31'",
        "timestamp > '2026-01-31T12:00:00'",
        "timestamp > '2026-W05-6T12:00:00Z'",
        "a) and partition = 2 and (b",
        "x.partition = 2",
        "partition = 1 = false",
        "partition + 1 = 2",
        "",
        "nonsense '",
    ],
)
def test_what_is_not_certain_is_left_to_spark(where: str) -> None:
    assert ranges_in(where) == Ranges()


columns = st.sampled_from(["partition", "transaction_id", "header", "other"])
operators = st.sampled_from(["=", "<", ">", "<=", ">=", "=="])
term = st.tuples(columns, operators, st.integers(-3, 6)).map(lambda each: "{} {} {}".format(*each))
conditions = st.recursive(
    term,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "AND", "or"]), inner).map(" ".join),
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"not ({each})"),
        inner.map(lambda each: f"({each}) = false"),
    ),
    max_leaves=6,
)


def holds(where: str, row: dict[str, Any]) -> bool:
    """Python reads these conditions as SQL does, once `=` is written `==`; but for chains, which none has."""
    spelled = where.replace(" AND ", " and ").replace("false", "False").replace(" = ", " == ")
    return bool(eval(spelled, {}, row))


@given(conditions, st.integers(0, 4), st.integers(0, 5), st.integers(-3, 4), st.integers(0, 3))
def test_no_row_that_a_condition_leaves_is_outside_its_ranges(
    where: str, partition: int, id: int, header: int, other: int
) -> None:
    ranges = ranges_in(where)
    inside = (
        (ranges.partitions is None or partition in ranges.partitions)
        and (ranges.headers is None or header in ranges.headers)
        and ranges.ids.first <= id <= ranges.ids.last
    )
    if not inside:
        assert not holds(where, {"partition": partition, "transaction_id": id, "header": header, "other": other})

"""Columns in DDL: what is wrong with one of them is said of that one."""

from __future__ import annotations

import pytest

from polonaise.errors import BadOption
from polonaise.spark.options import read_options
from polonaise.spark.protocol.ddl import checked_columns


@pytest.mark.parametrize(
    "text",
    [
        "id long, name string",
        "id LONG NOT NULL COMMENT 'a, b', amount decimal(12,2), `a, b` int",
        "a array<struct<b: int, c: map<string, array<timestamp_ntz>>>>, d interval day to second",
        "a struct<>, n varchar(3), t time(6), `x``y` string collate UTF8_BINARY",
    ],
)
def test_columns_that_spark_takes_are_taken(text: str) -> None:
    assert checked_columns(text) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("account lomg, amount long", "column account is lomg, which is no type: did you mean long"),
        ("account long, amount decimel(12,2)", "column amount is decimel, which is no type: did you mean decimal"),
        ("id long, name", "column name has no type"),
        ("id long,, name string", "a column is missing"),
        ("id long,", "a column is missing"),
        ("id whole", "column id is whole, which is no type: there are boolean, "),
        ("a array<strnig>", "column a is strnig, which is no type: did you mean string"),
        ("a array", "column a is array without the types in it"),
        ("a map<string>", "column a is map of 1 types"),
        ("a struct<b int, c lnog>", "column a: field c is lnog, which is no type: did you mean long"),
        ("a array<int", "column a: a < has no >"),
        ("- int", "'-' is no name of a column"),
    ],
)
def test_a_column_that_is_none_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_columns(text)
    with pytest.raises(BadOption, match=f"decoderSchema=.*{said}"):
        read_options({"cluster": "embedded:x", "decoder": "json", "decoderSchema": text})

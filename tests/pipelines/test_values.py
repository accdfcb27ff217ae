"""Values as people read them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from polonaise.errors import BadOption
from polonaise.pipelines.formatting import cut, finite, place, quoted, read, short, width_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (0, "0"),
        (-1234567, "−1,234,567"),
        (2**63, "9,223,372,036,854,775,808"),
        (0.1 + 0.2, "0.3"),
        (1234.5, "1,234.5"),
        (1e6, "1,000,000"),
        (1.5e-7, "1.5e−07"),
        (1e300, "1e+300"),
        (float("nan"), "–"),
        (Decimal("12345.60"), "12,345.60"),
        (Fraction(6, 3), "2"),
        (Fraction(1, 3), "0.333333"),
        (date(1993, 1, 5), "1993-01-05"),
        (datetime(1993, 1, 5, 7, 8, 9), "1993-01-05 07:08:09"),  # noqa: DTZ001 - UTC then
        (datetime(1993, 1, 5, 7, 8, 9, 123456, tzinfo=timezone(timedelta(hours=2))), "1993-01-05 05:08:09.123"),
        (b"\x01\xff", "01ff"),
        ("as it is", "as it is"),
    ],
)
def test_a_value_is_read(value: Any, text: str) -> None:
    assert read(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (7, "7"), (0.25, "0.25"), (12.34, "12"), (999, "999"), (1000, "1.0 k"), (1234, "1.2 k"),
        (12_345, "12 k"), (999_950, "1.0 M"), (-2_500_000, "−2.5 M"), (3e9, "3.0 bn"), (5e13, "50 T"),
    ],
)  # fmt: skip
def test_a_value_where_there_is_little_room(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "12", b"1", True, 10**400, object()])
def test_what_can_not_be_drawn_is_refused(value: Any) -> None:
    with pytest.raises(BadOption, match="can't be drawn"):
        finite(value)


def test_a_time_is_a_place() -> None:
    noon = datetime(1993, 1, 5, 12)  # noqa: DTZ001 - UTC then
    assert place(noon) == noon.replace(tzinfo=UTC).timestamp()
    assert place(noon) - place(date(1993, 1, 5)) == 12 * 3600
    assert place(noon.replace(tzinfo=timezone(timedelta(hours=2)))) == place(noon) - 2 * 3600


def test_a_text_is_cut_to_the_room_there_is() -> None:
    assert cut("household", 12, 200) == "household"
    shorter = cut("household payments", 12, 60)
    assert shorter.endswith("…")
    assert width_of(shorter, 12) <= 60
    assert width_of("口座", 12) == 24, "wide characters are wide"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "NULL"), ("NULL", '"NULL"'), ("null", '"null"'), ("", '""'), (" ", '" "'), ("Anna", "Anna"),
        ("Anna Magdalena", '"Anna Magdalena"'), ("a,b", '"a,b"'), ("a: b", '"a: b"'), ('say "x"', '"say \\"x\\""'),
        ("a\tb\n", '"a\\tb\\n"'), ("Zoë-7", "Zoë-7"), (7, "7"), (True, "True"), (b"\x00\xff", "0x00ff"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"), (date(2026, 1, 31), "2026-01-31"),
    ],
)  # fmt: skip
def test_a_name_is_told_from_all_others(value: object, said: str) -> None:
    assert quoted(value) == said

"""What the simulator's applications ask of the log, so that every way to have bodies is tried."""

from __future__ import annotations

from polonaise_proving.work.application import HEADER_FILTER, UNWANTED_HEADER


def test_a_filter_lets_bodies_come_be_fetched_and_be_left() -> None:
    mask, value = HEADER_FILTER
    matching = [header & mask == value for header in range(UNWANTED_HEADER + 1)]
    assert any(matching)
    assert not all(matching[:UNWANTED_HEADER]), "some that are wanted have to be fetched"
    assert not matching[UNWANTED_HEADER], "some that are not wanted have to be left"

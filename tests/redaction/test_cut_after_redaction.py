"""A text is redacted before it is cut, everywhere, and that takes time in proportion to its length."""

from __future__ import annotations

import time

import pytest

from polonaise.redaction import redacted, redacted_text

ADDRESS = "postgresql://bank:hunter2secret@db/bank"


@pytest.mark.parametrize("before", range(1900, 2010))
def test_no_half_of_a_password_is_told_wherever_the_cut_is(before: int) -> None:
    told = redacted_text(RuntimeError("x" * before + " " + ADDRESS))
    assert "hunter2" not in told
    assert len(told) <= 2000
    assert "hunter2" not in redacted("x" * before + " " + ADDRESS, before + 25)


def test_what_redaction_shortens_leaves_room_for_no_half_of_another_secret() -> None:
    told = "could not reach https://lake/?sig=" + "A" * 1900 + " nor "
    error = "x" * (2000 - len(told) - len("postgresql://bank:hunter2s")) + told + ADDRESS
    assert redacted_text(RuntimeError(error)).endswith("postgresql://bank:***@db/bank")


@pytest.mark.parametrize(
    "piece", ["A", "a.", "a:", "pass", "%3d", "a=b", "%25", "a@", "x://", "key='", "http://", "?key=", "'", "+a-"]
)
def test_long_words_take_time_in_proportion_to_their_length(piece: str) -> None:
    def took_s(count: int) -> float:
        began_s = time.process_time()
        redacted(piece * count)
        return time.process_time() - began_s

    took_s(1000)
    # Ten times the length; a hundred times the time would be what it was. With room for other things going on.
    assert took_s(50_000) < 40 * max(took_s(5_000), 0.002)

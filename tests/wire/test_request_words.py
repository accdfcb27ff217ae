"""What a node was asked for is told in words, and not by the name of a message."""

from __future__ import annotations

import re

from polonaise.wire.codec import _KINDS
from polonaise.wire.messages import Health, HighWaterMark, Truncate
from polonaise.wire.requestwords import _ASKED, request_words


def test_no_name_of_a_message_is_told() -> None:
    for kind in _KINDS.values():
        words = request_words(kind.__new__(kind))
        assert not re.search("[a-z][A-Z]|^[A-Z]", words), words
    assert request_words(HighWaterMark()) == "what is committed"
    assert request_words(Health()) == "how it is"
    assert request_words(Truncate.__new__(Truncate)) == "'truncate'"
    assert {*_ASKED} - {kind.__name__ for kind in _KINDS.values()} <= {"ReadHistory"}

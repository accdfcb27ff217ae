"""Where the batches that a replica lacks are read: from a source that has them, or from the fragments."""

from __future__ import annotations

import pytest

from polonaise.errors import ConnectionLost, HistoryTrimmed, PolonaiseError
from polonaise.server.archivedhistory import read_to_copy
from polonaise.wire.codec import Message
from polonaise.wire.messages import ReadBatches

TRIMMED = HistoryTrimmed("the log begins at 7", 7)
AWAY = ConnectionLost("gone")
ASKED = ReadBatches(4, 0, 6, 1_000, 1, 0)


@pytest.mark.parametrize("answers", [{"A": TRIMMED, "B": AWAY}, {"A": AWAY, "B": TRIMMED}])
async def test_that_one_source_has_trimmed_the_log_is_seen_whatever_another_one_answers(
    answers: dict[str, PolonaiseError],
) -> None:
    async def ask(name: str, request: Message) -> Message:
        raise answers[name]

    with pytest.raises(HistoryTrimmed, match="started without the fragments"):
        await read_to_copy(ask, answers, ASKED, 0, None, AWAY)
    answers["A"] = answers["B"] = AWAY
    with pytest.raises(ConnectionLost):
        await read_to_copy(ask, answers, ASKED, 0, None, AWAY)

"""How long an answer is waited for follows what is measured."""

from __future__ import annotations

from polonaise.server.protocol.patience import SyncPatience


def test_patience_grows_until_a_slow_answer_comes_in_time() -> None:
    patience = SyncPatience(5.0, 60.0)
    tries = 0
    while patience.seconds < 17.0:
        patience.exceeded()
        tries += 1
    assert tries == 2
    patience.answered(17.0)
    assert patience.seconds == 20.0, "an answer that comes late is no reason to wait for less"


def test_patience_has_an_end_and_falls_again_with_quick_answers() -> None:
    patience = SyncPatience(5.0, 60.0)
    for _ in range(10):
        patience.exceeded()
    assert patience.seconds == 60.0
    for _ in range(30):
        patience.answered(0.1)
    assert patience.seconds == 5.0

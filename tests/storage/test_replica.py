"""What a replica decides, as dialogues: each rule by its name, and random ones that no rule may break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polonaise.errors import Fenced, NotJoined, OutOfOrder, PolonaiseError, SegmentDamaged
from polonaise.log.batch import Batch
from polonaise.log.control import Promises
from polonaise.storage.protocol.replica import (
    Acknowledge,
    Action,
    Cut,
    DropBelow,
    Refuse,
    Replica,
    Save,
    StoreBatches,
    StoreRequest,
    TellEmptied,
    TellEnd,
    TellLoss,
    TellSession,
)
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED
from rigs.log import Maker

LINE, OTHER_LINE = "the line it joined on", "another line"
LOG = Maker().batches(12)
FORKED = Maker().batches(12, salt=1)


def replica(held: int = 0, **promises: Any) -> Replica:
    """A replica that holds the first `held` batches of the log, of one transaction each, and was asked for its word."""
    made = opened(held, **promises)
    made.fence(made.promises.fence)
    return made


def opened(held: int = 0, **promises: Any) -> Replica:
    """The same as it is when its node has just been started."""
    return Replica(Promises(**promises), held - 1, LOG[held - 1].crc if held else 0)


def joined(held: int = 0, session: int = 5, **promises: Any) -> Replica:
    """One that has joined session 5 with what it holds."""
    made = replica(held, fence=session, **promises)
    carry_out(made, made.join(LINE, session, made.last, made.last_crc))
    return made


def carry_out(of: Replica, actions: Sequence[Action]) -> Sequence[Action]:
    """Do as a disk that never fails would."""
    for action in actions:
        if isinstance(action, Save):
            of.promises = action.promises
        elif isinstance(action, StoreBatches):
            for batch in action.batches:
                assert (batch.first, batch.previous_crc) == (of.last + 1, of.last_crc), "the log takes what follows"
                of.last, of.last_crc = batch.last, batch.crc
        elif isinstance(action, Cut):
            of.last = min(of.last, action.last)
            of.last_crc = LOG[of.last].crc if of.last >= 0 else 0
            of.promises = replace(of.promises, untrusted_above=UNRESOLVED)
    return actions


def refusal(actions: Sequence[Action]) -> PolonaiseError:
    """The error of the only action, which is to refuse."""
    assert len(actions) == 1
    assert isinstance(actions[0], Refuse)
    return actions[0].error


def test_a_restarted_node_says_nothing_before_it_was_asked_what_it_can_prove() -> None:
    made = opened(3, fence=5, joined=5)
    refused = made.refusal(5)
    assert refused is not None
    assert isinstance(refused.error, NotJoined)
    for actions in (made.copy(5, []), made.truncate(5, 2), made.confirm(5, 2), made.join(LINE, 5, 2, LOG[2].crc)):
        assert isinstance(refusal(actions), NotJoined)
    made.fence(5)
    assert made.refusal(5) is None


def request(number: int, *batches: Batch, session: int = 5, line: str = LINE) -> StoreRequest:
    return StoreRequest(line, session, number, batches)


# ------------------------------------------------------------------ the fence


def test_the_fence_is_on_disk_before_the_answer_that_announces_it() -> None:
    held = replica(fence=4)
    assert held.fence(5) == [Save(Promises(fence=5)), TellSession()]


def test_bytes_whose_sync_failed_are_cut_before_the_copys_end_is_told() -> None:
    held = opened(6, fence=4, untrusted_above=5)
    assert held.fence(5) == [Save(Promises(fence=5, untrusted_above=5)), Cut(5), TellSession()]


def test_bytes_above_a_loss_are_not_cut_before_it_is_decided_what_the_log_is() -> None:
    held = opened(6, fence=4, lost_above=5, untrusted_above=5)
    assert held.fence(5) == [Save(Promises(fence=5, lost_above=5, untrusted_above=5)), TellSession()]


def test_the_session_of_the_fence_is_told_again() -> None:
    assert replica(fence=5).fence(5) == [TellSession()]


@pytest.mark.parametrize("session", [4, 0, NO_SESSION, -(2**63)])
def test_a_smaller_session_is_refused_and_learns_which_is_the_latest(session: int) -> None:
    (refuse,) = replica(fence=5).fence(session)
    assert isinstance(refuse, Refuse)
    assert isinstance(refuse.error, Fenced)
    assert refuse.detail == 5


REQUESTS: dict[str, Callable[[Replica, int], Sequence[Action]]] = {
    "truncate": lambda held, session: held.truncate(session, held.last),
    "copy": lambda held, session: held.copy(session, LOG[3:4]),
    "join": lambda held, session: held.join(LINE, session, held.last, held.last_crc),
    "confirm": lambda held, session: held.confirm(session, held.last),
    "store": lambda held, session: held.store([request(1, LOG[3], session=session)]),
    "barrier": lambda held, session: held.store([request(1, session=session)]),
    "read": lambda held, session: [held.refusal(session) or TellEnd()],
}


@pytest.mark.parametrize("session", [NO_SESSION, 0, 4, 6, 2**63 - 1])
@pytest.mark.parametrize("name", REQUESTS)
def test_only_fencing_raises_the_fence_and_any_other_session_is_refused(name: str, session: int) -> None:
    for held in (replica(3, fence=5), joined(3)):
        before = held.promises
        assert isinstance(refusal(REQUESTS[name](held, session)), Fenced)
        assert held.promises == before


@pytest.mark.parametrize("name", REQUESTS)
def test_before_the_first_session_nobody_is_obeyed(name: str) -> None:
    assert isinstance(refusal(REQUESTS[name](replica(3), NO_SESSION)), Fenced | NotJoined)
    assert isinstance(refusal(replica().fence(NO_SESSION)), Fenced)


# ------------------------------------------------------------------ being emptied


def test_an_emptied_copy_keeps_its_fence_and_has_never_joined_before_its_first_batch_goes() -> None:
    made = replica(8, fence=5, joined=5, prepared=3, confirmed=6, lost_above=6)
    assert made.empty(9, 800) == [Save(Promises(fence=9)), Cut(NO_TRANSACTION), TellEmptied(800)]


def test_an_emptied_copy_refuses_the_owner_of_a_session_in_which_it_was_a_member() -> None:
    made = joined(8)
    carry_out(made, made.empty(7, 800))
    for session in (5, 6):
        assert isinstance(refusal(made.fence(session)), Fenced)
        assert isinstance(refusal(made.store([request(1, session=session)])), Fenced)


@pytest.mark.parametrize("name", REQUESTS)
def test_an_emptied_copy_obeys_nobody_before_a_session_asks_what_it_can_prove(name: str) -> None:
    made = joined(8)
    carry_out(made, made.empty(7, 800))
    assert isinstance(refusal(REQUESTS[name](made, 7)), NotJoined)


@pytest.mark.parametrize("session", [NO_SESSION, 4])
def test_a_copy_that_a_later_session_has_asked_is_not_emptied(session: int) -> None:
    made = replica(8, fence=5)
    assert isinstance(refusal(made.empty(session, 800)), Fenced)


# ------------------------------------------------------------------ being made clean


def test_a_copy_is_written_before_its_end_is_told() -> None:
    assert replica(3, fence=5).copy(5, LOG[3:6]) == [StoreBatches(LOG[3:6]), TellEnd()]


def test_a_cut_is_made_before_the_end_is_told() -> None:
    assert replica(8, fence=5, joined=4, confirmed=3).truncate(5, 3) == [Cut(3), TellEnd()]


def test_a_cut_for_a_reset_goes_below_what_was_confirmed_and_notes_the_reset() -> None:
    made = replica(8, fence=5, joined=3, confirmed=7, prepared=6)
    save, cut, end = made.cut_for_reset(5, 2, 4)
    assert isinstance(save, Save)
    assert (save.promises.confirmed, save.promises.prepared, save.promises.joined) == (2, 2, 4)
    assert (cut, end) == (Cut(2), TellEnd())
    assert isinstance(refusal(joined(8).cut_for_reset(5, 2, 4)), OutOfOrder)
    assert isinstance(refusal(replica(8, fence=6).cut_for_reset(5, 2, 4)), Fenced)


def test_a_copy_keeps_what_it_holds_when_its_marks_are_lowered_for_a_reset() -> None:
    made = replica(8, fence=5, joined=3, confirmed=7, prepared=6)
    save, end = made.lower_marks(5, 2, 4)
    assert isinstance(save, Save)
    assert (save.promises.confirmed, save.promises.prepared, save.promises.joined) == (2, 2, 4)
    assert end == TellEnd()
    assert isinstance(refusal(joined(8).lower_marks(5, 2, 4)), OutOfOrder)
    assert isinstance(refusal(replica(8, fence=6).lower_marks(5, 2, 4)), Fenced)


@pytest.mark.parametrize(("last", "since"), [(-2, 4), (-(2**63), -1), (2, 6), (2, 2**63 - 1)])
def test_a_cut_for_a_reset_at_no_id_or_for_one_that_has_not_been_is_refused(last: int, since: int) -> None:
    made = replica(8, fence=5, joined=3, confirmed=7, prepared=6)
    assert isinstance(refusal(made.cut_for_reset(5, last, since)), OutOfOrder)
    assert isinstance(refusal(made.lower_marks(5, last, since)), OutOfOrder)


@pytest.mark.parametrize("name", ["truncate", "copy"])
def test_a_copy_that_has_joined_is_neither_cut_nor_copied_to_in_its_session(name: str) -> None:
    assert isinstance(refusal(REQUESTS[name](joined(3), 5)), OutOfOrder)
    assert not isinstance(REQUESTS[name](replica(3, fence=6, joined=5), 6)[0], Refuse), "in the next it is"


@pytest.mark.parametrize("last", [2, 0, -1, -7, -(2**63)])
def test_what_is_confirmed_is_never_cut(last: int) -> None:
    assert isinstance(refusal(replica(8, fence=5, confirmed=3).truncate(5, last)), OutOfOrder)


@pytest.mark.parametrize(
    ("held", "lost_above", "confirmed", "last", "cut"),
    [
        pytest.param(6, 5, 9, 5, True, id="confirmed ids were lost: cut at what is left"),
        pytest.param(6, 5, 9, 4, False, id="what is left of the confirmed ids stays"),
        pytest.param(9, 5, 11, 5, True, id="partly copied anew, then the session ended"),
        pytest.param(9, 5, 11, 4, False, id="but never below the loss"),
        pytest.param(9, 5, 2, 3, True, id="lost above the confirmed mark: as ever"),
    ],
)
def test_above_a_loss_confirmed_ids_may_be_cut_and_copied_anew(
    held: int, lost_above: int, confirmed: int, last: int, cut: bool
) -> None:
    actions = replica(held, fence=5, lost_above=lost_above, confirmed=confirmed).truncate(5, last)
    assert (actions == [Cut(last), TellEnd()]) is cut


def test_a_damaged_copy_that_was_caught_up_and_confirmed_can_join_the_next_session() -> None:
    held = replica(4, fence=5, lost_above=3, confirmed=3)
    carry_out(held, held.copy(5, LOG[4:10]))
    carry_out(held, held.confirm(5, 9))
    assert held.promises.may_have_lost, "only joining clears it"
    carry_out(held, held.fence(6))
    # The owner cuts at the smaller of confirmed mark and loss: nothing of what was copied.
    mark = min(held.promises.confirmed, held.promises.lost_above)
    assert mark == 9
    assert not isinstance(held.truncate(6, mark)[0], Refuse)
    carry_out(held, held.join(LINE, 6, 9, LOG[9].crc))
    assert held.promises == Promises(fence=6, joined=6, prepared=9, confirmed=9)


# ------------------------------------------------------------------ joining


def test_joining_is_durable_before_it_is_told_and_clears_a_loss() -> None:
    held = replica(6, fence=5, joined=3, prepared=2, confirmed=1, lost_above=4)
    expected = Promises(fence=5, joined=5, prepared=5, confirmed=1, lost_above=UNRESOLVED)
    assert held.join(LINE, 5, 5, LOG[5].crc) == [Save(expected), TellEnd()]


@pytest.mark.parametrize(
    ("prepared", "crc"),
    [
        pytest.param(4, LOG[4].crc, id="below the end"),
        pytest.param(6, LOG[6].crc, id="above the end"),
        pytest.param(5, FORKED[5].crc, id="another log's bytes"),
        pytest.param(NO_TRANSACTION, 0, id="as if it were empty"),
    ],
)
def test_only_a_log_that_ends_exactly_there_with_these_bytes_joins(prepared: int, crc: int) -> None:
    assert isinstance(refusal(replica(6, fence=5).join(LINE, 5, prepared, crc)), OutOfOrder)


def test_a_copy_with_bytes_that_nobody_may_believe_does_not_join() -> None:
    held = replica(6, fence=5, lost_above=5, untrusted_above=5)
    assert refusal(held.join(LINE, 5, 5, LOG[5].crc)).code == "partition_unavailable"


def test_joining_twice_writes_once_and_the_later_connection_counts() -> None:
    held = joined(3)
    assert held.join(OTHER_LINE, 5, 2, LOG[2].crc) == [TellEnd()]
    assert isinstance(refusal(held.store([request(1, LOG[3])])), NotJoined)
    assert held.store([request(1, LOG[3], line=OTHER_LINE)])[0] == StoreBatches([LOG[3]])


# ------------------------------------------------------------------ confirming


@pytest.mark.parametrize(("asked", "confirmed"), [(5, 5), (4, 4), (3, None), (2, None), (-1, None)])
def test_the_confirmed_mark_rises_only(asked: int, confirmed: int | None) -> None:
    held = replica(6, fence=5, confirmed=3)
    saved = [] if confirmed is None else [Save(Promises(fence=5, confirmed=confirmed))]
    assert held.confirm(5, asked) == [*saved, TellEnd()]


def test_what_is_not_held_is_not_confirmed() -> None:
    assert isinstance(refusal(replica(6, fence=5).confirm(5, 6)), OutOfOrder)


# ------------------------------------------------------------------ storing


def test_what_arrived_during_a_sync_is_one_write_and_one_acknowledgement_after_it() -> None:
    actions = joined(3).store([request(7, LOG[3], LOG[4]), request(8), request(9, LOG[5])])
    assert actions == [StoreBatches(LOG[3:6]), Acknowledge(5, 9)]


def test_a_barrier_is_acknowledged_and_writes_nothing() -> None:
    assert joined(3).store([request(7)]) == [Acknowledge(5, 7)]


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(LOG[5], id="a gap"),
        pytest.param(LOG[3], id="the same again"),
        pytest.param(FORKED[4], id="another history"),
    ],
)
def test_batches_are_refused_from_the_first_that_does_not_follow(bad: Batch) -> None:
    actions = joined(3).store([request(7, LOG[3]), request(8, bad), request(9, LOG[4])])
    assert actions[:2] == [StoreBatches([LOG[3]]), Acknowledge(5, 7)]
    assert isinstance(actions[2], Refuse)
    assert (actions[2].number, actions[2].error.code) == (8, "out_of_order")
    assert len(actions) == 3


def test_a_replica_that_never_joined_takes_no_appends() -> None:
    assert isinstance(refusal(replica(3, fence=5, joined=4).store([request(1, LOG[3])])), NotJoined)


def test_after_a_restart_a_joined_copy_takes_no_appends_until_it_has_joined_again() -> None:
    assert isinstance(refusal(replica(3, fence=5, joined=5, prepared=2).store([request(1, LOG[3])])), NotJoined)


def test_a_broken_connection_ends_its_part_in_the_session() -> None:
    held = joined(3)
    held.disconnected(OTHER_LINE)
    assert held.store([request(1, LOG[3])])[0] == StoreBatches([LOG[3]])
    held.disconnected(LINE)
    assert isinstance(refusal(held.store([request(1, LOG[3])])), NotJoined)


def test_the_owner_is_told_once_of_damage_in_a_copy_that_takes_part_and_nobody_of_any_other() -> None:
    found = SegmentDamaged("a segment was removed")
    held = joined(3)
    assert held.lost(found) == TellLoss(LINE, found)
    assert isinstance(refusal(held.store([request(1)])), NotJoined)
    assert held.lost(found) is None
    assert replica(3, fence=5).lost(found) is None
    left = joined(3)
    left.disconnected(LINE)
    assert left.lost(found) is None


@pytest.mark.parametrize("batches", [LOG[3:4], []], ids=["an append", "a barrier"])
def test_a_copy_that_has_met_damage_since_it_joined_acknowledges_nothing(batches: list[Batch]) -> None:
    held = joined(3)
    held.promises = held.promises.lost(1)
    assert refusal(held.store([request(1, *batches)])).code == "partition_unavailable"


# ------------------------------------------------------------------ random dialogues

sessions = st.integers(-1, 4)
places = st.integers(-1, 8)
lines = st.sampled_from([LINE, OTHER_LINE])
logs = st.sampled_from([LOG, FORKED])
steps = st.one_of(
    st.tuples(st.just("fence"), sessions),
    st.tuples(st.just("truncate"), sessions, places),
    st.tuples(st.just("copy"), sessions, logs, places, places),
    st.tuples(st.just("join"), lines, sessions, st.none() | places, logs),
    st.tuples(st.just("confirm"), sessions, places),
    st.tuples(st.just("store"), lines, sessions, logs, st.none() | places),
    st.tuples(st.just("disconnect"), lines),
    st.tuples(st.just("damage"), places),
    st.tuples(st.just("fail_sync")),
    st.tuples(st.just("restart")),
)


class Life:
    """A replica and its disk, and what must be true of them whatever is said to it."""

    def __init__(self) -> None:
        self.replica = Replica(Promises(), NO_TRANSACTION, 0)
        self.log: list[Batch] = []
        self.joined_on: tuple[str, int] | None = None

    def hear(self, step: tuple[Any, ...]) -> None:
        kind, *rest = step
        before = self.replica.promises
        getattr(self, f"_{kind}")(*rest)
        after = self.replica.promises
        assert after.fence >= before.fence, "the fence never falls"
        assert after.joined >= before.joined
        assert after.joined <= after.fence, "nobody joins a session that is not the fence's"
        assert after.confirmed >= before.confirmed, "the confirmed mark is never lowered"
        if after.fence != before.fence:
            assert kind == "fence"
        if before.may_have_lost and not after.may_have_lost:
            assert kind == "join", "only joining clears a loss"
        if not after.may_have_lost:
            assert after.confirmed <= self.replica.last, "what is confirmed is here, or is known to be lost"

    def _do(self, actions: Sequence[Action], session: int) -> None:
        promised = self.replica.promises
        for place, action in enumerate(actions):
            if isinstance(action, Refuse):
                assert place == len(actions) - 1
            elif not isinstance(action, Save):
                assert session == self.replica.promises.fence, "only the latest session is obeyed"
            match action:
                case Save(promises):
                    self.replica.promises = promises
                case StoreBatches(batches):
                    self._append(batches)
                case Cut(last):
                    self._cut(last)
                case Acknowledge(of, _):
                    assert (of, promised.joined) == (session, session)
                    assert not promised.may_have_lost
                    assert not promised.untrusted

    def _append(self, batches: Sequence[Batch]) -> None:
        if self.replica.promises.untrusted:
            return
        for batch in batches:
            if (batch.first, batch.previous_crc) != (self.replica.last + 1, self.replica.last_crc):
                return
            self.log.append(batch)
            self._look()

    def _cut(self, last: int) -> None:
        promises = self.replica.promises
        if not promises.may_have_lost:
            assert last >= min(promises.confirmed, self.replica.last), "nothing confirmed is cut"
        del self.log[last + 1 :]
        self.replica.promises = replace(promises, untrusted_above=UNRESOLVED)
        self._look()

    def _look(self) -> None:
        self.replica.last, self.replica.last_crc = len(self.log) - 1, self.log[-1].crc if self.log else 0

    def _fence(self, session: int) -> None:
        self._do(self.replica.fence(session), session)

    def _truncate(self, session: int, last: int) -> None:
        self._do(self.replica.truncate(session, last), session)

    def _copy(self, session: int, log: list[Batch], first: int, last: int) -> None:
        self._do(self.replica.copy(session, log[max(first, 0) : last + 1]), session)

    def _join(self, line: str, session: int, prepared: int | None, log: list[Batch]) -> None:
        last, crc = self.replica.last, self.replica.last_crc
        if prepared is not None:
            last, crc = prepared, log[prepared].crc if prepared >= 0 else 0
        actions = self.replica.join(line, session, last, crc)
        if not isinstance(actions[0], Refuse):
            assert (self.replica.last, self.replica.last_crc) == (last, crc), "joins at its exact end only"
            self.joined_on = (line, session)
        self._do(actions, session)

    def _confirm(self, session: int, mark: int) -> None:
        self._do(self.replica.confirm(session, mark), session)

    def _store(self, line: str, session: int, log: list[Batch], place: int | None) -> None:
        place = self.replica.last + 1 if place is None else place
        batches = log[place : place + 1] if place >= 0 else []
        actions = self.replica.store([StoreRequest(line, session, 1, batches)])
        if any(isinstance(action, Acknowledge) for action in actions):
            assert self.joined_on == (line, session), "acknowledged only where it joined, and in that session"
        self._do(actions, session)

    def _disconnect(self, line: str) -> None:
        self.replica.disconnected(line)
        if self.joined_on and self.joined_on[0] == line:
            self.joined_on = None

    def _damage(self, last: int) -> None:
        """A read finds bad bytes above `last`, and the log records it."""
        if last < self.replica.last:
            self.replica.promises = self.replica.promises.lost(last)
            del self.log[last + 1 :]
            self._look()

    def _fail_sync(self) -> None:
        """A batch could not be synced, and the log records that nothing above its end is to be believed."""
        self.replica.promises = self.replica.promises.distrusted(self.replica.last)
        self._look()

    def _restart(self) -> None:
        self.replica = Replica(self.replica.promises, self.replica.last, self.replica.last_crc)
        self.joined_on = None


@pytest.mark.slow
@settings(max_examples=300)
@given(dialogue=st.lists(steps, max_size=40))
def test_no_dialogue_breaks_a_promise(dialogue: list[tuple[Any, ...]]) -> None:
    life = Life()
    for step in dialogue:
        life.hear(step)


@pytest.mark.slow
@settings(max_examples=200)
@given(dialogue=st.lists(steps, max_size=15), data=st.data())
def test_whatever_was_said_the_next_session_can_make_the_copy_clean(
    dialogue: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    life = Life()
    for step in [("fence", 0), ("join", LINE, 0, None, LOG), *dialogue]:
        if not any(part is FORKED for part in step):
            life.hear(step)
    life.hear(("fence", 9))
    promises, held = life.replica.promises, life.replica.last
    mark = data.draw(st.integers(promises.confirmed, 8)) if promises.confirmed < 8 else 8
    mark = min(mark, held, promises.lost_above if promises.may_have_lost else held)
    life.hear(("truncate", 9, mark))
    assert life.replica.last == mark, "a mark that recovery would choose is never refused"
    life.hear(("copy", 9, LOG, mark + 1, 9))
    life.hear(("join", OTHER_LINE, 9, None, LOG))
    assert (life.replica.promises.joined, life.replica.promises.may_have_lost) == (9, False)


# ------------------------------------------------------------------ trimming


def test_a_copy_that_takes_part_drops_what_is_below_an_id_that_is_confirmed() -> None:
    of = joined(9, confirmed=6)
    assert of.trim(5, 6) == [DropBelow(6)]
    assert of.trim(5, 0) == [DropBelow(0)]


def test_nothing_is_dropped_above_what_is_confirmed() -> None:
    assert isinstance(refusal(joined(9, confirmed=6).trim(5, 7)), OutOfOrder)


def test_a_copy_that_takes_no_part_yet_drops_what_it_knows_to_be_the_logs_for_good() -> None:
    assert replica(9, fence=5, joined=4, confirmed=6).trim(5, 6) == [DropBelow(6)]
    assert replica(9, fence=5, confirmed=8).trim(5, 8) == [DropBelow(8)]
    assert isinstance(refusal(replica(9, fence=5, confirmed=6).trim(5, 7)), OutOfOrder)


def test_a_copy_that_may_have_lost_drops_nothing_above_what_it_is_sure_of() -> None:
    of = replica(9, fence=5, joined=4, confirmed=6, lost_above=4)
    assert of.trim(5, 4) == [DropBelow(4)]
    assert isinstance(refusal(of.trim(5, 5)), OutOfOrder)
    assert isinstance(refusal(replica(3, fence=5, joined=4, confirmed=6, lost_above=8).trim(5, 4)), OutOfOrder)


def test_a_copy_that_is_not_to_be_believed_drops_nothing() -> None:
    assert isinstance(
        refusal(replica(9, fence=5, joined=5, confirmed=6, lost_above=7, untrusted_above=7).trim(5, 3)), NotJoined
    )
    assert isinstance(refusal(replica(9, fence=5, joined=5, confirmed=6, untrusted_above=8).trim(5, 3)), NotJoined)


def test_only_the_latest_session_trims_and_only_a_copy_that_was_asked() -> None:
    assert isinstance(refusal(joined(9, confirmed=6).trim(4, 3)), Fenced)
    assert isinstance(refusal(opened(9, fence=5, joined=5, confirmed=6).trim(5, 3)), NotJoined)

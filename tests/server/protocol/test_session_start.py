"""The start of a session: whom to believe, where the log ends, what is cut and copied, who takes part.

The tables are transcripts. In `A=12 B=11 C=?` every replica was engaged in the last session, 7; C has not answered.
Behind the highest id that a replica holds: `~` its disk is older than session 7, `!9` it may have lost ids above 9,
`^10` it knows ids up to 10 to be committed, `*` its last batch is another than that of the others. `A:5` was engaged
earlier, up to a closing mark of 5; `A:-` never was; `wiped` holds nothing and knows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polonaise.coordination.values import Engagement, HeadReset, PartitionValue, Requirement
from polonaise.server.protocol import recovery
from polonaise.server.protocol.recovery import Contradiction, Decided, ReplicaAnswer, Undecided
from polonaise.terms import NO_SESSION, NO_TRANSACTION, UNRESOLVED

LAST = 7
_WORD = re.compile(r"(\w)(?::(-?\d+|-))?=(?:(-?\d+)(\*)?(~)?(?:!(-?\d+))?(?:\^(-?\d+))?|(\?)|(wiped))")


def crc_at(last: int, other: bool = False) -> int:
    return 0 if last == NO_TRANSACTION else crc32(f"{last}{'other' if other else ''}".encode())


def told(transcript: str) -> tuple[PartitionValue, dict[str, ReplicaAnswer]]:
    """The value in the coordinator, just claimed for session 8, and what the replicas answered."""
    engagements: dict[str, Engagement] = {}
    answers: dict[str, ReplicaAnswer] = {}
    names: list[str] = []
    for word in transcript.split():
        match = _WORD.fullmatch(word)
        assert match, word
        name, closed, held, other, stale, lost, confirmed, silent, wiped = match.groups()
        names.append(name)
        if closed is None:
            engagements[name] = Engagement(LAST)
        elif closed != "-":
            engagements[name] = Engagement(LAST - 2, int(closed))
        if silent:
            continue
        last = NO_TRANSACTION if wiped else int(held)
        joined = LAST if closed is None else LAST - 2 if closed != "-" else NO_SESSION
        answers[name] = ReplicaAnswer(
            joined=NO_SESSION if wiped else joined - 1 if stale else joined,
            prepared=NO_TRANSACTION,
            confirmed=int(confirmed) if confirmed else NO_TRANSACTION,
            max_synced=last,
            last_crc=crc_at(last, bool(other)),
            lost_above=int(lost) if lost else None,
        )
    return PartitionValue(2, LAST + 1, tuple(names), None, engagements), answers


def outcome(transcript: str) -> str:
    decided = recovery.decide(*told(transcript))
    if isinstance(decided, Decided):
        assert decided.last_crc in (crc_at(decided.closing), crc_at(decided.closing, other=True))
        return f"{decided.closing} from {''.join(decided.sources)}"
    if isinstance(decided, Undecided):
        return f"undecided, {decided.needed} of {''.join(decided.doubted)}"
    return "contradiction"


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        # All there.
        ("A=12 B=12 C=12", "12 from ABC"),
        ("A=12 B=11 C=10", "12 from A"),
        ("A=-1 B=-1 C=-1", "-1 from ABC"),
        ("A=12", "12 from A"),
        ("A=125 B=125 C=120 D=115 E=115", "125 from AB"),
        # One away: what a minority holds is kept, which nobody was told the fate of.
        ("A=12 B=11 C=?", "12 from A"),
        ("A=11 B=11 C=?", "11 from AB"),
        ("A=11 B=10 C=9 D=? E=?", "11 from A"),
        # So many away that a committed id may be with them alone.
        ("A=12 B=? C=?", "undecided, 1 of BC"),
        ("A=? B=? C=?", "undecided, 2 of ABC"),
        ("A=11 B=10 C=? D=? E=?", "undecided, 1 of CDE"),
        ("A=?", "undecided, 1 of A"),
        # Three of five engaged: every one of them has what was committed.
        ("A=12 B=12 C=12 D:9=9 E:9=9", "12 from ABC"),
        ("A=12 B=? C=? D:9=9 E:9=9", "12 from A"),
        ("A=? B=? C=? D:9=9 E:9=9", "undecided, 1 of ABC"),
        ("A=120 B:110=110 C:110=112 D:100=100 E:-=3", "120 from A"),
        # Members that were not engaged do not decide, whatever they hold.
        ("A=12 B=12 C:5=30", "12 from AB"),
        ("A=? B=? C:5=12", "undecided, 1 of AB"),
        # Wiped: it has not forgotten nothing, it has forgotten everything, so it is in doubt.
        ("A=wiped B=11 C=11", "11 from BC"),
        ("A=wiped B=11 C=?", "undecided, 1 of AC"),
        ("A=wiped B=wiped C=12", "undecided, 1 of AB"),
        ("A=wiped B=wiped C=wiped", "undecided, 2 of ABC"),
        # An old disk: with less or with more, it does not decide.
        ("A=11 B=11 C=3~", "11 from AB"),
        ("A=11 B=11 C=130~", "11 from AB"),
        ("A=11 B=130~ C=?", "undecided, 1 of BC"),
        # Damaged: it may have lost what was committed; what it still holds counts.
        ("A=11 B=9!9 C=9", "11 from A"),
        ("A=12!12 B=11 C=11", "12 from A"),
        ("A=9!9 B=9 C=?", "undecided, 1 of AC"),
        ("A=9!9 B=9!9 C=9", "undecided, 1 of AB"),
        ("A=9!9 B=9!9 C=?", "undecided, 2 of ABC"),
        ("A=9!9", "undecided, 1 of A"),
        # What cannot be.
        ("A=12 B=12* C=12", "contradiction"),
        ("A=12 B=12* C=13", "contradiction"),
        ("A=12 B=12 C:9=14^13", "contradiction"),
        ("A=12 B=12 C=?", "12 from AB"),
        ("A=12^12 B=11 C=11", "12 from A"),
        ("A=11 B=11 C=9~^12", "contradiction"),
        # No session ever.
        ("A:-=-1 B:-=-1 C:-=-1", "-1 from ABC"),
        ("A:-=-1 B:-=? C:-=?", "-1 from A"),
        ("A:-=3 B:-=-1 C:-=-1", "contradiction"),
        ("A:-=-1!-1 B:-=-1 C:-=-1", "-1 from ABC"),
    ],
)  # fmt: skip
def test_where_the_log_ends(transcript: str, expected: str) -> None:
    assert outcome(transcript) == expected


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_the_wait_ends_when_fewer_than_a_quorum_are_in_doubt(count: int) -> None:
    names = "ABCDEFGHI"[:count]
    for silent in range(count + 1):
        words = [f"{name}=?" if position < silent else f"{name}=5" for position, name in enumerate(names)]
        assert outcome(" ".join(words)).startswith("undecided") == (silent >= count // 2 + 1)


def test_a_replica_that_took_part_in_a_later_session_than_the_coordinator_knows_stops_the_partition() -> None:
    value, answers = told("A=12 B=12 C=12")
    answers["C"] = replace(answers["C"], joined=value.session + 1)
    assert isinstance(recovery.decide(value, answers), Contradiction)


@pytest.mark.parametrize(
    ("transcript", "committed", "expected"),
    [
        ("A=12 B=12 C=?", 12, "12"),
        ("A=12 B=12 C=?", 13, "waits for C"),
        ("A=12 B=12 C=?", 11, "12"),
        ("A=12 B=12 C=12", 13, "contradiction"),
        ("A=12 B=12 C=13", 13, "13"),
        ("A=12* B=12* C=?", 12, "contradiction"),
        ("A=12 B=12 C:5=?", 13, "contradiction"),
    ],
)
def test_an_owner_that_has_seen_more_committed_waits_for_the_silent_or_stops(
    transcript: str, committed: int, expected: str
) -> None:
    value, answers = told(transcript)
    found = recovery.decide(value, answers, recovery.Known(committed, crc_at(committed)))
    match found:
        case Decided():
            assert str(found.closing) == expected
        case Undecided():
            assert f"waits for {' '.join(found.doubted)}" == expected
            assert found.needed == 1
        case Contradiction():
            assert expected == "contradiction"


@pytest.mark.parametrize(
    ("transcript", "expected", "never"),
    [
        (
            "A=9!9",
            ["waits for A, with what it held", "A answers, but may have lost", "lost what was above 9", "verify"],
            "1 of",
        ),
        ("A=-1!-1", ["A answers, but may have lost", "lost everything", "verify"], "empty"),
        ("A=wiped", ["A answers, but is empty"], "verify"),
        ("A=11~", ["A answers, but its copy is older"], "empty"),
        ("A=?", ["an answer from 1 of A"], "answers,"),
        ("A=9!9 B=wiped C=9", ["1 of A, B", "A answers, but may have lost", "B answers, but is empty"], "C"),
        ("A=9!9 B=wiped C=?", ["2 of A, B, C", "A answers,", "B answers,", "no answer from C"], "C answers,"),
        ("A=9!9 B=9 C=?", ["an answer from 1 of C", "A answers, but may have lost"], "committed transactions"),
    ],
)
def test_who_is_waited_for_is_told_with_what_is_wrong_with_each(
    transcript: str, expected: list[str], never: str
) -> None:
    value, answers = told(transcript)
    found = recovery.decide(value, answers)
    assert isinstance(found, Undecided)
    said = f"waits for {found.waits_for(answers)}"
    assert all(part in said for part in expected), said
    assert never not in said


# ------------------------------------------------------------------ what is cut


@pytest.mark.parametrize(
    ("replica", "closing", "clean"),
    [
        pytest.param("A=12", 12, 12, id="up to date"),
        pytest.param("A=11", 12, 11, id="behind: nothing to cut"),
        pytest.param("A=14", 12, 12, id="ahead"),
        pytest.param("A:5=5", 12, 5, id="closed earlier"),
        pytest.param("A:5=9", 12, 5, id="closed earlier, with a dirty tail"),
        pytest.param("A:5=9^8", 12, 8, id="closed earlier, caught up since"),
        pytest.param("A:5=3", 12, 3, id="closed earlier, and behind that"),
        pytest.param("A=30~", 12, -1, id="old disk with more: nothing of it is sure"),
        pytest.param("A=30~^6", 12, 6, id="old disk, but confirmed"),
        pytest.param("A:5=9~", 12, -1, id="old disk, closed earlier"),
        pytest.param("A=wiped", 12, -1, id="wiped"),
        pytest.param("A:-=9", 12, -1, id="never engaged"),
        pytest.param("A:-=9^4", 12, 4, id="never engaged, brought up to date in the background"),
        pytest.param("A=9!9", 12, 9, id="damaged at its end"),
        pytest.param("A=20!9", 12, 9, id="damaged further down"),
        pytest.param("A:5=9!3^8", 12, 3, id="damaged below what was confirmed"),
        pytest.param("A=-1!-1", 12, -1, id="damaged from the start"),
    ],
)
def test_up_to_where_a_copy_is_surely_the_logs(replica: str, closing: int, clean: int) -> None:
    value, answers = told(replica)
    assert recovery.clean_to(value, "A", answers["A"], closing) == clean


# ------------------------------------------------------------------ claiming, engaging, changing members


def test_a_claim_takes_the_next_session_unless_a_later_generation_is_there() -> None:
    value = PartitionValue(3, 11, ("A",))
    assert recovery.claim(value, 3) == PartitionValue(3, 12, ("A",))
    assert recovery.claim(value, 4) == PartitionValue(4, 12, ("A",))
    assert recovery.claim(value, 2) is None


@pytest.mark.parametrize(
    ("members", "following", "clean", "enough"),
    [
        ("A", None, "A", True),
        ("ABC", None, "AB", True),
        ("ABC", None, "A", False),
        ("ABC", None, "AXY", False),
        ("ABCDE", None, "ABC", True),
        ("ABCDE", None, "AB", False),
        ("ABC", "ABCD", "AB", True),  # the members go on without a copy that is only being added
        ("ABC", "ABCD", "AD", False),
        ("AB", "B", "B", False),
    ],
)
def test_a_session_needs_a_quorum_of_the_members(members: str, following: str | None, clean: str, enough: bool) -> None:
    assert recovery.may_engage(changing(members, following), set(clean)) == enough


@pytest.mark.parametrize(
    ("members", "following", "clean", "made"),
    [
        ("ABC", None, "ABC", False),
        ("ABC", "ABCD", "ABC", False),  # enough of both, but D would count before it has been caught up with
        ("ABC", "ABCD", "ABD", True),
        ("ABC", "ABCD", "AD", False),
        ("ABCD", "ABC", "ABD", True),
        ("ABCD", "ABC", "AB", False),  # two of three, but not three of four
        ("A", "AB", "A", False),
        ("A", "AB", "AB", True),
        ("AB", "A", "AB", True),
        ("AB", "B", "A", False),
    ],
)
def test_a_change_needs_a_quorum_of_the_members_and_of_the_members_to_be_and_the_added_copy(
    members: str, following: str | None, clean: str, made: bool
) -> None:
    value = changing(members, following)
    assert recovery.takes_next(value, set(clean)) == made
    if recovery.may_engage(value, set(clean)):
        engaged = recovery.engage(value, clean, 12)
        assert engaged.members == (value.next if made else value.members)
        assert engaged.next == (None if made else value.next), "it stays pending until it can be made"


@pytest.mark.parametrize(
    ("members", "following", "clean", "enough", "made"),
    [
        ("ABC", None, "ABC", True, False),
        ("ABC", None, "AB", False, False),
        ("ABC", "ABCD", "ABD", True, True),  # the copy that is added is what commits need
        ("ABC", "ABCD", "ABC", True, False),
        ("ABCD", "ABC", "ABD", True, False),  # the removal waits: without D there would be two
        ("ABCD", "ABC", "ABC", True, True),
        ("ABC", "AB", "ABC", True, False),  # asked for before the requirement rose: never made
    ],
)
def test_a_session_and_a_change_need_the_copies_that_are_required(
    members: str, following: str | None, clean: str, enough: bool, made: bool
) -> None:
    resets = (HeadReset(3, "A", 5, 0, 1, 3),)
    value = replace(changing(members, following), required=Requirement(1, copies=3), resets=resets)
    assert recovery.may_engage(value, set(clean)) == enough
    assert recovery.takes_next(value, set(clean)) == made
    if enough:
        engaged = recovery.engage(value, clean, 12)
        assert engaged.members == (value.next if made else value.members)
        assert (engaged.required, engaged.resets) == (value.required, resets), "a change of members keeps them"


def changing(members: str, following: str | None) -> PartitionValue:
    return PartitionValue(1, 1, tuple(members), None if following is None else tuple(following))


def test_engaging_names_the_clean_closes_the_late_and_leaves_the_rest() -> None:
    value, _ = told("A=12 B=12 C=? D:5=5 E:-=?")
    assert recovery.engage(value, ["A", "B", "D"], 12).engagements == {
        "A": Engagement(8),
        "B": Engagement(8),
        "C": Engagement(LAST, 12),
        "D": Engagement(8),
    }
    assert recovery.engage(value, ["A", "B", "C"], 12).engagements["D"] == Engagement(LAST - 2, 5)


def test_a_pending_membership_becomes_the_membership() -> None:
    value, _ = told("A=12 B=12 C=12")
    growing = replace(value, next=("A", "B", "C", "D"))
    assert recovery.participants(growing) == ("A", "B", "C", "D")
    grown = recovery.engage(growing, "ABD", 12)
    assert (grown.members, grown.next) == (("A", "B", "C", "D"), None)
    assert grown.engagements == {
        "A": Engagement(8), "B": Engagement(8), "C": Engagement(LAST, 12), "D": Engagement(8)
    }  # fmt: skip
    shrinking = replace(value, next=("A", "B"))
    assert recovery.participants(shrinking) == ("A", "B", "C")
    shrunk = recovery.engage(shrinking, "ABC", 12)
    assert shrunk.members == ("A", "B")
    assert sorted(shrunk.engagements) == ["A", "B"]


# ------------------------------------------------------------------ whole sessions, on logs of letters


@dataclass
class Copy:
    """A replica: its log (one letter per transaction), and what it has promised."""

    log: str = ""
    joined: int = NO_SESSION
    confirmed: int = NO_TRANSACTION
    lost_above: int | None = None

    def answer(self) -> ReplicaAnswer:
        last = len(self.log) - 1
        crc = crc32(self.log.encode()) if self.log else 0
        return ReplicaAnswer(self.joined, NO_TRANSACTION, self.confirmed, last, crc, self.lost_above)


@dataclass
class Partition:
    """A partition without machines: what the coordinator and the replicas hold."""

    value: PartitionValue
    copies: dict[str, Copy] = field(default_factory=dict)

    @classmethod
    def of(cls, members: str) -> Partition:
        return cls(PartitionValue.initial(tuple(members)), {name: Copy() for name in members})

    def start(self, here: Iterable[str], *, engages: bool = True) -> str | None:
        """Start a session with those who are here; the log as it was decided, or None while that must wait."""
        claimed = recovery.claim(self.value, self.value.generation)
        assert claimed is not None
        self.value = claimed
        here = [name for name in recovery.participants(claimed) if name in here]
        answers = {name: self.copies[name].answer() for name in here}
        decided = recovery.decide(claimed, answers)
        assert not isinstance(decided, Contradiction), decided.what
        if isinstance(decided, Undecided) or not recovery.may_engage(claimed, here):
            return None
        log = self.copies[decided.sources[0]].log if decided.sources else ""
        for name in here:
            copy = self.copies[name]
            kept = copy.log[: recovery.clean_to(claimed, name, answers[name], decided.closing) + 1]
            assert log.startswith(kept), f"{name} would keep what is not the log's"
            copy.log, copy.joined, copy.lost_above = log, claimed.session, None
        if engages:
            self.value = recovery.engage(claimed, here, decided.closing)
            for name in here:
                self.copies[name].confirmed = decided.closing
        return log

    @property
    def engaged(self) -> str:
        return "".join(name for name, e in sorted(self.value.engagements.items()) if e.unresolved)

    def append(self, letters: str, to: str) -> None:
        for name in to:
            assert name in self.engaged
            self.copies[name].log += letters


def written(members: str = "ABCDE", here: str | None = None) -> Partition:
    """A partition with 120 transactions, all engaged, and a tail of 5 that a quorum has and 5 that one has."""
    partition = Partition.of(members)
    assert partition.start(here or members) == ""
    partition.append("c" * 120, to=partition.engaged)
    return partition


def test_an_owner_that_died_before_it_engaged_leaves_nothing_that_disturbs_the_next() -> None:
    partition = written()
    partition.append("t", to="A")
    for _ in range(3):
        assert partition.start("ABC", engages=False) == "c" * 120 + "t"
    assert partition.start("CDE") == "c" * 120 + "t"  # C has a copy of it now
    assert partition.start("ABCDE") == "c" * 120 + "t"


def test_members_come_one_by_one_and_go() -> None:
    partition = written("ABC")
    for following, here in [("ABCD", "ABD"), ("ABCDE", "BCDE"), ("BCDE", "ABCDE"), ("CDE", "BCDE")]:
        for name in following:
            partition.copies.setdefault(name, Copy())
        partition.value = replace(partition.value, next=tuple(following))
        assert partition.start(here) == "c" * 120
        assert partition.value.members == tuple(following)
    assert partition.start("CDE") == "c" * 120
    assert partition.engaged == "CDE"


steps = st.lists(
    st.tuples(
        st.sets(st.sampled_from("ABCDE"), min_size=1),
        st.sampled_from(["append", "append", "start", "die before engaging", "wipe one", "damage one"]),
        st.integers(0, 3),
    ),
    max_size=14,
)


@pytest.mark.slow
@given(count=st.sampled_from([3, 5]), taken=steps)
def test_no_committed_transaction_is_ever_lost(count: int, taken: list[tuple[set[str], str, int]]) -> None:
    """Replicas come and go, owners die half-way, and at most one disk is lost or damaged between two sessions."""
    members = "ABCDE"[:count]
    partition = Partition.of(members)
    written = partition.start(members) or ""
    committed, spoilt, writing = "", False, True
    for number, (names, what, extent) in enumerate(taken):
        here = sorted(name for name in names if name in members)
        if what == "append" and writing:
            written += chr(65 + number) * (extent + 1)
            for name in set(here) & set(partition.engaged):
                partition.copies[name].log = written
            held = sorted((partition.copies[name].log for name in partition.engaged), key=len, reverse=True)
            committed = held[recovery.quorum(partition.value.members) - 1]
        elif what.endswith("one") and here and not spoilt:
            copy, spoilt, writing = partition.copies[here[0]], True, False
            if what == "damage one":
                copy.log = copy.log[: max(0, len(copy.log) - extent)]
                copy.lost_above = len(copy.log) - 1
            else:
                partition.copies[here[0]] = Copy()
        elif what in ("start", "die before engaging"):
            log, writing = partition.start(here, engages=what == "start"), False
            if log is not None:
                assert log.startswith(committed)
                if what == "start":
                    committed, written, writing = log, log, True
                    spoilt = spoilt and set(here) != set(members)
    log = partition.start(members)
    assert log is not None, "with one disk lost and all others here nothing needs to wait"
    assert log.startswith(committed)


def test_unresolved_is_no_mark_that_anybody_can_hold() -> None:
    assert UNRESOLVED < NO_TRANSACTION
    assert Engagement(3).unresolved
    assert not Engagement(3, NO_TRANSACTION).unresolved


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        ("A:-=-1 B:-=-1 C:-=-1", True),
        ("A:-=-1 B:-=-1 C:-=?", True),
        # The coordinator knows of a session, whatever is left of it.
        ("A=-1 B:-=-1 C:-=-1", False),
        ("A=wiped B=wiped C=wiped", False),
        ("A:5=5 B:5=5", False),
    ],
)
def test_a_session_is_the_first_if_neither_the_coordinator_nor_a_replica_knows_of_another(
    transcript: str, expected: bool
) -> None:
    assert recovery.is_first(*told(transcript)) is expected


def test_a_session_is_not_the_first_if_a_replica_has_joined_one_that_the_coordinator_has_lost() -> None:
    value, answers = told("A:-=-1 B:-=-1 C:-=-1")
    answers["B"] = replace(answers["B"], joined=1)
    assert not recovery.is_first(value, answers)

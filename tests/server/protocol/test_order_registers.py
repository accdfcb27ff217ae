"""Registers, expectations and idempotent producers, as the order of a partition judges them."""

from __future__ import annotations

import pytest

from polonaise.errors import ProtocolError
from polonaise.log import registers
from polonaise.log.producers import OPEN, Produced, pack_request
from polonaise.terms import FailureReason
from rigs.order import (
    ABSENT,
    CLIENT,
    DELETE,
    EQUALS,
    OWN,
    POSITION,
    PRESENT,
    PRODUCE,
    SET,
    WRITE,
    A,
    Tx,
    frame,
    lock,
    logged_order_of,
    order_of,
    position,
    refused,
)

# ------------------------------------------------------------------ registers


@pytest.mark.parametrize(
    ("held", "expectation", "holds"),
    [
        ({b"k": b"v"}, (EQUALS, b"k", b"v"), True),
        ({b"k": b"v"}, (EQUALS, b"k", b"w"), False),
        ({}, (EQUALS, b"k", b""), False),
        ({b"k": b""}, (EQUALS, b"k", b""), True),
        ({}, (ABSENT, b"k", b""), True),
        ({b"k": b""}, (ABSENT, b"k", b""), False),
        ({b"k": b""}, (PRESENT, b"k", b""), True),
        ({}, (PRESENT, b"k", b""), False),
        ({}, (POSITION, b"", position(10)), True),
        ({}, (POSITION, b"", position(9)), False),
        ({}, (POSITION, b"", position(11)), False),
        ({}, (POSITION, b"", position(-1)), False),
        ({}, (POSITION, b"", b"\x0a"), False),
        ({}, (POSITION, b"", b""), False),
    ],
)
def test_expectations(held: dict[bytes, bytes], expectation: tuple[int, bytes, bytes], holds: bool) -> None:
    order = order_of(closing=9, held=held)
    told = refused(order, Tx(mark=9, operations=[expectation, (SET, b"seen", b"")]))
    assert told == ([] if holds else [(0, FailureReason.EXPECTATION_FAILED, 10, 9)])
    assert (b"seen" in order.registers) == holds


def test_a_failed_expectation_rests_on_everything_that_was_ordered_before_it() -> None:
    order = order_of()
    refused(order, Tx(operations=[(SET, b"epoch", b"1")]), Tx())
    assert refused(order, Tx(operations=[(ABSENT, b"epoch", b"")])) == [(0, FailureReason.EXPECTATION_FAILED, 2, 1)]


def test_changes_are_seen_by_the_next_group_and_travel_in_the_batch() -> None:
    order, log = logged_order_of(held={b"old": b"1"})
    told = refused(
        order,
        Tx(operations=[(EQUALS, b"old", b"1"), (DELETE, b"old", b""), (SET, b"new", b"2")]),
        Tx(operations=[(ABSENT, b"old", b""), (EQUALS, b"new", b"2"), (SET, b"new", b"3")]),
        Tx(operations=[(EQUALS, b"new", b"2"), (SET, b"never", b"")]),
    )
    assert [row[0] for row in told] == [2]
    log.seal()
    assert log.registers == {b"new": b"3"}


def test_expectations_of_a_group_speak_of_the_state_before_the_group() -> None:
    order = order_of()
    group = [
        Tx(operations=[(SET, b"k", b"1")], ends_group=False),
        Tx(operations=[(ABSENT, b"k", b""), (SET, b"k", b"2")]),
    ]
    assert refused(order, *group) == []
    assert order.registers == {b"k": b"2"}


def test_a_refused_group_changes_no_register_and_raises_no_lock() -> None:
    order = order_of()
    group = [
        Tx(locks=[(A, WRITE)], operations=[(SET, b"k", b"1")], ends_group=False),
        Tx(operations=[(PRESENT, b"other", b"")]),
    ]
    assert len(refused(order, *group)) == 2
    assert order.registers == {}
    assert refused(order, Tx(locks=[(A, WRITE)])) == []


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([(SET, bytes(registers.KEY_BYTES_MAX + 1), b"")], id="key too long"),
        pytest.param([(DELETE, bytes(registers.KEY_BYTES_MAX + 1), b"")], id="key to delete too long"),
        pytest.param([(SET, b"k", bytes(registers.VALUE_BYTES_MAX + 1))], id="value too long"),
        pytest.param(
            [(SET, b"%d" % n, bytes(registers.VALUE_BYTES_MAX)) for n in range(17)], id="too much of everything"
        ),
    ],
)
def test_registers_that_would_get_too_large_refuse_the_append_and_stay_as_they_are(
    operations: list[tuple[int, bytes, bytes]],
) -> None:
    order = order_of(closing=4, held={b"kept": b"1"})
    told = refused(order, Tx(mark=4, operations=[(SET, b"before", b"x"), *operations]))
    assert [(row[1], row[3]) for row in told] == [(FailureReason.REGISTERS_FULL, 4)]
    assert order.registers == {b"kept": b"1"}


def test_full_registers_have_room_again_after_a_deletion() -> None:
    order = order_of()
    value = bytes(registers.VALUE_BYTES_MAX)
    fitting = registers.TOTAL_BYTES_MAX // (len(value) + 1)
    told = refused(order, *[Tx(operations=[(SET, bytes([n]), value)]) for n in range(fitting)])
    assert told == []
    assert len(refused(order, Tx(operations=[(SET, b"one more", value)]))) == 1
    assert refused(order, Tx(operations=[(DELETE, b"\0", b""), (SET, b"o", value)])) == []
    assert refused(order, Tx(operations=[(SET, b"o", b"shorter")])) == []


def test_what_forms_is_as_large_as_all_of_it() -> None:
    """A batch has a bound, whatever it is full of: bodies, register changes or locks."""
    order = order_of(evidence=True)
    refused(order, Tx(bytes(1000)))
    refused(order, Tx(operations=[(SET, b"key", bytes(60_000))]))
    refused(order, Tx(locks=[(lock(str(n)), WRITE) for n in range(1000)]))
    forming = order.forming_bytes
    sealed = len(order.seal(1).raw)
    assert sealed - 200 < forming <= sealed


# ------------------------------------------------------------------ producers


def produce(epoch: int, sequence: int, *, data: bytes = b"", key: bytes = b"producer/p") -> Tx:
    return Tx(data, operations=[(PRODUCE, key, pack_request(epoch, sequence))])


def test_a_producer_is_opened_and_then_counts() -> None:
    order = order_of(closing=99)
    assert refused(order, produce(1, -1), produce(1, 0), produce(1, 1)) == []
    assert Produced.parse(order.registers[b"producer/p"])[:3] == (1, 1, (101, 102))


def test_a_number_that_was_sent_before_is_answered_with_its_id() -> None:
    order = order_of()
    refused(order, produce(1, -1), *[produce(1, number) for number in range(20)])
    told = refused(order, produce(1, 19), produce(1, 4), produce(1, 3))
    assert told == [
        (0, FailureReason.DUPLICATE, 20, 20),
        (1, FailureReason.DUPLICATE, 5, 20),
        (2, FailureReason.PRODUCER_GAP, 19, 20),  # so old that its id is forgotten
    ]


def test_a_number_that_was_skipped_is_a_gap_and_an_unopened_producer_is_fenced() -> None:
    order = order_of(closing=0)
    assert refused(order, produce(1, 0)) == [(0, FailureReason.PRODUCER_FENCED, 0, 0)]
    refused(order, produce(1, -1))
    assert refused(order, produce(1, 1)) == [(0, FailureReason.PRODUCER_GAP, -1, 1)]


def test_a_later_opening_fences_the_earlier_and_goes_on_counting() -> None:
    order = order_of()
    refused(order, produce(1, -1), produce(1, 0), produce(2, -1))
    assert refused(order, produce(1, 1)) == [(0, FailureReason.PRODUCER_FENCED, 2, 2)]
    assert refused(order, produce(2, -1)) == [(0, FailureReason.PRODUCER_FENCED, 2, 2)]
    assert refused(order, produce(2, 0)) == [(0, FailureReason.DUPLICATE, 1, 2)]
    assert refused(order, produce(2, 1)) == []


def test_a_producer_of_another_name_is_another_producer() -> None:
    order = order_of()
    refused(order, produce(1, -1), produce(1, 0))
    assert refused(order, produce(1, -1, key=b"producer/q"), produce(1, 0, key=b"producer/q")) == []


def test_a_request_that_does_not_parse_orders_nothing_of_its_frame() -> None:
    order = order_of()
    with pytest.raises(ProtocolError):
        order.judge(CLIENT, frame(Tx(b"good"), Tx(operations=[(PRODUCE, b"p", b"short")])), order.next_id - 1)
    assert order.forming_count == 0


@pytest.mark.parametrize("junk", [b"", b"junk", bytes(20) + b"x", Produced(1, 2**63 - 1, (5,), (0,)).pack()])
def test_a_register_that_somebody_set_by_hand_harms_only_its_producer(junk: bytes) -> None:
    order = order_of(closing=3, held={b"producer/p": junk})
    for request in (produce(1, 0), produce(1, 2**63 - 1), produce(1, -(2**63)), produce(2**63 - 1, -1)):
        order.judge(CLIENT, frame(request), order.next_id - 1)
    assert refused(order, Tx(mark=3, operations=[(SET, b"k", b"")])) == []


# ------------------------------------------------------------------ the library's own


def test_that_a_producer_was_opened_is_marked_as_the_librarys_own() -> None:
    order, log = logged_order_of()
    opening = [(PRODUCE, b"producer/x", pack_request(1, OPEN))]
    assert refused(order, Tx(b"before"), Tx(b"", operations=opening), Tx(b"after")) == []
    batch = log.seal()
    assert [(tx.id, tx.own, tx.generation) for tx in batch.transactions(own=True)] == [
        (0, False, 1), (1, True, ~1), (2, False, 1),
    ]  # fmt: skip
    assert [tx.data for tx in batch.transactions()] == [b"before", b"after"]


def test_one_of_a_group_is_marked_and_the_others_are_not() -> None:
    order, log = logged_order_of()
    group = [Tx(b"a", ends_group=False), Tx(b"key", operations=[(OWN, b"", b"")])]
    assert refused(order, Tx(b"first"), *group, Tx(b"last")) == []
    batch = log.seal()
    assert [tx.id for tx in batch.transactions(own=True) if tx.own] == [2]


def test_nothing_is_marked_of_what_is_refused() -> None:
    order, log = logged_order_of()
    opening = [(PRODUCE, b"producer/x", pack_request(0, OPEN))]
    assert [reason for _, reason, _, _ in refused(order, Tx(b"a"), Tx(b"", operations=opening), Tx(b"b"))] == [
        FailureReason.PRODUCER_FENCED
    ]
    assert not log.seal().has_own


def test_a_number_with_other_bodies_is_told_from_a_repetition_for_groups_too() -> None:
    order = order_of(held={b"producer/p": Produced().opened(1).pack()})
    numbered = [(PRODUCE, b"producer/p", pack_request(1, 0))]

    def group(*bodies: bytes, header: int = 0) -> list[Tx]:
        sent = [Tx(body, header=header, ends_group=False) for body in bodies]
        sent[-1].operations = numbered
        sent[-1].ends_group = True
        return sent

    assert refused(order, *group(b"a", b"bc")) == []
    reasons = [
        {reason for _, reason, value, _ in refused(order, *sent, first_sequence=2) if value == 0}
        for sent in (group(b"a", b"bc"), group(b"ab", b"c"), group(b"a", b"bd"), group(b"a", b"bc", header=1))
    ]
    differs = {FailureReason.PRODUCER_DIFFERS}
    assert reasons == [{FailureReason.DUPLICATE}, differs, differs, differs]


def test_registers_that_change_for_ever_take_the_room_of_their_present_values_only() -> None:
    order = order_of(closing=-1)
    value = bytes(registers.VALUE_BYTES_MAX)
    for _ in range(2 * registers.TOTAL_BYTES_MAX // registers.VALUE_BYTES_MAX):
        assert refused(order, Tx(mark=-1, operations=[(SET, b"again", value)])) == []
    assert refused(order, Tx(mark=-1, operations=[(DELETE, b"again", b"")])) == []
    for number in range(2 * registers.TOTAL_BYTES_MAX // registers.VALUE_BYTES_MAX):
        key = b"%d" % number
        assert refused(order, Tx(mark=-1, operations=[(SET, key, value), (DELETE, key, b"")])) == []
    assert refused(order, Tx(mark=-1, operations=[(SET, b"one", value), (SET, b"one", b"")])) == []
    assert order.registers == {b"one": b""}

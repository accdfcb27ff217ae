"""Each check of a smoke test's history, tried on one that is as promised and on ones in which something is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select

from polonaise.terms import Transaction
from polonaise_proving.judges.histories import CHECKS, EXAMPLES_MAX, HELD, violations
from polonaise_proving.record.bank import OPENING_BALANCE, BankOperation, Fold, Transfer, digest_of
from polonaise_proving.record.bankledger import BankLedger, balances, database_of, fed, schema
from polonaise_proving.record.history import BatchSeen, Contents, Fed, Line, LineKind, PartitionHistory

OPERATIONS = [
    BankOperation("client-1.1/1", None),
    BankOperation("client-1.1/2", Transfer(1, 2, 30, OPENING_BALANCE, OPENING_BALANCE)),
    BankOperation("client-2.1/1", Transfer(2, 3, 10, OPENING_BALANCE + 30, OPENING_BALANCE)),
    BankOperation("client-2.1/3", None),
]
BALANCES = {1: OPENING_BALANCE - 30, 2: OPENING_BALANCE + 20, 3: OPENING_BALANCE + 10}
WHOLE = Contents(0, 3, "bytes")


def good() -> PartitionHistory:
    """Four transactions: three acknowledged, one of unknown fate; one operation refused, one of unknown fate."""
    entries = [(id, operation.encode()) for id, operation in enumerate(OPERATIONS)]
    fed = [Fed(id, digest_of(body)) for id, body in entries]
    asked = [*(operation.name for operation in OPERATIONS), "client-2.1/2", "client-1.1/3"]
    return PartitionHistory(
        partition=2,
        copies=3,
        lines=[
            *(Line(LineKind.ASK, 2, name) for name in asked),
            *(Line(LineKind.ACK, 2, operation.name, id) for id, operation in enumerate(OPERATIONS[:3])),
            Line(LineKind.REFUSED, 2, "client-2.1/2"),
            Line(LineKind.UNKNOWN, 2, "client-2.1/3"),
        ],
        batches=[BatchSeen(0, 1, 100), BatchSeen(2, 2, 100), BatchSeen(3, 3, 120)],
        entries=entries,
        contents=WHOLE,
        replicas=dict.fromkeys(["storage-1", "storage-2", "storage-3"], WHOLE),
        archive=WHOLE,
        fed={"client-1": list(fed), "client-2": list(fed)},
        views={"client-1": dict(BALANCES), "client-2": dict(BALANCES)},
    )


def test_a_history_as_promised_has_no_violation() -> None:
    assert violations(good()) == []


def set_replica(node: str, contents: Contents) -> Callable[[PartitionHistory], None]:
    return lambda history: history.replicas.__setitem__(node, contents)


WRONG: list[tuple[str, str, Callable[[PartitionHistory], object]]] = [
    ("P1", "client-1.1/1, which was acknowledged as 0; seen: nothing at 0", lambda h: h.entries.pop(0)),
    (
        "P1",
        "client-1.1/1, which was acknowledged as 1; seen: a body",
        lambda h: h.lines.append(Line(LineKind.ACK, 2, "client-1.1/1", 1)),
    ),
    ("P2", "a body with the digest 7 was given to client-2", lambda h: h.fed["client-2"].__setitem__(1, Fed(1, 7))),
    ("P3", "a batch from 2; seen: one from 3", lambda h: h.batches.pop(1)),
    ("P3", "a batch from 3; seen: one from 2", lambda h: h.batches.insert(1, h.batches[1])),
    ("P3", "100 before 3 and 99 from it on", lambda h: h.batches.__setitem__(2, BatchSeen(3, 3, 99))),
    ("P4", "id 4 to be in the log; seen: client-1 was given", lambda h: h.fed["client-1"].append(Fed(4, 7))),
    ("P5", "stale by its evidence", lambda h: h.stale.append("stale by its evidence")),
    ("P5", "1 transactions have none", lambda h: setattr(h, "without_evidence", 1)),
    (
        "P5",
        "was built on balances 1000 and 1000, and its accounts had 1030 and 1000",
        lambda h: h.entries.__setitem__(
            2, (2, BankOperation("client-2.1/1", Transfer(2, 3, 10, OPENING_BALANCE, OPENING_BALANCE)).encode())
        ),
    ),
    (
        "P5",
        "takes 1001 from an account with 1000",
        lambda h: h.entries.__setitem__(
            1, (1, BankOperation("client-1.1/2", Transfer(1, 2, 1001, OPENING_BALANCE, OPENING_BALANCE)).encode())
        ),
    ),
    ("P10", "the body of 0 to be of an operation", lambda h: h.entries.__setitem__(0, (0, b"a 1 2"))),
    (
        "P6",
        "client-2.1/2, which was refused; seen: it is in the log as [4]",
        lambda h: h.entries.append((4, b"client-2.1/2")),
    ),
    ("P6", "client-1.1/1, which was acknowledged as 0; seen: it is in the log as []", lambda h: h.entries.pop(0)),
    (
        "P6",
        "client-1.1/3, which was never answered; seen: it is in the log as [4, 5]",
        lambda h: h.entries.extend([(4, b"client-1.1/3"), (5, b"client-1.1/3")]),
    ),
    ("P10", "only what a client has asked for", lambda h: h.entries.append((4, b"client-9.1/1"))),
    ("P6", "client-1.1/3 was never answered", lambda h: h.lines.append(Line(LineKind.QUIET, -1, "client-1.1"))),
    ("P6", "client-1.1/1 was answered as", lambda h: h.lines.append(Line(LineKind.ACK, 2, "client-1.1/1", 3))),
    (
        "P7",
        "1 was applied twice, the second time in place of 2",
        lambda h: h.fed["client-2"].insert(2, h.fed["client-2"][1]),
    ),
    ("P7", "2 was applied in place of 1", lambda h: h.fed["client-2"].pop(1)),
    ("P7", "3 was applied in place of 0", lambda h: h.fed["client-1"].reverse()),
    ("P7", "account 2 has 999 in the view of client-1", lambda h: h.views["client-1"].__setitem__(2, 999)),
    ("P7", "account 9 has 5 in the view of client-1", lambda h: h.views["client-1"].__setitem__(9, 5)),
    ("P7", "there are views of", lambda h: h.views.pop("client-1")),
    ("replicas", "2 replicas were found, and there are to be 3", lambda h: h.replicas.pop("storage-1")),
    ("replicas", "storage-1 holds other bytes", set_replica("storage-1", Contents(0, 3, "other"))),
    ("replicas", "storage-2 ends with 2, and the log with 3", set_replica("storage-2", Contents(0, 2, "bytes"))),
    ("replicas", "storage-2 begins with 4, and nothing was trimmed", set_replica("storage-2", Contents(4, 3, ""))),
    ("replicas", "storage-3 can't be read: torn", set_replica("storage-3", Contents(0, 3, "bytes", "torn"))),
    ("archive", "the archive ends with 1, and the log with 3", lambda h: setattr(h, "archive", Contents(0, 1, "b"))),
    ("archive", "the archive holds other bytes", lambda h: setattr(h, "archive", Contents(0, 3, "other"))),
    ("archive", "there is no archive", lambda h: setattr(h, "archive", None)),
]


def spoiled(spoil: Callable[[PartitionHistory], object]) -> PartitionHistory:
    history = copy.deepcopy(good())
    spoil(history)
    return history


@pytest.mark.parametrize(("promise", "naming", "spoil"), WRONG, ids=[f"{each[0]}-{each[1][:50]}" for each in WRONG])
def test_a_planted_wrong_is_found(promise: str, naming: str, spoil: Callable[[PartitionHistory], object]) -> None:
    history = spoiled(spoil)
    assert any(each.promise == promise and naming in each.text for each in violations(history))


def test_every_check_has_a_wrong_that_it_finds() -> None:
    assert {promise for promise, _, _ in WRONG} == set(HELD)
    for each in CHECKS:
        spoilt = [spoil for _, _, spoil in WRONG if any(each(spoiled(spoil)))]
        assert spoilt, f"{each.__name__} finds none of them"


def test_many_violations_are_counted_and_a_few_told() -> None:
    history = good()
    history.stale += [f"stale {number}" for number in range(EXAMPLES_MAX + 4)]
    told = [each.text for each in violations(history)]
    assert len(told) == EXAMPLES_MAX + 1
    assert told[-1] == "partition 2: and 4 more"


def test_a_digest_of_a_history_changes_with_what_was_told_and_fed() -> None:
    others = [good(), good(), good()]
    others[0].lines.pop()
    others[1].fed["client-1"].pop()
    others[2].contents = Contents(0, 3, "other")
    assert len({history.digest() for history in [good(), *others]}) == 4
    assert good().digest() == good().digest()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_its_body(operation: BankOperation) -> None:
    assert BankOperation.decode(operation.encode()) == operation


@pytest.mark.parametrize("body", [b"a 1", b"a 1 2 3 4 x", "ä".encode()])
def test_other_bodies_are_no_operations(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"numbers|invalid literal|codec"):
        BankOperation.decode(body)


def test_a_fold_moves_money_and_makes_none() -> None:
    folded = Fold()
    folded.follow(enumerate(OPERATIONS))
    assert folded.wrong == []
    assert folded.balances == BALANCES


async def test_a_ledger_passes_over_a_damaged_body_and_notes_what_it_was_fed(tmp_path: Path) -> None:
    """The client goes on: that the body is damaged is for judges to find, and not for its view to die of."""
    bodies = [b"\xff damaged", OPERATIONS[1].encode()]
    ledger = BankLedger(database_of(tmp_path, "client-1"))
    engine = create_engine(database_of(tmp_path, "client-1"))
    try:
        schema.create_all(engine)
        with engine.begin() as db:
            ledger.apply_many([Transaction(2, id, 0, body, 1, 1, 1, id) for id, body in enumerate(bodies)], db)
        with engine.begin() as db:
            found = db.execute(select(balances.c.account, balances.c.balance)).all()
            digests = db.execute(select(fed.c.digest).order_by(fed.c.row)).scalars().all()
    finally:
        engine.dispose()
        await ledger.close()
    assert {row.account: row.balance for row in found} == {1: OPENING_BALANCE - 30, 2: OPENING_BALANCE + 30}
    assert digests == [digest_of(body) for body in bodies]

"""Workers for threads, and the twin that the blocking face has for whatever the log can do."""

from __future__ import annotations

import inspect
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from polonaise import Transaction, blocking, testing
from polonaise.blocking.background import Background, Call
from polonaise.blocking.workergroup import HandlerThreads
from polonaise.errors import BadOption, Closed
from rigs import blockingwriter
from rigs.bankview import Bank, body, check_fold, transactions
from rigs.blockingwriter import ADDED, BY_HAND, MADE, PHRASES, TWINS, for_threads
from rigs.raised import IN_A_THREAD
from rigs.waiting import block_until

PARTITIONS = 2


class Handled:
    """What a handler was given by partition, and by which threads."""

    def __init__(self) -> None:
        self.bodies: dict[int, list[bytes]] = defaultdict(list)
        self.threads: set[str] = set()
        self.raises: dict[bytes, BaseException] = {}
        self.gates: dict[bytes, threading.Event] = {}

    def __call__(self, tx: Transaction) -> None:
        self.threads.add(threading.current_thread().name)
        if tx.data in self.gates:
            assert self.gates[tx.data].wait(30)
        if tx.data in self.raises:
            raise self.raises[tx.data]
        self.bodies[tx.partition].append(tx.data)


@pytest.fixture
def log() -> Iterator[testing.BlockingMemoryLog]:
    with testing.blocking_log(partitions=PARTITIONS) as log:
        yield log


def appended(log: testing.BlockingMemoryLog, *bodies: bytes, partition: int = 0) -> None:
    for each in bodies:
        log.append(each, partition).result()


def threads_of(group: str) -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(f"polonaise group {group}")]


def test_a_handler_is_given_each_transaction_in_order_in_threads_of_the_group(log: testing.BlockingMemoryLog) -> None:
    handled = Handled()
    for partition in range(PARTITIONS):
        appended(log, b"0", b"1", b"2", partition=partition)
    with log.group("mails", handler=handled) as group:
        block_until(lambda: handled.bodies == {0: [b"0", b"1", b"2"], 1: [b"0", b"1", b"2"]})
        block_until(lambda: group.health()["well"])
        assert group.partitions == (0, 1)
        assert group.name == "mails"
        assert group.health()["member"] == group.member
    assert all(each.startswith("polonaise group mails") for each in handled.threads)
    block_until(lambda: not threads_of("mails"))
    with log.group("mails", handler=handled):
        appended(log, b"3")
        block_until(lambda: len(handled.bodies[0]) >= 4)
    assert handled.bodies[0] == [b"0", b"1", b"2", b"3"], "the position was saved when the group was left"


def test_a_handler_may_wait_for_its_own_log(log: testing.BlockingMemoryLog) -> None:
    marks: list[int] = []
    appended(log, b"0")
    with log.group("g", handler=lambda tx: marks.append(log.high_water_mark(tx.partition))):
        block_until(lambda: marks)
    assert marks[0] >= 0


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ValueError("no stomach"), "no stomach"),
        *((each.values[0], "the handler raised") for each in IN_A_THREAD),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
)
def test_what_a_handler_raises_holds_up_its_partition_alone(
    log: testing.BlockingMemoryLog, raised: BaseException, told: str
) -> None:
    handled = Handled()
    handled.raises = {b"1": raised}
    appended(log, b"0", b"1", b"2")
    with log.group("g", handler=handled) as group:
        block_until(lambda: told in str(group.health()["partitions"].get("0")))
        appended(log, b"x", partition=1)
        block_until(lambda: handled.bodies == {0: [b"0"], 1: [b"x"]})
        handled.raises.clear()
        block_until(lambda: handled.bodies[0] == [b"0", b"1", b"2"])
        block_until(lambda: group.health()["well"])


def test_a_handler_that_is_slow_keeps_no_other_partition_from_going_on(log: testing.BlockingMemoryLog) -> None:
    handled = Handled()
    gate = handled.gates[b"slow"] = threading.Event()
    appended(log, b"slow")
    appended(log, b"x", b"y", partition=1)
    with log.group("g", handler=handled, progress_s_max=0.1) as group:
        block_until(lambda: handled.bodies == {1: [b"x", b"y"]})
        block_until(lambda: "has taken" in group.health()["partitions"]["0"]["trouble"])
        gate.set()
        block_until(lambda: handled.bodies[0] == [b"slow"])


@pytest.mark.slow
def test_a_handler_that_does_not_return_is_left_behind_after_the_time_of_a_lease(
    log: testing.BlockingMemoryLog,
) -> None:
    handled = Handled()
    gate = handled.gates[b"slow"] = threading.Event()
    appended(log, b"slow")
    with log.group("g", handler=handled, lease_s=1.0):
        block_until(lambda: handled.threads)
    assert handled.bodies == {}
    gate.set()
    block_until(lambda: not threads_of("g"))
    assert handled.bodies == {0: [b"slow"]}
    with log.group("g", handler=handled):
        block_until(lambda: handled.bodies == {0: [b"slow", b"slow"]}, "at least once")


def test_a_call_that_nobody_waits_for_any_more_ends_before_the_next_one_of_its_partition() -> None:
    background = Background("test")
    handled = Handled()
    gate = handled.gates[b"0"] = threading.Event()
    threads = HandlerThreads(background, handled, "left")
    first, second, other = (tx._replace(data=b"%d" % tx.id) for tx in transactions(3))
    other = other._replace(partition=1)
    left, next_one = Call[None](background), Call[None](background)
    background.begin(left, lambda: threads.handle(first))
    block_until(lambda: handled.threads)
    left.give_up()
    background.begin(next_one, lambda: threads.handle(second))
    background.call(lambda: threads.handle(other))
    assert next_one in background.calls
    assert handled.bodies == {1: [b"2"]}, "the first call hangs, and the second one has to wait for it"
    gate.set()
    next_one.result()
    assert handled.bodies == {0: [b"0", b"1"], 1: [b"2"]}
    threads.close()
    background.close(nothing)


async def nothing() -> None:
    """What a background thread has to close when there is no log."""


def test_a_view_is_applied_by_workers(log: testing.BlockingMemoryLog, sqlite_url: str) -> None:
    for partition in range(PARTITIONS):
        appended(log, *(body(number) for number in range(4)), partition=partition)
    with log.group("g", view=Bank(sqlite_url)) as group:
        block_until(lambda: [each["position"] for each in group.health()["partitions"].values()] == [3, 3])
    check_fold(sqlite_url, {0: 4, 1: 4})


@pytest.mark.parametrize("by", ["leave", "close"])
def test_who_waits_for_the_end_is_told_when_the_group_is_left_or_the_log_is_closed(
    log: testing.BlockingMemoryLog, by: str
) -> None:
    told: list[BaseException] = []

    def wait() -> None:
        try:
            group.ended()
        except BaseException as error:  # noqa: BLE001 - looked at below
            told.append(error)

    with log.group("g", handler=Handled()) as group:
        waiting = threading.Thread(target=wait)
        waiting.start()
        block_until(lambda: group.partitions)
        group.leave() if by == "leave" else log.close()
        waiting.join(30)
        assert not waiting.is_alive()
        group.leave()
    assert isinstance(told[0], Closed)
    block_until(lambda: not threads_of("g"))


def generating(tx: Transaction) -> Iterator[None]:
    """A generator function: called, it runs nothing of its code."""
    yield


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "either a view or a handler"),
        ({"handler": 1}, "a plain function, not called"),
        ({"handler": nothing}, "coroutines go with polonaise.connect"),
        ({"handler": generating}, "without yield"),
        ({"view": object()}, "SqlView"),
        ({"handler": print, "view": object()}, "either a view or a handler"),
    ],
)
def test_arguments_that_no_group_can_have_are_refused(
    log: testing.BlockingMemoryLog, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadOption, match=told):
        log.group("g", **given)


@pytest.mark.parametrize(
    ("handler", "told"), [(lambda _: nothing(), "returned a coroutine"), (lambda tx: generating(tx), "a generator")]
)
def test_a_handler_whose_code_has_not_run_is_told_as_a_mistake(
    log: testing.BlockingMemoryLog, handler: Any, told: str
) -> None:
    appended(log, b"0")
    with log.group("g", handler=handler) as group:
        block_until(lambda: told in str(group.health()["partitions"].get("0")))
        assert group.health()["partitions"]["0"]["position"] < 1, "and the transaction is not passed over"


CLASSES = [twin for twin in TWINS if inspect.isclass(twin.of)]
LONGER_OR_SHORTER = {"Receipt.wait", "Submission.outcome"}
"""Written by hand, with a timeout in seconds where a task gives a time of its loop, or is cancelled."""


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_each_method_has_a_twin_of_the_same_shape_that_is_documented(twin: blockingwriter.Twin) -> None:
    of = getattr(blocking, twin.name)
    pairs = [(twin.name, twin.of, of)] if twin not in CLASSES else []
    for name, member in inspect.getmembers(twin.of, inspect.isfunction) if twin in CLASSES else []:
        if not name.startswith("_") and name not in twin.without and f"{twin.name}.{name}" not in LONGER_OR_SHORTER:
            pairs.append((name, member, getattr(of, name)))
    assert pairs
    for name, asynchronous, plain in pairs:
        assert shape(plain) == shape(asynchronous), name
        assert inspect.getdoc(plain), name


def unformatted() -> str:
    """What is made, all of it, before it is formatted: quick."""
    return "".join(blockingwriter.made(twin, (blockingwriter.BLOCKING / twin.file).read_text()) for twin in TWINS)


@pytest.mark.parametrize("key", [*PHRASES, *ADDED])
def test_whatever_is_said_otherwise_for_threads_is_said(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = unformatted()
    monkeypatch.delitem(PHRASES if key in PHRASES else ADDED, key)
    assert unformatted() != made


def test_no_docstring_that_is_made_speaks_of_tasks() -> None:
    for twin in TWINS:
        _, *halves = (blockingwriter.BLOCKING / twin.file).read_text().split(MADE.split("{")[0])
        assert halves
        for half in halves:
            told = half.split(BY_HAND)[0]
            assert re.findall(r".*\b(?:await|async|coroutine|event loop)\b.*", told) == [], twin.name


@pytest.mark.parametrize(
    ("said", "for_thread"),
    [
        ("Awaits it, or `await receipt.applied()`.", "Waits for it, or `receipt.applied()`."),
        ("    receipt = await log.append(b'x')", "    receipt = log.append(b'x').result()"),
        ("    async with log.lease('a') as lease:  # waits", "    with log.lease('a') as lease:  # waits"),
        ("- first\n  line\n- await second", "- first\n  line\n- wait for second"),
        ("Nothing else\nthan before.", "Nothing else\nthan before."),
    ],
)
def test_words_of_tasks_become_words_of_threads(said: str, for_thread: str) -> None:
    assert for_threads(said, 116) == for_thread


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    def lost(self) -> str:", "    def lost(self, timeout: float) -> str:"),
        ('"""The lease\'s name."""', '"""The name."""'),
        ("return waited(self._background, self._lease.lost)", 'return ""'),
    ],
)
def test_what_is_made_and_was_changed_is_made_again(right: str, wrong: str) -> None:
    text = (blockingwriter.BLOCKING / "lease.py").read_text()
    assert right in text
    assert blockingwriter.written("lease.py", text.replace(right, wrong)) == text


def test_what_is_by_hand_stays() -> None:
    text = (blockingwriter.BLOCKING / "lease.py").read_text()
    changed = text.replace("self.acquire()", "self.acquire(timeout=1)")
    assert changed != text
    assert blockingwriter.written("lease.py", changed) == changed

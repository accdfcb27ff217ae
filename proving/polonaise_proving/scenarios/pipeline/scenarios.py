"""The moments that matter, each hit on purpose: what goes wrong, and what must be there afterwards.

A scenario returns what is wrong, in words; a fault that did not come about is wrong too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

from polonaise.client.protocol.group import Group
from polonaise.errors import PolonaiseError
from polonaise_proving.judges.rows import GROUP, judge_figures
from polonaise_proving.record.failures import GaveUp
from polonaise_proving.scenarios.pipeline.copies import BY_BYTES, FINER, SPLIT, ToLog, ToParquet, TorturedCopy, ToSql
from polonaise_proving.scenarios.pipeline.drivers import Driver, Drivers, wait_for
from polonaise_proving.scenarios.pipeline.faults import SparkFault
from polonaise_proving.scenarios.pipeline.ground import BUSY, FEW, FEW_ROWS, MANY, OTHER_TARGETS, Ground

PAUSE_S = 0.01
"""Between groups: 5,000 transactions a second, if the machine has time for it."""
LIVES_MAX = 4
"""The most tries that a copy may need after its faults: it may fail a few times more, because of their effects."""
MIDDLE = 2
"""The micro-batch, of five, in which things go wrong."""
BATCHES = len(FEW) * FEW_ROWS // 100
"""Of the queries that read those."""


class Rig:
    """The cluster, and the driver that works on it."""

    def __init__(self, ground: Ground, drivers: Drivers) -> None:
        self.ground = ground
        self.drivers = drivers

    def begin(self, lives: Mapping[TorturedCopy, SparkFault | None], split: Mapping[str, str] = SPLIT) -> Driver:
        """Let copies run together, each with its fault. Return the driver that runs them."""
        driver = self.drivers.current()
        jobs = [copy.life(dict(split), fault) for copy, fault in lives.items()]
        driver.ask({"job": "together", "jobs": jobs})
        return driver

    def through(self, lives: Mapping[TorturedCopy, SparkFault | None]) -> list[str | None]:
        """Let copies run together to their ends, each with its fault. Return None or the error of each."""
        return outcomes_of(self.begin(lives).answer(), len(lives))

    def finish(self, copies: Sequence[TorturedCopy], split: Mapping[str, str], shuffle: int | None = None) -> list[str]:
        """Start copies again until all are complete, then compare."""
        unfinished, failed = list(copies), ""
        for _ in range(LIVES_MAX):
            jobs = [copy.life(dict(split), shuffle=shuffle) for copy in unfinished]
            answer = self.drivers.current().run({"job": "together", "jobs": jobs})
            outcomes = outcomes_of(answer, len(unfinished))
            failed = "; ".join(outcome for outcome in outcomes if outcome)
            unfinished = [copy for copy, outcome in zip(unfinished, outcomes, strict=True) if outcome]
            if not unfinished:
                return self.compared(copies)
        return [f"{', '.join(copy.job for copy in unfinished)} did not come to an end: {failed}"]

    def compared(self, copies: Sequence[TorturedCopy]) -> list[str]:
        driver = self.drivers.current()
        return [f"{copy.job}: {wrong}" for copy in copies for wrong in copy.wrong(driver)]


def outcomes_of(answer: Mapping[str, Any], count: int) -> list[str | None]:
    """Return, for each copy that ran, None or its error."""
    return list(answer["value"]) if answer["ok"] else [answer["error"]] * count


Scenario: TypeAlias = Callable[[Rig], list[str]]


def three(ground: Ground, sources: tuple[int, ...] = (0, 1), trigger: int | None = 100) -> list[TorturedCopy]:
    """Make one copy of each kind."""
    return [kind(ground, sources, trigger) for kind in (ToLog, ToParquet, ToSql)]


def missed(faults: Sequence[SparkFault | None]) -> list[str]:
    return [f"{fault.do} at {fault.step} did not happen" for fault in faults if fault is not None and not fault.hit]


def all_hit(faults: Sequence[SparkFault], driver: Driver) -> None:
    """Wait until each of these faults has happened. Raises `GaveUp`, `DriverDied`, `AnsweredEarly`."""

    def hit() -> bool:
        driver.check_at_work()
        return all(fault.hit for fault in faults)

    try:
        wait_for(hit, "faults")
    except GaveUp as error:
        raise GaveUp(f"{error}: {', '.join(missed(faults))}") from None


# ------------------------------------------------------------------ a part of a driver


def task_raises(rig: Rig) -> list[str]:
    """A task raises half-way on its first attempt."""
    return _task(rig, "fail")


def worker_killed(rig: Rig) -> list[str]:
    """A Python worker is killed with -9 after it has written; where Spark writes, in the middle of what it reads."""
    return _task(rig, "kill_worker")


def _task(rig: Rig, do: str) -> list[str]:
    log, files, table = copies = three(rig.ground)
    lives: dict[TorturedCopy, SparkFault | None] = {
        log: log.fault("write/half" if do == "fail" else "write/done", do, batch=MIDDLE, task=0),
        files: files.fault("read/batch", do, batch=MIDDLE, task=0),
        table: table.fault("read/batch", do, batch=MIDDLE, task=0),
    }
    failed = [f"Spark has not tried again: {outcome}" for outcome in rig.through(lives) if outcome]
    return missed(list(lives.values())) + failed + rig.compared(copies)


def answer_lost(rig: Rig) -> list[str]:
    """The connection breaks after a group was sent and before its answer is heard."""
    copy = ToLog(rig.ground)
    fault = copy.fault("append/before", "deaf", batch=MIDDLE)
    failed = [outcome for outcome in rig.through({copy: fault}) if outcome]
    return missed([fault]) + failed + rig.compared([copy])


def commit_raises(rig: Rig) -> list[str]:
    """A commit succeeds and Spark is told that it failed: it aborts, and the next driver divides it differently."""
    log, table = copies = [ToLog(rig.ground, MANY, None, inlineBytesMax="1"), ToSql(rig.ground)]
    lives: dict[TorturedCopy, SparkFault | None] = {log: log.fault("commit/done", "fail", batch=0)}
    lives[table] = table.fault("sql/done", "fail", batch=MIDDLE)
    outcomes = rig.through(lives)
    heard = [f"{copy.job} was not told" for copy, outcome in zip(copies, outcomes, strict=True) if not outcome]
    return missed(list(lives.values())) + heard + rig.finish(copies, BY_BYTES)


def rows_shuffled(rig: Rig) -> list[str]:
    """A driver's batch fails after the first group of its chain, and is made again of shuffled rows."""
    copy = ToLog(rig.ground, MANY, None, inlineBytesMax="1")
    fault = copy.fault("append/after", "fail", batch=0)
    rig.through({copy: fault})
    return missed([fault]) + rig.finish([copy], FINER, shuffle=3)


def staged_rows_damaged(rig: Rig) -> list[str]:
    """A byte of what tasks have staged flips before it is published: Spark is told, and what is in the log is sound.
    When the byte is as it was, the batch is finished."""
    copy = ToLog(rig.ground, MANY, None, inlineBytesMax="1", staging=str(rig.ground.scratch("staging")))
    fault = copy.fault("commit/begin", "gate", batch=0)
    driver = rig.begin({copy: fault})
    all_hit([fault], driver)
    objects = copy.staged()
    for staged in objects:
        _flip(staged)
    fault.open_gate()
    (outcome,) = outcomes_of(driver.answer(), 1)
    wrong = [] if "staged rows in" in (outcome or "") else [f"the damage was not named: {outcome}"]
    expected = rig.ground.expected(MANY)
    for source, rows in zip(MANY, copy.written().values(), strict=True):
        if rows != expected[source][: len(rows)] or len(rows) == len(expected[source]):
            wrong.append(f"of partition {source} with damage {len(rows):,} rows were published, not all of them sound")
    for staged in objects:
        _flip(staged)
    return wrong + rig.finish([copy], SPLIT)


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


# ------------------------------------------------------------------ the log


def server_killed(rig: Rig) -> list[str]:
    """The log's server is killed with requests of a reader and a group of the sink unanswered, and started again."""
    return _interrupted(rig, rig.ground.break_server)


def storage_lost(rig: Rig) -> list[str]:
    """A storage node is killed and its disk is gone, in the middle of everything; later another takes its place."""

    def lose(meanwhile: Callable[[], None]) -> None:
        rig.ground.lose_storage(0)
        meanwhile()

    wrong = _interrupted(rig, lose)
    rig.ground.replace_storage(0)
    return wrong


def _interrupted(rig: Rig, interrupt: Callable[[Callable[[], None]], None]) -> list[str]:
    log, files, table = copies = three(rig.ground, MANY, None)
    # A reader that waits at a gate has one of Spark's two cores, so there is one only.
    lives: dict[TorturedCopy, SparkFault | None] = {table: None, files: files.fault("read/batch", "gate", at=1)}
    lives[log] = log.fault("append/before", "gate", at=1)
    driver = rig.begin(lives)
    faults = [fault for fault in lives.values() if fault is not None]
    all_hit(faults, driver)

    def open_gates() -> None:
        for fault in faults:
            fault.open_gate()

    interrupt(open_gates)
    outcomes = outcomes_of(driver.answer(), len(copies))
    return [f"a query ended: {outcome}" for outcome in outcomes if outcome] + rig.compared(copies)


# ------------------------------------------------------------------ the driver


def killed_before_the_checkpoint(rig: Rig) -> list[str]:
    """JVM and Python are killed between the sink's commit and the checkpoint's; the next driver divides differently."""
    log, files, table = three(rig.ground)
    assert isinstance(files, ToParquet)
    rig.drivers.prepare()
    committed = [log.fault("commit/done", "gate", batch=MIDDLE), table.fault("sql/done", "gate", batch=MIDDLE)]
    before = files.fault("read/begin", "gate", batch=MIDDLE, task=0)
    driver = rig.begin({log: committed[0], files: before, table: committed[1]})
    all_hit([*committed, before], driver)
    before.open_gate()
    hit = caught(driver, files, MIDDLE)
    driver.kill()
    wrong = [] if hit else ["the driver was not caught between _spark_metadata and commits"]
    return wrong + rig.finish([log, files, table], FINER)


def caught(driver: Driver, files: ToParquet, first: int) -> bool:
    """Stop the driver when Spark's file sink has committed this batch, or a later one, and the checkpoint has not.

    Whether it was so: it takes milliseconds, in which the processor may be with somebody else.
    """
    for batch in range(first, BATCHES):
        wait_for(partial(files.committed_by_sink, batch), "a committed batch of files", every_s=0.0005)
        driver.stop()
        if not files.committed(batch):
            return True
        if batch + 1 < BATCHES:
            driver.resume()
    return False


def half_done(rig: Rig, in_log: str, in_sql: str) -> tuple[list[TorturedCopy], list[SparkFault], Driver]:
    """Start copies and stop each at a gate: in a chain of groups, in half-written files, in a SQL transaction."""
    log, files, table = copies = three(rig.ground, MANY, None)
    rig.drivers.prepare()
    lives = {
        log: log.fault(in_log, "gate", at=2),
        files: files.fault("read/batch", "gate", at=1),
        table: table.fault(in_sql, "gate"),
    }
    driver = rig.begin(lives)
    all_hit(list(lives.values()), driver)
    return copies, list(lives.values()), driver


def killed_between_groups(rig: Rig) -> list[str]:
    """The driver is killed with a chain of groups half done, files half written, a SQL transaction open."""
    copies, _, driver = half_done(rig, "append/after", "sql/inside")
    driver.kill()
    return rig.finish(copies, BY_BYTES)


def zombie(rig: Rig) -> list[str]:
    """A driver is stopped in the middle of everything, its successor does all there is to do, and it wakes up."""
    return overtaken(rig, *half_done(rig, "append/sent", "sql/begin"))


def overtaken(rig: Rig, copies: list[TorturedCopy], faults: list[SparkFault], stopped: Driver) -> list[str]:
    """Stop the driver, which is at these gates; let its successor do all there is to do, and wake it up."""
    rig.drivers.retire()
    stopped.stop()
    wait_for(lambda: stopped.stopped, "the driver to stop")
    for fault in faults:
        fault.open_gate()
    wrong = rig.finish(copies, FINER)
    stopped.resume()
    stopped.answer()
    rig.drivers.over(stopped)
    return wrong + [f"after the zombie: {each}" for each in rig.compared(copies)]


# ------------------------------------------------------------------ snapshots


class Appender(threading.Thread):
    """A thread that appends while its context manager is open, without waiting for answers.

    Leaving it raises `GaveUp` if the thread has died meanwhile: then nothing was appended beside what was tried.
    """

    def __init__(self, ground: Ground) -> None:
        super().__init__(daemon=True)
        self._log = ground.log
        self._over = threading.Event()
        self._sent = 0

    def __enter__(self) -> Appender:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        died = not self.is_alive()
        self._over.set()
        self.join()
        if died:
            raise GaveUp("the appends beside the snapshots ended by themselves: see the traceback of their thread")

    def run(self) -> None:
        began_s = time.monotonic()
        while not self._over.is_set():
            group = Group.of([f"busy {self._sent + place}".encode() for place in range(GROUP)])
            try:
                self._log.ready(BUSY, timeout=10)
                self._log.append_group(group, BUSY)
            except PolonaiseError:
                time.sleep(PAUSE_S)  # the server is away
            self._sent += GROUP
            time.sleep(max(0.0, began_s + self._sent / GROUP * PAUSE_S - time.monotonic()))


def snapshots_agree(rig: Rig) -> list[str]:
    """Check snapshots while 5,000 transactions a second are appended and the server is killed amid unanswered ones."""
    ground, driver = rig.ground, rig.drivers.current()
    job = {"job": "snapshot", "cluster": ground.cluster, "partitions": str(BUSY), "split": {"minPartitions": "3"}}
    seen: list[tuple[int, dict[str, Any]]] = []
    began = ground.end(BUSY)
    with Appender(ground):
        wait_for(lambda: ground.end(BUSY) > began + 500, "appends")
        seen.append((ground.end(BUSY), driver.run({**job, "times": 3})["value"]))
        before = ground.end(BUSY)
        driver.ask({**job, "times": 2})
        ground.break_server(lambda: None)
        seen.append((before, driver.answer()["value"]))
    ground.log.flush(BUSY, timeout=60)
    return [each for mark, answer in seen for each in judge_snapshot(answer, mark, ground)]


def judge_snapshot(answer: dict[str, Any], mark: int, ground: Ground) -> list[str]:
    """Return the mistakes of a snapshot that was taken when `mark` was committed, once all appends are decided."""
    final = [crc32(body.encode()) for body in ground.written({BUSY: -1})[BUSY]]
    return judge_figures(answer["figures"], [tuple(each) for each in answer["crcs"]], mark, final)


ALL: tuple[Scenario, ...] = (
    snapshots_agree,
    task_raises,
    worker_killed,
    answer_lost,
    commit_raises,
    rows_shuffled,
    staged_rows_damaged,
    server_killed,
    storage_lost,
    killed_before_the_checkpoint,
    killed_between_groups,
    zombie,
)
"""In this order: the last three need a new driver each."""


# ------------------------------------------------------------------ mutations


def naive_task_raises(rig: Rig) -> list[str]:
    """As `task_raises`, for a sink that appends at once."""
    return _naive_task(rig, "write/half", "fail")


def naive_worker_killed(rig: Rig) -> list[str]:
    """As `worker_killed`, for a sink that appends at once."""
    return _naive_task(rig, "write/done", "kill_worker")


def _naive_task(rig: Rig, step: str, do: str) -> list[str]:
    copy = ToLog(rig.ground, sink="at-once")
    fault = copy.fault(step, do, batch=MIDDLE, task=0)
    rig.through({copy: fault})
    return missed([fault]) + rig.compared([copy])


def naive_driver_killed(rig: Rig) -> list[str]:
    """As `killed_before_the_checkpoint`, for a sink that appends at once, one with a key for each Spark partition
    (killed with one task of two committed), and a table without marks."""
    at_once, table = ToLog(rig.ground, sink="at-once"), ToSql(rig.ground, marks=False)
    by_task = ToLog(rig.ground, sink="by-task", targets=OTHER_TARGETS)
    rig.drivers.prepare()
    lives: dict[TorturedCopy, SparkFault] = {
        at_once: at_once.fault("commit/done", "gate", batch=MIDDLE),
        by_task: by_task.fault("write/half", "gate", batch=MIDDLE, task=1),
        table: table.fault("sql/done", "gate", batch=MIDDLE),
    }
    driver = rig.begin({**lives})
    all_hit(list(lives.values()), driver)

    def committed_by_the_other_task() -> bool:
        driver.check_at_work()
        return by_task.count(OTHER_TARGETS[0]) >= 50 * (MIDDLE + 1)

    wait_for(committed_by_the_other_task, "the other task's commit")
    driver.kill()
    return rig.finish([at_once, by_task, table], FINER)

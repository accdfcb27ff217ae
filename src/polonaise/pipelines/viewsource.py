"""The log as one view reads it: its rows, and what happens to the bodies that its decoder can't read."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from polonaise.admin.logs import time_by
from polonaise.errors import BadOption, BeyondLog, ClientAhead
from polonaise.fragments.protocol.coverage import Span
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.keptframes import kept_on_disk
from polonaise.pipelines.rowtexts import shown
from polonaise.pipelines.source import EVERYTHING, LogSource, Marks, Until
from polonaise.pipelines.targetlimits import (
    NAMED_MAX,
    NONE_REFUSED,
    Limit,
    NotHeld,
    RefusedRow,
    refused_rows,
    without_refused,
)
from polonaise.spark import query
from polonaise.spark.options import FRAGMENTS, microseconds, range_options, read_options
from polonaise.spark.queryhistory import QueryHistory
from polonaise.spark.schemas import REASON
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

LETTER_COLUMNS: Final = ("partition", "transaction_id", "timestamp", "header", "reason", "data")
"""The columns of a dead-letter table."""
_WAIT_S: Final = 1.0
_STORE_WAIT_S: Final = 5.0
"""Seconds between two looks at a store of fragments, which does not tell when it grows."""
_OPTION: Final = "onUndecodable"
_STORE: Final = "fragments"
_OLDER: Final = "failondecodeerror"
_IN_ROWS: Final = ("column", "only")
"""Values of `onUndecodable` with which the view's query itself sees undecodable bodies."""


class UndecodablePolicy(enum.Enum):
    """What a job does with an undecodable body, which is in none of the view's rows in any case. It is no part of a
    view's definition. A `read` that puts undecodable bodies into the rows is, and allows only FAIL."""

    FAIL = "fail"
    """End with an error that names the body, unless the view's `read` puts undecodable bodies into its rows."""
    SKIP = "skip"
    """Leave the body out, and count it in the report, which names the first `NAMED_MAX`."""
    TABLE = "table"
    """Leave the body out, and add it to the dead-letter table beside the view's, in the same step."""


class UndecodableBody(NamedTuple):
    """An undecodable body, named by its transaction."""

    partition: PartitionId
    transaction_id: TransactionId
    reason: str

    def __str__(self) -> str:
        return f"transaction {self.transaction_id} of partition {self.partition}: {self.reason}"


@dataclass(frozen=True)
class Letters(NotHeld[UndecodableBody]):
    """The undecodable bodies of a part of the log."""

    refused: NotHeld[RefusedRow] = NONE_REFUSED
    """The rows of this part that the view's table can't hold."""

    def and_then(self, more: Self) -> Self:
        return replace(super().and_then(more), refused=self.refused.and_then(more.refused))


NO_LETTERS: Final = Letters()


def policy_of(view: TableView, given: str | None = None, *, has_limits: bool = False) -> UndecodablePolicy:
    """Return the policy given for this run (`given`), or else the view's, or else FAIL. Raises `BadOption`. Where the
    table `has_limits`, the policy is for the rows that it can't hold, too."""
    words = _words(view.read)
    declared = words.get(_OPTION.lower())
    if declared is not None and _OLDER in words:
        raise BadOption(f"view {view.name}: read has both {_OPTION} and failOnDecodeError: keep {_OPTION} only")
    in_rows = _are_in_rows(words)
    policy = policy_named(given or ("fail" if in_rows else declared) or "fail")
    if policy is UndecodablePolicy.FAIL or has_limits:
        return policy
    if in_rows:
        raise BadOption(
            f"view {view.name}: its read puts undecodable bodies into its rows, which is a part of its definition "
            f"(failOnDecodeError=false, {_OPTION}=column or only): take that out of read and rebuild, then {_OPTION} "
            "can be changed from run to run"
        )
    if "decoder" not in words:
        raise BadOption(f"view {view.name} has no decoder, so no body is undecodable: leave {_OPTION} out")
    return policy


def _words(options: Mapping[str, object]) -> dict[str, str]:
    return {name.lower(): str(value).strip().lower() for name, value in options.items()}


def _are_in_rows(words: Mapping[str, str]) -> bool:
    """Whether the query itself sees undecodable bodies, by the options of the source in lower case."""
    return words.get(_OPTION.lower()) in _IN_ROWS or words.get(_OLDER) == "false"


def policy_named(word: str) -> UndecodablePolicy:
    """Return the policy of this name. Raises `BadOption` for an unknown one."""
    try:
        return UndecodablePolicy(word.strip().lower())
    except ValueError:
        words = ", ".join(each.value for each in UndecodablePolicy)
        raise BadOption(f"{_OPTION}={word!r}: write one of {words}") from None


class ViewSource:
    """The part of one log that one view reads."""

    def __init__(
        self,
        spark: SparkSession,
        source: LogSource,
        view: TableView,
        policy: UndecodablePolicy,
        limits: Callable[[StructType], Sequence[Limit]] | None = None,
    ) -> None:
        """Take the `policy`, and what says which rows of these columns the view's table can't hold; None for none."""
        self._spark = spark
        self._limits = limits
        self._source = source
        self._view = view
        self.policy = policy
        # One rule for marks and rows, which else could come of two stores: the job's store counts, then the view's.
        jobs = {name.lower() for name in source.options} | ({_STORE} if source.address.startswith(FRAGMENTS) else set())
        if _words(view.read).get(_OPTION.lower()) not in _IN_ROWS:  # the policy says what becomes of them
            jobs.add(_OPTION.lower())
        self._read = {
            **{name: value for name, value in view.read.items() if name.lower() not in jobs},
            **source.options,
        }
        words = _words(self._read)
        left_out = policy is not UndecodablePolicy.FAIL and not _are_in_rows(words)
        self._may_lack_bodies = left_out and "decoder" in words
        """Whether undecodable bodies are left out of what the query sees."""

    def marks(self, until: Until = EVERYTHING) -> dict[PartitionId, TransactionId]:
        """Return the last id to read of each partition that the view's query reads, as `until` says; -1 for none.
        Raises `BadOption` unless the ids of `until` are of just these partitions, `BeyondLog` for ids that are not
        committed, and what reading raises."""
        options = read_options({"cluster": self._source.address, **self._read})
        if until.time is not None:
            history = QueryHistory(options)
            history.ends()  # with the first answer of a log, a server's clock is known
            ending = time_by(until.time, None if history.log is None else history.log.clock_ahead_s)
            if history.log is None and isinstance(until.time, timedelta):
                _log.warning("%s ago is %s by the clock of this machine: a store has none", until.time, ending)
            options = replace(options, ending_time_us=microseconds(ending + timedelta(microseconds=1)))
        committed = {partition: span.last for partition, span in QueryHistory(options).wanted().items()}
        if until.ids is None:
            return committed
        if set(until.ids) != set(committed):
            raise BadOption(
                f"until names partitions {sorted(until.ids)}, but {sorted(committed)} are read: give an id of each"
            )
        for partition, id in until.ids.items():
            if not NO_TRANSACTION <= id <= committed[partition]:
                raise BeyondLog(
                    f"partition {partition} is committed up to {committed[partition]}: there is no transaction {id}"
                )
        return dict(until.ids)

    def check_not_ahead(self, marks: Marks) -> None:
        """Raise `ClientAhead` for a table that holds more than is committed now."""
        committed = self.marks()
        for partition, mark in marks.items():
            if mark > committed.get(partition, mark):
                raise ClientAhead(
                    f"the table of view {self._view.name} is made up to {mark} of partition {partition}, and the log "
                    f"there ends at {committed[partition]}: it is of another log, or the log was restored from a "
                    "backup; compare them, then rebuild the table"
                )

    def wait_beyond(self, marks: Marks) -> None:
        """Wait for transactions above `marks`, `_WAIT_S` at most; for a store alone, `_STORE_WAIT_S` in any case."""
        history = QueryHistory(read_options({"cluster": self._source.address, **self._source.options}))
        if history.log is None:
            time.sleep(_STORE_WAIT_S)
        else:
            history.wait_beyond({partition: id + 1 for partition, id in marks.items()}, _WAIT_S)

    def rows(self, after: Marks, upto: Marks) -> DataFrame:
        """Return the view's rows of the transactions above `after` and up to `upto`. A row that the table can't hold is
        not among them; with the policy FAIL computing it raises `ViewFailed`."""
        return self._view.rows(self._spark, self._seen(after, upto), self._fitting)

    def _seen(self, after: Marks, upto: Marks) -> DataFrame:
        """Return what the view's query sees of the transactions above `after` and up to `upto`."""
        return self._frame({_OPTION: "skip"} if self._may_lack_bodies else {}, after, upto)

    def _fitting(self, frame: DataFrame) -> DataFrame:
        limits = () if self._limits is None else self._limits(frame.schema)
        skips = self.policy is not UndecodablePolicy.FAIL
        return without_refused(frame, self._view, limits, skips=skips) if limits else frame

    @contextmanager
    def letters(self, after: Marks, upto: Marks) -> Iterator[Letters]:
        """Find what the table lacks of the transactions above `after` and up to `upto`: bodies and rows; none with
        FAIL. They are kept on disk until the `with` statement ends, because finding them means decoding all bodies."""
        with ExitStack() as kept:
            letters = NO_LETTERS
            if self._may_lack_bodies:
                undecodable = self._frame({_OPTION: "only"}, after, upto).withColumn("reason", F.col(REASON))
                letters = self._letters_in(kept.enter_context(kept_on_disk(undecodable.select(*LETTER_COLUMNS))))
            if self.policy is not UndecodablePolicy.FAIL and self._limits is not None:
                queried = self._view.queried(self._spark, self._seen(after, upto))
                if limits := self._limits(queried.schema):
                    rows = kept.enter_context(kept_on_disk(refused_rows(queried, self._view, limits)))
                    letters = replace(letters, refused=self._refused_in(rows))
            yield letters

    def _letters_in(self, rows: DataFrame) -> Letters:
        count = rows.count()
        first = rows.orderBy("partition", "transaction_id").select(*UndecodableBody._fields).limit(NAMED_MAX)
        named = [UndecodableBody(*row) for row in first.collect()] if count else []
        return Letters(count, named, rows if count and self.policy is UndecodablePolicy.TABLE else None)

    def _refused_in(self, rows: DataFrame) -> NotHeld[RefusedRow]:
        count = rows.count()
        columns = ("partition", "transaction_id", "column_name", "reason", "shown")
        first = rows.orderBy("partition", "transaction_id", "shown").select(*columns).limit(NAMED_MAX)
        named = [RefusedRow(*row)._replace(row=shown(row["shown"])) for row in first.collect()] if count else []
        return NotHeld(count, named, rows.drop("shown") if count and self.policy is UndecodablePolicy.TABLE else None)

    def _frame(self, how: Mapping[str, str], after: Marks, upto: Marks) -> DataFrame:
        """Return the transactions above `after` and up to `upto`, of the partitions of `upto`."""
        read = self._read
        if how:  # the older option would contradict the one that is set here
            read = {name: value for name, value in read.items() if name.lower() != _OLDER}
        spans = {
            partition: Span(after.get(partition, NO_TRANSACTION) + 1, upto[partition]) for partition in sorted(upto)
        }
        options = {**read, **how, **range_options(spans)}
        return query.read(self._spark, self._source.address, **options)

"""The job views: makes a view's table from the log, anew up to any id or time, or brought up to date from its marks.

There is no checkpoint. The table holds its marks, and each commit is a bounded query over the ids between these marks
and the next ones, made only if the marks are still where they were. So a driver that died, one that wakes up late, and
several at once are one case: the commit that comes second changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from polonaise.errors import BadOption, ViewUnavailable
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.runs import JobProgress, Silence
from polonaise.pipelines.source import EVERYTHING, Marks, Until, open_source
from polonaise.pipelines.sparkerrors import translating
from polonaise.pipelines.targetaddress import has_limits, open_target
from polonaise.pipelines.targets import NewRows, Target
from polonaise.pipelines.viewsource import NO_LETTERS, Letters, UndecodablePolicy, ViewSource, policy_of
from polonaise.redaction import redacted_address
from polonaise.spark.protocol.splits import admitted
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSACTIONS_MAX: Final = 1_000_000
"""Largest number of transactions in one commit, by default, and so of what has to be done again if the driver dies."""
_TRIES: Final = 5
"""Number of refused commits in a row, while the marks stay, after which a run gives up."""


class Commit(NamedTuple):
    """A range of the log that this run has added to the table."""

    before: dict[PartitionId, TransactionId]
    """The id above which the range begins, in each partition; at id 0 in others."""
    after: dict[PartitionId, TransactionId]
    """The last id of the range in each partition to which it adds something; of a rebuild, in each that is read."""
    undecodable: Letters = NO_LETTERS
    """The undecodable bodies of this range, and the rows that the table can't hold."""

    @property
    def transactions(self) -> int:
        return sum(last - self.before.get(partition, NO_TRANSACTION) for partition, last in self.after.items())


@dataclass(frozen=True)
class ViewReport:
    """The result of a run. `well` is always true: a fault is raised."""

    view: str
    table: str
    """The table's address, redacted: a report is printed and kept."""
    how: str
    """What the run has done: `rebuilt` or `updated`."""
    marks: dict[PartitionId, TransactionId]
    """For each partition, the last id that is in the table after the run."""
    commits: int
    """Number of commits that this run has made."""
    transactions: int
    """Number of ids in the ranges of these commits: transactions with any header, and the library's own ones, too."""
    undecodable: Letters = NO_LETTERS
    """The undecodable bodies in the ranges of these commits, and the rows that the table can't hold."""
    letters: str | None = None
    """Location of the dead-letter table, if there is one and the policy is TABLE."""
    refused: str | None = None
    """Location of the table of refused rows, likewise."""
    well: ClassVar = True

    def fields(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "table": self.table,
            "how": self.how,
            "high_water_marks": {str(partition): id for partition, id in sorted(self.marks.items())},
            "commits": self.commits,
            "transactions": self.transactions,
            "undecodable": {**self.undecodable.fields(), "table": self.letters},
            "refused": {**self.undecodable.refused.fields(), "table": self.refused},
        }


def rebuild(
    spark: SparkSession,
    address: str,
    view: TableView,
    table: str,
    *,
    until: Until = EVERYTHING,
    fragments: str | None = None,
    on_undecodable: str | None = None,
    progress: JobProgress | None = None,
) -> ViewReport:
    """Make the view's table anew from the whole log, or from the log up to ids or a time.

    `table` is the table's address, see `open_target`. Readers see either the old rows or the new ones, whole, even if
    this run is killed. `update` may bring the table up to date later. `on_undecodable` says what to do with bodies that
    the decoder can't read: `fail`, `skip` or `table` (keep them in a table beside the view's); by default what the
    view's `read` says, or else `fail`. `progress` counts the one commit.

    Raises `BadOption`, `BeyondLog`, `body_undecodable`, `ViewUnfit` for the table of another log or view,
    `ViewUnavailable` if other runs change the table at every attempt, `DirectoryInUse` while another run writes to a
    table in a directory, and what reading, Spark, the disk and the database raise. Example::

        rebuild(spark, "embedded:./bank", balances, "parquet:./balances", until=Until(ids={0: 41}))
    """
    progress = progress or Silence()
    with opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        progress.begin("rebuilding", 1)
        # `replace` returns False if another run has changed the table since its marks were read: try with new ones.
        for _ in range(_TRIES):
            upto = source.marks(until)
            rows = source.rows({}, upto)
            # Before the marks are read: the target has to know the columns to find its table.
            target.prepare(rows.schema)
            # Still open during the commit, which writes these letters in one step with the rows.
            with source.letters({}, upto) as letters:
                if target.replace(NewRows(rows, letters.kept, letters.refused.kept), target.marks(), upto):
                    progress.done(1)
                    commit = Commit({}, upto, letters.and_then(NO_LETTERS))
                    return _report(view, table, "rebuilt", target, source, [commit])
    raise _changed_by_others(view)


def update(
    spark: SparkSession,
    address: str,
    view: TableView,
    table: str,
    *,
    fragments: str | None = None,
    transactions_max: int = TRANSACTIONS_MAX,
    on_undecodable: str | None = None,
    progress: JobProgress | None = None,
) -> ViewReport:
    """Bring the view's table up to date with what is committed now, from its marks on; a new table from the beginning.
    May be killed at any time and run again, also by several at once: each transaction counts once. A commit takes at
    most `transactions_max` transactions; `progress` counts transactions. Raises what `rebuild` raises, `BadOption` for
    a view that is declared `whole`, `ViewUnfit` for a table that was made by another definition of the view, and
    `ClientAhead` for a table that holds more than the log."""
    progress = progress or Silence()
    with opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        _prepare(source, view, target)
        # The goal is fixed now: a log that grows faster than the table would keep the run from ending.
        upto = source.marks()
        waiting = Commit(target.marks(), upto).transactions
        progress.begin("bringing up to date", max(waiting, 0))
        commits: list[Commit] = []
        for commit in _commits(source, view, target, upto, transactions_max):
            commits.append(commit)
            progress.done(sum(each.transactions for each in commits))
        return _report(view, table, "updated", target, source, commits)


def follow(
    spark: SparkSession,
    address: str,
    view: TableView,
    table: str,
    *,
    fragments: str | None = None,
    transactions_max: int = TRANSACTIONS_MAX,
    on_undecodable: str | None = None,
) -> Iterator[Commit]:
    """Do what `update` does, and go on with what is committed later; yield each commit once it is made. Ends only when
    the caller stops iterating. Raises what `update` raises."""
    with opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        _prepare(source, view, target)
        while True:
            upto = source.marks()
            yield from _commits(source, view, target, upto, transactions_max)
            source.wait_beyond(upto)


@contextmanager
def opened(
    spark: SparkSession,
    address: str,
    view: TableView,
    table: str,
    fragments: str | None,
    on_undecodable: str | None,
    marks_table: str | None = None,
) -> Iterator[tuple[ViewSource, Target]]:
    """Yield the log as the view's source, and the view's table; see `rebuild` and `open_target` for the arguments."""
    policy = policy_of(view, on_undecodable, has_limits=has_limits(table))
    with (
        translating(),
        open_source(address, fragments) as source,
        closing(open_target(spark, table, view, source.cluster, marks_table=marks_table)) as target,
    ):
        yield ViewSource(spark, source, view, policy, target.limits if has_limits(table) else None), target


def _report(
    view: TableView, table: str, how: str, target: Target, source: ViewSource, commits: Sequence[Commit]
) -> ViewReport:
    return ViewReport(
        view.name,
        redacted_address(table),
        how,
        target.marks(),
        len(commits),
        sum(commit.transactions for commit in commits),
        reduce(Letters.and_then, (commit.undecodable for commit in commits), NO_LETTERS),
        target.letters() if source.policy is UndecodablePolicy.TABLE else None,
        target.refused() if source.policy is UndecodablePolicy.TABLE else None,
    )


def _prepare(source: ViewSource, view: TableView, target: Target) -> None:
    if view.whole:
        raise BadOption(f"view {view.name} sees the whole log at once, so it can't be brought up to date: rebuild it")
    # An empty range of the log has the columns too, and costs no reading.
    nothing = dict.fromkeys(source.marks(), NO_TRANSACTION)
    target.prepare(source.rows({}, nothing).schema)
    # Rows of two definitions of a view never mix in one table.
    target.check()


def _commits(
    source: ViewSource, view: TableView, target: Target, upto: Marks, transactions_max: int
) -> Iterator[Commit]:
    """Make commits until the table has everything up to `upto`, from wherever faster runs have got to."""
    refused, before = 0, target.marks()
    while True:
        # Where the table is ahead of `upto`, other runs have gone on since that was looked up, or the log is not the
        # table's own, or was restored to an older state. What the log has committed by now tells these apart.
        if any(mark > upto.get(partition, mark) for partition, mark in before.items()):
            source.check_not_ahead(before)
        after = _next(before, upto, transactions_max)
        if not after:
            return
        with source.letters(before, after) as letters:
            rows = source.rows(before, after)
            done = target.merge(NewRows(rows, letters.kept, letters.refused.kept), before, after)
        if done:
            begun = {partition: before.get(partition, NO_TRANSACTION) for partition in after}
            yield Commit(begun, after, letters.and_then(NO_LETTERS))
        else:
            target.check()  # the faster run may be of another definition of the view
        now = target.marks()
        # A refusal after which the marks have moved is progress, though another run's: it does not count.
        refused = 0 if done or now != before else refused + 1
        if refused == _TRIES:
            raise _changed_by_others(view)
        before = now


def _next(before: Marks, upto: Marks, transactions_max: int) -> dict[PartitionId, TransactionId]:
    """Return the last id of the next commit in each partition to which it adds something."""
    starts = {partition: before.get(partition, NO_TRANSACTION) + 1 for partition in upto}
    # Where the table is ahead of `upto` there is nothing to read: an empty range, not a negative one.
    ends = {partition: max(id + 1, starts[partition]) for partition, id in upto.items()}
    reached = admitted(starts, ends, transactions_max)
    return {partition: end - 1 for partition, end in reached.items() if end > starts[partition]}


def _changed_by_others(view: TableView) -> ViewUnavailable:
    return ViewUnavailable(
        f"other runs changed the table of view {view.name} {_TRIES} times in a row: let only one of them go on"
    )


if __name__ == "__main__":
    from polonaise.pipelines.runs import main

    main("views")

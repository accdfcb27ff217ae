"""The job views: a view's table is made of the log, anew up to any id or time, or brought up to date from its marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from polonaise.errors import BadOption, ViewUnavailable
from polonaise.pipelines.declarations import TableView
from polonaise.pipelines.progress import JobProgress, Silence
from polonaise.pipelines.source import EVERYTHING, Marks, Until, open_source
from polonaise.pipelines.sparkerrors import translating
from polonaise.pipelines.targets import Target, open_target
from polonaise.pipelines.viewsource import NO_LETTERS, Letters, UndecodablePolicy, ViewSource, policy_of
from polonaise.spark.protocol.admission import admitted
from polonaise.terms import NO_TRANSACTION, PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRANSACTIONS_MAX: Final = 1_000_000
"""Of one commit, unless said."""
_TRIES: Final = 5
"""Others may change the same table; whoever is refused five times in a row for no better reason says so."""


class Commit(NamedTuple):
    """A range of the log that is in the table now, by this run."""

    before: dict[PartitionId, TransactionId]
    after: dict[PartitionId, TransactionId]
    undecodable: Letters = NO_LETTERS
    """Undecodable bodies of this range."""

    @property
    def transactions(self) -> int:
        return sum(last - self.before.get(partition, NO_TRANSACTION) for partition, last in self.after.items())


@dataclass(frozen=True)
class ViewReport:
    """What a run did to a view's table. It is always well: what goes wrong is raised."""

    view: str
    table: str
    how: str
    """`rebuilt` or `updated`."""
    marks: dict[PartitionId, TransactionId]
    """The last id of each partition that is in the table now."""
    commits: int
    transactions: int
    """That this run has read."""
    undecodable: Letters = NO_LETTERS
    """Bodies among them that do not decode, and are not in the table."""
    letters: str | None = None
    """Where the dead-letter table is, if they are kept in one."""

    @property
    def well(self) -> bool:
        return True

    def fields(self) -> dict[str, Any]:
        return {
            "view": self.view,
            "table": self.table,
            "how": self.how,
            "high_water_marks": {str(partition): id for partition, id in sorted(self.marks.items())},
            "commits": self.commits,
            "transactions": self.transactions,
            "undecodable": {**self.undecodable.fields(), "table": self.letters},
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
    """Make the view's table anew of the whole log, or of the log up to ids or a time. See `open_target` for `table`.

    Readers see the rows of before, or the new ones; so does the next run, whatever kills this one. The table may be
    brought up to date from there. `on_undecodable` is what becomes of bodies that the decoder can't read, `fail`,
    `skip` or `table`, if not what the view's `read` says; in the last case they are a table beside the view's.

    Raises `BadOption`, `BeyondLog`, `BodyUndecodable`, `ViewUnfit` for the table of another log, and what reading,
    Spark and the database raise.
    """
    progress = progress or Silence()
    with _opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        progress.begin("rebuilding", 1)
        for _ in range(_TRIES):
            upto = source.marks(until)
            rows = source.rows({}, upto)
            target.prepare(rows.schema)
            with source.letters({}, upto) as letters:
                if target.replace(rows, target.marks(), upto, letters.kept):
                    made = Commit({}, upto, letters.and_then(NO_LETTERS))
                    return _report(view, table, "rebuilt", target, source, [made])
    raise _too_late(view)


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
    """Bring the view's table up to date with what is committed now, from its marks, or from the beginning.

    May be killed at any time and run again, also by several at once: each transaction counts once. Each commit takes
    `transactions_max` transactions at most; `progress` counts transactions. Raises as `rebuild`, and `BadOption` for a
    view that is declared `whole`, and `ViewUnfit` for a table that was made by another definition of the view.
    """
    progress = progress or Silence()
    with _opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        _prepare(source, view, target)
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
    """As `update`, and then goes on with what is committed from then on, for as long as somebody asks for more."""
    with _opened(spark, address, view, table, fragments, on_undecodable) as (source, target):
        _prepare(source, view, target)
        while True:
            upto = source.marks()
            yield from _commits(source, view, target, upto, transactions_max)
            source.wait_beyond(upto)


@contextmanager
def _opened(
    spark: SparkSession, address: str, view: TableView, table: str, fragments: str | None, on_undecodable: str | None
) -> Iterator[tuple[ViewSource, Target]]:
    policy = policy_of(view, on_undecodable)
    with (
        translating(),
        open_source(address, fragments) as source,
        closing(open_target(spark, table, view, source.cluster)) as target,
    ):
        yield ViewSource(spark, source, view, policy), target


def _report(
    view: TableView, table: str, how: str, target: Target, source: ViewSource, commits: Sequence[Commit]
) -> ViewReport:
    return ViewReport(
        view.name,
        table,
        how,
        target.marks(),
        len(commits),
        sum(commit.transactions for commit in commits),
        reduce(Letters.and_then, (commit.undecodable for commit in commits), NO_LETTERS),
        target.letters() if source.policy is UndecodablePolicy.TABLE else None,
    )


def _prepare(source: ViewSource, view: TableView, target: Target) -> None:
    if view.whole:
        raise BadOption(f"view {view.name} sees the whole log at once: it can be rebuilt, and not brought up to date")
    nothing = dict.fromkeys(source.marks(), NO_TRANSACTION)
    target.prepare(source.rows({}, nothing).schema)
    target.check()


def _commits(
    source: ViewSource, view: TableView, target: Target, upto: Marks, transactions_max: int
) -> Iterator[Commit]:
    """Commit after commit, until the table is made up to there.

    Whoever comes too late with one goes on from where the other has got to: together they get there all the same.
    """
    refused, before = 0, target.marks()
    while True:
        if any(mark > upto.get(partition, mark) for partition, mark in before.items()):
            source.check_not_ahead(before)  # or others have gone on
        after = _next(before, upto, transactions_max)
        if not after:
            return
        with source.letters(before, after) as letters:
            done = target.merge(source.rows(before, after), before, after, letters.kept)
        if done:
            begun = {partition: before.get(partition, NO_TRANSACTION) for partition in after}
            yield Commit(begun, after, letters.and_then(NO_LETTERS))
        else:
            target.check()  # whoever was faster may have another definition
        now = target.marks()
        refused = 0 if done or now != before else refused + 1
        if refused == _TRIES:
            raise _too_late(view)
        before = now


def _next(before: Marks, upto: Marks, transactions_max: int) -> dict[PartitionId, TransactionId]:
    """Up to where the next commit goes, of the partitions in which it gets anywhere."""
    starts = {partition: before.get(partition, NO_TRANSACTION) + 1 for partition in upto}
    ends = {partition: max(id + 1, starts[partition]) for partition, id in upto.items()}
    reached = admitted(starts, ends, transactions_max)
    return {partition: end - 1 for partition, end in reached.items() if end > starts[partition]}


def _too_late(view: TableView) -> ViewUnavailable:
    return ViewUnavailable(
        f"the table of view {view.name} was being changed by others, {_TRIES} times in a row: let one of them do it"
    )


if __name__ == "__main__":
    from polonaise.pipelines.program import main

    main("views")

"""The `polonaise archive` commands: keep a log's history as Parquet files in an object store, and use them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.openlog import AnyPartitions, LogAddress, check_there, with_log
from polonaise.cli.output import Json, agreed, judge, print_each, say, say_either, say_json, tidy, timestamp
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import BadOption, PolonaiseError
from polonaise.terms import NO_TRANSACTION

if TYPE_CHECKING:
    from polonaise.admin.archive import StoreReport
    from polonaise.admin.restore import HowToRestore, RestoredPartition
    from polonaise.admin.trimming import TrimReport
    from polonaise.client.log import Log
    from polonaise.fragments.cutting import GivenUp
    from polonaise.fragments.protocol.coverage import Span
    from polonaise.fragments.protocol.names import FragmentName
    from polonaise.fragments.store import MendableStore, ObjectStore
    from polonaise.terms import PartitionId

_REPAIR_S: Final = 30.0
"""Seconds that each request to the log may take while a fragment is repaired."""

_OF_ALL: Final = ("access_denied", "bad_option", "not_found", "store_unavailable", "wrong_cluster_key")
"""The errors that would meet every partition: of the store, or of how the command was called."""


class _Failures:
    def __init__(self) -> None:
        self._failed: list[str] = []
        self._tried = 0

    @contextmanager
    def noted(self, name: str, *, all_fail: bool = False) -> Iterator[None]:
        """Print an error of one partition's work, and go on behind the block; raise what meets all partitions."""
        self._tried += 1
        try:
            yield
        except PolonaiseError as error:
            if all_fail or error.code in _OF_ALL:
                raise
            typer.echo(f"polonaise: [{error.code}] {name}: {error.text}", err=True)
            self._failed.append(name)

    def judge(self) -> None:
        """Raise `typer.Exit` if partitions failed, after naming them where others did not."""
        if 0 < len(self._failed) < self._tried:
            typer.echo(f"polonaise: this failed for {', '.join(self._failed)}, and went on with the others", err=True)
        if self._failed:
            raise typer.Exit(ExitStatus.FAILED)


archive = typer.Typer(
    help="Keep a log's history as Parquet files in an object store.", no_args_is_help=True, epilog=EXIT_STATUS
)

Until = Annotated[list[str] | None, Option(metavar="PARTITION=ID,…", help="Last id of each partition: 0=100,1=57.")]
Store = Annotated[str, Argument(metavar="STORE", help="Fragment store: a directory, or s3://…, gs://…, az://….")]
NewDirectory = Annotated[str, Argument(metavar="DIRECTORY", help="New or empty directory for the log.")]
StorageCount = Annotated[int, Option(min=1, max=7, help="Number of storage directories of an embedded log.")]
Nodes = Annotated[
    str | None, Option(metavar="A,B,C", help="Restore a cluster, whose storage nodes will listen at these addresses.")
]
PartitionCount = Annotated[
    int | None, Option(min=1, help="Number of partitions. Default: up to the last with fragments.")
]
UntilTime = Annotated[
    str | None,
    Option(metavar="TIME", help="Last commit time: 2026-01-31T12:00:00Z, or how long ago: 90s, 10m, 2h, 3d."),
]
NewKey = Annotated[bool, Option("--new-key", help="Give the log a new key: it is another log than the archived one.")]
SameKey = Annotated[bool, Option("--same-key", help="Keep the key: the restored log replaces the archived one.")]


@archive.command(epilog=EXIT_STATUS)
@with_tls
def run(
    address: LogAddress,
    store: Store,
    partition: AnyPartitions = "all",
    fragment_mib: Annotated[int, Option(min=1, max=1024, help="Size of a fragment, in MiB of log.")] = 256,
    rest: Annotated[bool, Option("--rest", help="Also write what does not fill a fragment yet.")] = False,
    until: Until = None,
    as_json: Json = False,
) -> None:
    """Archive what is committed and not archived yet. Prints each fragment once it is stored and verified.

    Without a topic in the address, --partition and --until, the partitions of all topics are archived as well.

    With --until, archives everything up to the id of each partition and nothing above it, so that the archive ends
    where you choose. A batch that goes beyond the id of its partition is left out as a whole, and printed.

    What fails for one partition is printed, and the others are archived all the same; then the exit status is 1.

    May be killed and run again at any time, also several times at once: what is archived twice is read only once.
    """
    from polonaise.admin import archive as archives
    from polonaise.fragments.mark import is_marked
    from polonaise.fragments.store import open_store, unmade_on_failure

    ends = None if until is None else inputs.ids_of(until)
    failures = _Failures()

    async def one(log: Log) -> None:
        numbers = partitions_named(partition, log.partition_count, log.topic)
        if ends is not None and set(ends) != set(numbers):
            raise BadOption(
                f"--until has ids of partitions {_listed(ends)}, and partitions {_listed(numbers)} are to be archived: "
                "give an id for each of them"
            )
        opened = open_store(store, parents=False)  # here, as it makes the directory: not before there is a log
        with unmade_on_failure(opened):
            for number in numbers:
                # A store without a mark is begun by the first partition, or not at all.
                new = not await is_marked(opened, log.cluster_key)
                with failures.noted(_named(log.topic, number), all_fail=new):
                    await of_partition(log, opened, number)

    async def of_partition(log: Log, opened: ObjectStore, number: PartitionId) -> None:
        writing = archives.archive(
            log,
            opened,
            number,
            fragment_bytes=fragment_mib * 1024 * 1024,
            rest=rest,
            until=None if ends is None else ends[number],
            tell_missing=partial(say_missing, number, topic=log.topic, as_json=as_json),
        )
        count = 0
        async with aclosing(writing) as written:
            async for name, size in written:
                count += 1
                fields = {**name._asdict(), "path": name.path, "bytes": size}
                say_either(fields, f"{name.path} {size:,} bytes", as_json=as_json, now=True)
        if ends is not None:
            cut = await archives.batch_left_out(log, opened, number, ends[number])
            _say_archived_until(number, cut, wrote=bool(count), as_json=as_json)
        elif not count and not as_json:
            unfilled = "" if rest else ", or does not fill a fragment yet (--rest writes it anyway)"
            say(f"{_named(log.topic, number)}: nothing to write: all is archived{unfilled}", now=True)

    with_log(address, lambda log: _with_topics(log, address, one, topics=partition == "all" and ends is None))
    failures.judge()


async def _with_topics(log: Log, address: str, do: Callable[[Log], Awaitable[None]], *, topics: bool) -> None:
    """Do something with a log and, with `topics`, with each topic of its cluster, unless the log is one of them."""
    import polonaise
    from polonaise.node.addresses import with_topic

    await do(log)
    for name in sorted((await log.cluster_topics()).topics) if topics and not log.topic else ():
        async with polonaise.connect(with_topic(address, name)) as topic:
            await do(topic)


def _named(topic: str, number: PartitionId) -> str:
    return f"topic {topic}, partition {number}" if topic else f"partition {number}"


def say_missing(number: PartitionId, span: Span, *, topic: str = "", as_json: bool) -> None:
    """Print ids that no fragment held before this run, although later ones were archived."""
    if as_json:
        say_json({**({"topic": topic} if topic else {}), "partition": number, "missing": span._asdict()}, now=True)
        return
    say(
        f"{_named(topic, number)}: no fragment held {span.first} to {span.last} when this run began, although later "
        "ids were archived: a fragment had been removed, another archiver was writing it, or an earlier run was killed "
        "on its way; this run writes them",
        now=True,
    )


def _say_archived_until(number: PartitionId, cut: Span | None, *, wrote: bool, as_json: bool) -> None:
    """Print what the list of fragments does not show: that nothing was to be written, or what was left out."""
    if as_json:
        if cut is not None:
            say_json({"partition": number, "batch_left_out": cut._asdict()}, now=True)
    elif cut is not None:
        say_cut(number, cut, "archives")
    elif not wrote:
        say(f"partition {number}: nothing to write: all up to the requested id is archived", now=True)


@archive.command(epilog=EXIT_STATUS)
@with_tls
def init(
    address: LogAddress,
    store: Store,
    insist: Annotated[
        bool,
        Option("--insist", help="Also a store that lacks, or may lack, what was trimmed: that is lost for good."),
    ] = False,
) -> None:
    """Declare a store to be the log's: makes the directory if there is none, and marks it. Once for each store.

    A store that lacks ids which were trimmed is refused, with the ids: it may not be mounted. So it is if that can't be
    known because a partition is not served.

    Of a path only the last directory is made. If the log's servers have another store, that is said: they don't read
    this one.

    Only where no server has a store does `archive run` do it by itself, in S3, GCS, Azure or a directory that does not
    exist: else what belongs there may just not be mounted, and a second archive would begin below it.
    """
    from polonaise.admin import archive as archives
    from polonaise.fragments.mark import MARK
    from polonaise.fragments.store import open_store, unmade_on_failure

    async def work(log: Log) -> None:
        opened = open_store(store, parents=False)
        with unmade_on_failure(opened):
            if not insist:
                await _with_topics(log, address, partial(archives.check_lacks_nothing, store=opened), topics=True)
            await archives.init(log, opened)
        say(f"{opened} is the store of the log's fragments")
        if other := await archives.other_store(log, opened):
            typer.echo(
                f"the log's servers have another store, {other}, and don't read this one: unless both are one "
                f"place, or a second archive is what you want, remove {MARK} from this one",
                err=True,
            )

    with_log(address, work)


@archive.command(epilog=EXIT_STATUS)
@with_tls
def trim(
    address: LogAddress,
    store: Store,
    partition: AnyPartitions = "all",
    before: Annotated[int | None, Option(min=1, help="Drop only below this id. Default: all that is archived.")] = None,
    as_json: Json = False,
) -> None:
    """Drop archived history from the storage nodes, for good: whole segments, once the fragments of it are verified.

    Servers read that history from the fragments from then on, so they must know the store (server run --fragments).
    What fails for one partition is printed, and the others are trimmed all the same; then the exit status is 1.
    Without a topic in the address and --partition, the partitions of all topics are trimmed as well.
    """
    from polonaise.admin import trimming
    from polonaise.fragments.store import open_store

    opened = open_store(store, make=False)
    failures = _Failures()

    async def one(log: Log) -> None:
        for number in partitions_named(partition, log.partition_count, log.topic):
            with failures.noted(_named(log.topic, number)):
                report = await trimming.trim(log, opened, number, before=before)
                _say_trimmed(log.topic, number, report, as_json=as_json)

    with_log(address, lambda log: _with_topics(log, address, one, topics=partition == "all"))
    failures.judge()


def _say_trimmed(topic: str, number: PartitionId, report: TrimReport, *, as_json: bool) -> None:
    if as_json:
        fields = {"partition": number, "first": report.first, "held_from": report.held_from}
        left_out = {"left_out": report.left_out} if report.left_out else {}
        say_json({**({"topic": topic} if topic else {}), **fields, **left_out}, now=True)
        return
    why = ""
    if not report.dropped:
        lies = f"no whole segment lies below {report.before:,}"
        alone = len(report.taking_part) <= 1
        why = f"; nothing was dropped: {lies}" if alone else f"; that one held the least before, too: {lies} there"
    if report.left_out:
        names = ", ".join(report.left_out)
        why += f"; {names} took no part, and keeps what it has: trim again when it is back"
    say(f"{_named(topic, number)}: the storage nodes hold {report.first:,} and all after it{why}", now=True)


@archive.command(epilog=EXIT_STATUS)
@with_tls
def verify(
    store: Store,
    repair: Annotated[str | None, Option(metavar="LOG", help="Repair damaged fragments from this log.")] = None,
    as_json: Json = False,
) -> None:
    """Check that every fragment is as it was written, none is missing, and the store is marked as their log's.

    Exit status 1 if not.

    With --repair, a damaged fragment is written again, in its place, if the log (or other fragments) still holds its
    transactions; the verdict is on the store as it is after that.
    """
    from polonaise.admin import archive as archives
    from polonaise.fragments.objects import partitions_in
    from polonaise.fragments.store import open_store

    opened = open_store(store, make=False)
    if repair is not None:
        check_there(repair)

    async def work() -> bool:
        partitions = await partitions_in(opened)
        if not partitions:
            raise await archives.no_fragments(opened)
        reports = [await archives.verify(opened, number) for number in partitions]
        damaged = [name for report in reports for name in report.damaged]
        if repair is not None and damaged:
            await _repair(repair, opened, _key_in(reports), damaged, as_json=as_json)
            reports = [await archives.verify(opened, number) for number in partitions]
        columns = ["partition", "fragments", "transactions", "bytes", "whole up to", "verdict"]
        print_each(reports, _store_fields, columns, _store_row, right=(0, 1, 2, 3, 4), as_json=as_json)
        for report in reports:
            for trouble in () if as_json else report.troubles:
                say(f"partition {report.partition}: {trouble}")
        key = _key_in(reports)
        mark = None if key is None else await archives.mark_trouble(opened, key)
        if mark is not None:
            say_either({"mark": mark}, mark, as_json=as_json)
        return mark is None and not any(report.troubles for report in reports)

    judge(work())


def _store_fields(report: StoreReport) -> dict[str, Any]:
    names = ("partition", "fragments", "transactions", "bytes", "last")
    return {**{name: getattr(report, name) for name in names}, "wrong": report.troubles}


def _store_row(report: StoreReport) -> list[str]:
    *figures, troubles = _store_fields(report).values()
    return [*(f"{figure:,}" for figure in figures), "not well" if troubles else "well"]


def _key_in(reports: list[StoreReport]) -> bytes | None:
    """Return the cluster key of the fragments; None if none of them could be read."""
    return next((report.cluster_key for report in reports if report.cluster_key is not None), None)


async def _repair(
    address: str, store: MendableStore, key: bytes | None, damaged: list[FragmentName], *, as_json: bool
) -> None:
    import polonaise
    from polonaise.admin import archive as archives
    from polonaise.node.addresses import with_topic

    async with polonaise.connect(address) as log:
        await archives.check_archived_from(log, store, key)
        topics = await log.cluster_topics()
        for name in damaged:
            try:
                topic, _ = topics.number_of(name.partition)
                if topic:
                    async with polonaise.connect(with_topic(address, topic)) as of_topic:
                        await archives.repair(of_topic, store, name, timeout=_REPAIR_S)
                else:
                    await archives.repair(log, store, name, timeout=_REPAIR_S)
                why = ""
            except PolonaiseError as error:
                why = str(error)
            line = f"{name.path} is not repaired: {why}" if why else f"{name.path} was written again"
            fields = {**name._asdict(), "path": name.path, "repaired": not why, "why": why}
            say_either(fields, line, as_json=as_json, now=True)


@archive.command(epilog=EXIT_STATUS)
def cut(
    store: Store,
    at: Annotated[list[str], Argument(metavar="PARTITION=ID,…", help="Id that each partition ends with: 0=100,1=57.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask, although the store may have the only copy.")] = False,
    as_json: Json = False,
) -> None:
    """Take out of a store what an operator gives up: end a partition's fragments at an id.

    For a partition that is closed because its fragments reach above the end of its log (fragments_ahead), as before a
    reset of its head. Those that reach above the id are moved under _given-up/ in the store; what they hold up to the
    id, of which they may be the only copy, is written as fragments of its own before that. Nothing is deleted.

    What is given up was committed, and may be nowhere else: it is shown, with what would keep it, and asked for once.

    May be killed and run again. Batches are kept whole: an id within one is refused, with the ids next to it.
    """
    from polonaise.fragments.cutting import GIVEN_UP, cut_fragments, given_up_by_cut
    from polonaise.fragments.store import open_store

    opened, ends = open_store(store, make=False), inputs.ids_of(at)

    async def work() -> None:
        given_up = {number: await given_up_by_cut(opened, number, last) for number, last in ends.items()}
        _confirm_cut(opened, {number: each for number, each in given_up.items() if each is not None}, yes=yes)
        for number, last in ends.items():
            done = await cut_fragments(opened, number, last)
            if as_json:
                written = [{"fragment": each.fragment.path, "bytes": each.bytes} for each in done.written]
                moved = [{"from": name.path, "to": GIVEN_UP + name.path} for name in done.moved]
                say_json({"partition": number, "last": last, "written": written, "moved": moved}, now=True)
                continue
            for each in done.written:
                say(f"{each.fragment.path} {each.bytes:,} bytes", now=True)
            for name in done.moved:
                say(f"{name.path} was moved to {GIVEN_UP}{name.path}", now=True)
            if done.moved:
                say(
                    f"partition {number} ends at {last} in the store. Nothing was deleted: while its head is not "
                    f"reset, the cut is undone by moving what is under {GIVEN_UP} back to where it was",
                    now=True,
                )
            else:
                say(f"partition {number} has no fragment that reaches above {last}: nothing was changed", now=True)

    with tidy():
        asyncio.run(work())


def _confirm_cut(store: ObjectStore, given_up: Mapping[PartitionId, GivenUp], *, yes: bool) -> None:
    from polonaise.fragments.protocol.coverage import may_be_only_copy

    for number, (ids, everything) in given_up.items():
        nothing_left = f" The store would have nothing of partition {number} any more." if everything else ""
        typer.echo(
            f"{may_be_only_copy(store, number, *ids)}. If partition {number} goes on without them, its log gives these "
            f"ids to other transactions.{nothing_left}",
            err=True,
        )
    if given_up and not yes and not agreed("Give them up in the store all the same?"):
        raise BadOption("nothing was changed in the store; with --yes nobody is asked")


@archive.command(epilog=EXIT_STATUS)
def restore(
    store: Store,
    directory: NewDirectory,
    storage: StorageCount = 1,
    nodes: Nodes = None,
    partitions: PartitionCount = None,
    until: Until = None,
    until_time: UntilTime = None,
    new_key: NewKey = False,
    same_key: SameKey = False,
    as_json: Json = False,
) -> None:
    """Make a log again from its fragments, byte for byte. Prints how far each partition was restored.

    A batch that goes beyond --until is left out as a whole. --until-time is refused where commit times stand still,
    later than that, because a clock was ahead. How long ago is counted by the clock of this machine, and printed as a
    time on standard error. The directory holds no log until this has ended; if it is
    killed on the way, run it again. An embedded log is opened as embedded:DIRECTORY; with --nodes, the directories are
    those of `polonaise storage run` and the coordinator is file:DIRECTORY/coordinator.
    """
    from polonaise.admin import restore as restores
    from polonaise.fragments.store import open_store

    how = _how_to_restore(storage, nodes, partitions, until, until_time, new_key=new_key, same_key=same_key)
    if how.now_us is not None and how.until_time_us is not None:
        typer.echo(
            f"--until-time {until_time} is {timestamp(how.until_time_us)} by the clock of this machine: no server was "
            "asked for its time, and a store has none",
            err=True,
        )

    def tell(restored: RestoredPartition) -> None:
        number, last, cut = restored.partition, restored.last, restored.cut
        if as_json:
            fields = {"partition": number, "last": last, "batches": restored.batches, "bytes": restored.bytes}
            batch_left_out = None if cut is None else cut._asdict()
            say_json({**fields, "in_store_up_to": restored.in_store_up_to, "batch_left_out": batch_left_out}, now=True)
        else:
            if restored.in_store_up_to != NO_TRANSACTION:
                more = f"; the store holds up to {restored.in_store_up_to}" if last < restored.in_store_up_to else ""
                say(f"partition {number} restored up to {last}{more}", now=True)
            _say_left_out(restored)

    with tidy():
        asyncio.run(restores.restore(open_store(store, make=False), directory, how, tell))
    _warn_of_key(how)


def _warn_of_key(how: HowToRestore) -> None:
    """Warn, on standard error, that the restored log has the archived one's key, unless the user chose one."""
    if how.key is None:
        typer.echo(
            "the restored log has the key of the archived one and replaces it: if the archived log still exists, "
            "restore with --new-key instead",
            err=True,
        )


def _say_left_out(restored: RestoredPartition) -> None:
    if restored.in_store_up_to == NO_TRANSACTION:
        say(f"partition {restored.partition} has no fragments in the store: it begins empty", now=True)
    say_cut(restored.partition, restored.cut, "restores")


def say_cut(partition: PartitionId, cut: Span | None, does: str) -> None:
    """Print which batch was left out because the requested id lies inside it, and which option includes it."""
    if cut is not None:
        first, last = cut
        say(
            f"partition {partition}: the batch from {first} to {last} is left out, because it goes beyond the "
            f"requested id: --until {partition}={last} {does} it, too",
            now=True,
        )


def _how_to_restore(
    storage: int,
    nodes: str | None,
    partitions: int | None,
    until: list[str] | None,
    until_time: str | None,
    *,
    new_key: bool,
    same_key: bool,
) -> HowToRestore:
    from polonaise.admin.logs import time_by
    from polonaise.admin.restore import HowToRestore, Key
    from polonaise.host.real import RealClock
    from polonaise.node.addresses import storage_nodes_of

    if new_key and same_key:
        raise BadOption("both --new-key and --same-key: choose one of them")
    if nodes and storage != 1:
        raise BadOption("both --storage and --nodes: --storage is for an embedded log, --nodes for a cluster")
    when = None if until_time is None else inputs.time_of(until_time)
    # There is no server to ask for its time.
    until_time_us = None if when is None else round(time_by(when).timestamp() * 1_000_000)
    return HowToRestore(
        storage=storage,
        nodes=storage_nodes_of(inputs.listed(nodes), "--nodes") if nodes else {},
        partitions=partitions,
        until=None if until is None else inputs.ids_of(until),
        until_time_us=until_time_us,
        now_us=RealClock().wall_us() if isinstance(when, timedelta) else None,
        key=Key.NEW if new_key else Key.SAME if same_key else None,
    )


def _listed(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))

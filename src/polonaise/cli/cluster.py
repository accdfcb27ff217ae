"""The `polonaise cluster` commands: run a whole cluster on this machine, look at a running one, recover one."""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option

from polonaise.cli import inputs, opencluster, running
from polonaise.cli.addedoptions import with_settings, with_tls
from polonaise.cli.exitstatus import EXIT_STATUS, ExitStatus
from polonaise.cli.opencluster import OpenCluster, Rows, on_cluster, partition_rows, server_rows, storage_rows
from polonaise.cli.output import Json, print_all, printable, renderable, say, say_either, say_json, table_of, tidy
from polonaise.cli.running import Config, UntilStdinEnds, Verbose, say_now, stop_when_stdin_ends
from polonaise.errors import BadOption, WrongClusterKey
from polonaise.host.stopsignals import stop_signals_call
from polonaise.redaction import redacted
from polonaise.terms import counted, partition_words

if TYPE_CHECKING:
    from rich.table import Table

    from polonaise.admin.cluster import ClusterObserver, ClusterStatus
    from polonaise.admin.coordinatorbackup import RecoveredCluster
    from polonaise.cli.opencluster import Status
    from polonaise.coordination import Coordinator
    from polonaise.coordination.rebuilding import Lack
    from polonaise.host import Host


ROWS_MAX: Final = 20
"""The most rows of a table, unless all are asked for."""
_COMMON_MAX: Final = 3
"""The most troubles of partitions that get a line which says how many have them."""
_TOPICS_MAX: Final = 3
"""The most topics that get a line which says what their commits need."""
_COMMON_FROM: Final = 2
"""The least number of partitions with the same trouble that get a line which says how many they are."""
_VERDICTS: Final = ("all is well", "DEGRADED", "FAILED")


def screen_of(status: ClusterStatus, rows_max: int | None = ROWS_MAX) -> list[Table | str]:
    """Return the parts of the screen, tables and lines; no table has more than `rows_max` rows, of one line each."""
    key = "" if status.description is None else f" {status.description.label}"
    parts: list[Table | str] = [
        f"cluster{key}: {_VERDICTS[status.wellness]}",
        f"coordinator {redacted(status.coordinator)}: {status.coordinator_trouble or 'reachable'}",
    ]
    parts += status.coordinator_troubles
    if status.description is None:
        return parts
    if status.coordinator_error is not None:
        parts.append("below is what the coordinator said last, or servers know of it, and what the nodes say now")
    elif status.belief.doubt:
        parts.append("which partitions, servers and owners there are is below as it holds it, and may not be so")
    if status.required:
        parts.append(f"commits need {status.required}")
    if of_topics := status.topics_required:
        parts += [f"commits to topic {topic} need {told}" for topic, told in [*of_topics.items()][:_TOPICS_MAX]]
        if len(of_topics) > _TOPICS_MAX:
            parts.append(f"and to {counted(len(of_topics) - _TOPICS_MAX, 'topic')} more: see `polonaise topic list`")
    parts += _section(status.servers, server_rows, "server", rows_max)
    parts += _section(status.storage, storage_rows, "storage node", rows_max)
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(status.states.items(), key=_worst_last))
    parts += ["", f"{counted(len(status.partitions), 'partition')}: {states}"]
    for trouble, count in status.common_troubles(_COMMON_MAX):
        if count >= _COMMON_FROM:
            parts.append(f"  {count:,} of them: {trouble}")
    changing = [each for each in status.partitions if each.condition is not None and each.condition.change]
    if changing:
        first = changing[0]
        assert first.condition is not None
        parts.append(
            f"  {len(changing):,} changing their members; partition {first.partition}: {first.condition.change}"
        )
    parts += _section(status.partitions, partition_rows, "partition", rows_max)[1:]
    return parts


def fitting(status: ClusterStatus, lines: int, width: int) -> list[Table | str]:
    """Return the screen with as many rows as fit into `lines` lines of `width` characters, but one of each at least."""
    return next(
        (screen for rows in range(ROWS_MAX, 0, -1) if _height(screen := screen_of(status, rows), width) <= lines),
        screen_of(status, 1),
    )


def _height(parts: Sequence[Table | str], width: int) -> int:
    return sum(
        len(textwrap.wrap(printable(part), width)) or 1 if isinstance(part, str) else part.row_count + 1
        for part in parts
    )


def _section(
    each: Sequence[Status], rows_of: Callable[[Sequence[Status]], Rows], noun: str, rows_max: int | None
) -> list[Table | str]:
    """Return a table with the worst of these first, and a line that counts those left out of it."""
    first = sorted(each, key=lambda item: -item.wellness)
    shown = first[:rows_max]
    columns, rows, right = rows_of(shown)
    if rows_max is None:
        return ["", table_of(columns, rows, right=right)]
    parts: list[Table | str] = ["", table_of(columns, [_one_line(row) for row in rows], right=right, lines=True)]
    if rest := first[len(shown) :]:
        well = sum(1 for item in rest if not item.wellness)
        how = "all of them well" if well == len(rest) else f"{len(rest) - well:,} of them not well"
        parts.append(f"and {counted(len(rest), noun)} more, {how} (--all shows all)")
    return parts


def _one_line(row: Sequence[object]) -> list[object]:
    return [_first(cell) if isinstance(cell, list) else cell for cell in row]


def _first(items: list[Any]) -> str:
    more = f" (and {len(items) - 1} more)" if len(items) > 1 else ""
    return f"{items[0]}{more}" if items else ""


def _worst_last(item: tuple[str, int]) -> int:
    return ("ready", "degraded", "not ready", "unknown").index(item[0])


cluster = typer.Typer(
    help="Run a whole cluster on this machine, and look at a running one.", no_args_is_help=True, epilog=EXIT_STATUS
)

_STOP_S: Final = 60.0
"""Seconds that a whole cluster gets to stop once standard input has ended: servers, storage nodes, then ZooKeeper."""
_STATUSES: Final = (0, ExitStatus.DEGRADED, ExitStatus.FAILED)
"""The exit status for each `Wellness`."""


@cluster.command("status", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_status(
    cluster: OpenCluster,
    all_rows: Annotated[
        bool, Option("--all", help="Show every server, storage node and partition, and all that is wrong with it.")
    ] = False,
    watch: Annotated[bool, Option("--watch", "-w", help="Look again and again, until interrupted.")] = False,
    interval: Annotated[
        float, Option(parser=inputs.seconds_of, metavar="SECONDS", help="How often to look, with --watch.")
    ] = 2.0,
) -> None:
    """Show a cluster on one screen: coordinator, servers, storage nodes, partitions, and what is wrong with each.

    Every node is asked, up to 64 at the same time; one that does not answer is shown with the reason. Of many, those
    that are not well come first, and the rest is counted.

    What can't be read from the coordinator is asked of the servers, those that POLONAISE_LOG names among them.

    Exit status 1 unless all partitions are known to be ready, and if what is read from the coordinator is missing or
    damaged; 3 if only something else is wrong.
    """
    if watch:
        await _watch(cluster.observer, interval, all_rows=all_rows, as_json=cluster.as_json)
    status = await cluster.observer.look()
    if cluster.as_json:
        say_json(status.document())
    else:
        print_all(screen_of(status, None if all_rows else ROWS_MAX))
    if status.wellness:
        raise typer.Exit(_STATUSES[status.wellness])


@cluster.command("safe-to-stop", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_safe_to_stop(
    cluster: OpenCluster,
    name: Annotated[
        str | None, Argument(metavar="[NAME]", help="Name, address or server id of a node. Default: each node.")
    ] = None,
) -> None:
    """Say whether everything goes on if a node is stopped now, and if not, what stops.

    Exit status 0 if nothing stops; 1 if something does, or is not known to go on. Without NAME: of each node.
    """
    from polonaise.admin.safestop import safe_to_stop

    verdicts = safe_to_stop(await cluster.observer.look(), name)
    for verdict in verdicts:
        stops = "; ".join(verdict.stops) or "nothing stops without it"
        cluster.tell(verdict.document(), f"{verdict.kind} {verdict.node}: {stops}")
    if any(verdict.stops for verdict in verdicts):
        raise typer.Exit(ExitStatus.FAILED)


async def _watch(observer: ClusterObserver, interval_s: float, *, all_rows: bool, as_json: bool) -> None:
    """Show the cluster's status again and again: on a terminal in place; elsewhere, or as JSON, one below the other."""
    from rich.console import Console, Group
    from rich.live import Live

    console = Console(markup=False, highlight=False, emoji=False)
    if as_json or not console.is_terminal:
        while True:
            status = await observer.look()
            if as_json:
                say_json(status.document(), now=True)
            else:
                print_all([_time_line(status), *screen_of(status, None if all_rows else ROWS_MAX)])
                say("", now=True)
            await asyncio.sleep(interval_s)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            status = await observer.look()
            parts = [
                _time_line(status),
                *(screen_of(status, None) if all_rows else fitting(status, console.height - 1, console.width)),
            ]
            live.update(Group(*map(renderable, parts)), refresh=True)
            await asyncio.sleep(interval_s)


def _time_line(status: ClusterStatus) -> str:
    return f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}, asked in {status.took_s:.2f} s"


@cluster.command("start")
@with_settings("cluster")
def cluster_start(
    options: dict[str, Any],
    zookeeper: Annotated[
        bool | None,
        Option(
            "--zookeeper/--file-coordinator",
            help="Coordinator of a new cluster: a ZooKeeper server, or a directory. Default: ZooKeeper.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    verbose: Verbose = False,
    as_json: Json = False,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run a whole cluster on this machine until it is interrupted: coordinator, storage nodes and servers.

    For development, tests and demos. Started again on the same directory, it is the same cluster at the same ports.
    It prints where everybody listens, and `ready` once every partition takes appends. Each node is a process with a log
    beside its files; one that ends by itself is started again, after a pause that grows. However this command ends, all
    of them end.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.admin.localcluster import LocalClusterRun, Told
    from polonaise.admin.localplan import FILE, ZOOKEEPER, Wanted

    if zookeeper is not None:
        options["coordinator"] = ZOOKEEPER if zookeeper else FILE
    given = configuration_of("cluster", config, options)
    for table in ("server", "storage"):
        configuration_of(table, config, {})  # so that a mistake is told once, and not by each node
    wanted = Wanted(given["coordinator"], given["storage"], given["servers"], given["partitions"], given["port"])

    def tell(told: Told) -> None:
        say_now(json.dumps({"event": told.event, **told.fields}) if as_json else told.text)

    run = LocalClusterRun(
        Path(given.required("directory", "cluster")), wanted, tell,
        restart=given["restart"], config=None if config is None else os.path.abspath(config), verbose=verbose,
    )  # fmt: skip
    if until_stdin_ends:
        stop_when_stdin_ends(_STOP_S)
    with stop_signals_call(run.stop_soon), run:
        run.start()
        run.wait_ready()
        run.follow()


_TIMEOUT_S: Final = 10.0
"""The default of `--timeout`: storage nodes that were just started take seconds until they listen."""
_NO_STORAGE: Final = (
    "a new cluster needs storage nodes: give --storage NAME=HOST:PORT,NAME=HOST:PORT,…, POLONAISE_SERVER_STORAGE in "
    "the environment or, in the file that --config names, storage in [server]"
)


@cluster.command("create", epilog=EXIT_STATUS)
@with_tls
@with_settings(
    "server",
    ("coordinator", "storage", "partitions", "fragments"),
    variables={"coordinator": "POLONAISE_COORDINATOR"},
)
def cluster_create(
    options: dict[str, Any],
    config: running.Config = None,
    timeout: opencluster.Timeout = _TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make a new cluster at a coordinator that has none. Its storage nodes have to run, or start, with new directories.

    Settings that are not given here are those of a server: from the environment (POLONAISE_SERVER_…), then from the
    table `server` of the configuration file. Nothing is made while a storage node holds another cluster's data, or does
    not answer.
    """
    from polonaise.admin.configuration import configuration_of
    from polonaise.node.addresses import storage_nodes_of

    given = configuration_of("server", config, options)
    nodes = storage_nodes_of(inputs.listed(",".join(given["storage"])), "--storage")
    if not nodes:
        raise BadOption(_NO_STORAGE)

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.node.processes import create_cluster

        made = await create_cluster(host, opened, nodes, given["partitions"] or 1, given["fragments"], timeout)
        key, names = made.key.hex(), ", ".join(made.storage)
        fields = {"cluster": key, "partitions": made.partitions, "storage": list(made.storage)}
        line = f"cluster {key}: {counted(made.partitions, 'partition')}, on storage nodes {names}"
        say_either(fields, line, as_json=as_json)

    opencluster.with_coordinator(given.required("coordinator", "server"), do)


@cluster.command("delete", epilog=EXIT_STATUS)
@on_cluster(timeout_s=None)
async def cluster_delete(
    cluster: OpenCluster,
    confirm: Annotated[
        str | None, Option(metavar="KEY", help="The cluster's key, in place of the question.", show_default=False)
    ] = None,
) -> None:
    """Delete a cluster from its coordinator, for good. Its servers have to be stopped first.

    Shows what would be deleted, and asks for the cluster's key. The storage nodes' directories stay: the log is in
    them, and without the cluster nobody serves it. A new cluster of these nodes needs new directories.
    """
    description = await cluster.coordinator.describe()
    key = description.key.hex()
    topics = f", topics {', '.join(sorted(description.topics))}" if description.topics else ""
    if not cluster.as_json:
        nodes = ", ".join(description.storage)
        say(f"cluster {key}: {counted(description.total, 'partition')}{topics}, on storage nodes {nodes}")
    again = confirm
    if again is None:
        again = str(typer.prompt("Type the cluster's key to delete it", err=True))
    if again.strip().lower() != key:
        raise WrongClusterKey(f"{again!r} was given to confirm the cluster's key, {key}: nothing was deleted")
    await cluster.coordinator.delete(description.key)
    cluster.tell(
        {"cluster": key, "deleted": True},
        "the cluster was deleted. The directories of its storage nodes hold the log, perhaps its only copy; a new "
        "cluster of these nodes needs new directories",
    )


_STREAM: Final = Path("-")
_OUTPUT: Final = Path("/dev/stdout")
_INPUT: Final = Path("/dev/stdin")


@cluster.command("backup", epilog=EXIT_STATUS)
@on_cluster()
async def cluster_backup(
    cluster: OpenCluster,
    file: Annotated[Path, Argument(help="File to write; one that is there is replaced. `-`: standard output.")],
    force: Annotated[
        bool,
        Option(
            "--force",
            help="Write it although the coordinator is of an older state, or the file has later values, is of another "
            "cluster, or can't be read, such as one of a newer version.",
        ),
    ] = False,
) -> None:
    """Write the coordinator's values to a file, for `cluster recover`. The file holds no secrets, and not the log.

    A link stays, and what it points to is replaced; into a pipe or a device it is written. Nothing is written when the
    coordinator has been put back to an older state: when the file is a backup with later values, or the coordinator
    itself or the servers, which are asked, tell of it.
    """
    from polonaise.admin.belief import Belief, marked_outdated, outdated_in
    from polonaise.admin.coordinatorbackup import backup, check_replaces_no_later, write_backup
    from polonaise.host.replacing import is_standard_output

    opened, path = cluster.coordinator, _OUTPUT if file == _STREAM else file
    noted = await backup(opened)
    belief = (await cluster.observer.look()).belief
    if marked := marked_outdated(noted.partitions):
        belief = Belief(marked)
    if not force:
        check_replaces_no_later(path, noted)
        belief.refuse(
            opened,
            "Nothing was written: keep your earlier backups. To have these values all the same, name another file, "
            "with --force",
        )
    in_output = is_standard_output(path)
    write_backup(path, noted)
    assert noted.description is not None
    key, total, outdated = noted.description.key.hex(), noted.description.total, outdated_in(noted.partitions)
    if belief.doubt:
        older = "Keep your earlier backups: this one is of an older state"
        typer.echo(f"WARNING: {opened}: {belief.doubt}. {older}", err=True)
    elif belief.unknown is not None:
        older = "Keep your earlier backups: this one may be of an older state"
        typer.echo(f"WARNING: {opened}: {belief.not_asked}. {older}", err=True)
    if cluster.as_json:
        told = json.dumps({"cluster": key, "partitions": total, "file": str(file), "outdated": outdated})
    else:
        told = f"cluster {key}: the values of {counted(total, 'partition')} are in {file}"
    if in_output:  # what is there is the backup, and nothing else
        typer.echo(told, err=True)
    else:
        say(told)


def lack_told(lack: Lack) -> str:
    remedies = []
    if lack.nodes:
        remedies.append(f"Add {', '.join(lack.nodes)} (polonaise storage add NAME HOST:PORT). ")
    if lack.partitions:
        words = partition_words(lack.partitions, 5)
        remedies.append(f"Nobody serves {words} any more, and what was appended there stays on the storage nodes. ")
    return (
        f"the description that was to be believed lacks something: {lack}. {''.join(remedies)}If applications need "
        "what is missing, stop and recover again with another description"
    )


@cluster.command("recover", epilog=EXIT_STATUS)
@with_tls
def cluster_recover(
    file: Annotated[
        Path | None, Argument(help="File that `cluster backup` has written. `-`: standard input.", show_default=False)
    ] = None,
    coordinator: opencluster.CoordinatorOption = None,
    storage: Annotated[
        str | None,
        Option(help="Storage nodes to ask, NAME=HOST:PORT,…; they tell of the others.", show_default=False),
    ] = None,
    confirm: Annotated[
        str | None,
        Option(
            metavar="KEY",
            help="The cluster's key, to go on although servers are connected to the storage nodes.",
            show_default=False,
        ),
    ] = None,
    believe: Annotated[
        str | None,
        Option(
            metavar="SOURCE",
            help="Whose description of the cluster is right, if two contradict, or the latest lacks what is in use: "
            "`backup`, or a storage node's name, as the refusal says it.",
            show_default=False,
        ),
    ] = None,
    timeout: opencluster.Timeout = opencluster.TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Make the values of a coordinator that has lost its data again, from its storage nodes and, if given, a backup.

    Stop the servers first, and let the storage nodes run. It is refused while servers are connected to them, or answer
    themselves: with another coordinator than theirs these would lose their partitions. A coordinator that is only
    stopped, such as that of `cluster start`, is not noticed: this would make a second one. For an embedded log, close
    it in every process, and give --coordinator embedded:PATH. Nothing is made, and every reason is told, if it can't be
    proved that nothing committed would be lost, such as when too few storage nodes answer; or if two descriptions of
    the cluster contradict, such as by a topic's ids, or the latest lacks a storage node that has a copy, or partitions
    that are in use: then --believe chooses. With TLS it needs a server's certificate.
    """
    from polonaise.admin.coordinatorbackup import read_backup, recover_embedded
    from polonaise.node.addresses import storage_nodes_of
    from polonaise.node.embedded import SCHEME

    known = None if file is None else read_backup(_INPUT if file == _STREAM else file)
    nodes = storage_nodes_of(inputs.listed(storage), "--storage") if storage else {}

    def tell(made: RecoveredCluster) -> None:
        key, total = made.description.key.hex(), made.description.total
        if as_json:
            say_json({"cluster": key, "partitions": total, "silent": dict(made.silent), "lacking": str(made.lacking)})
            return
        then = "open the log" if embedded else "start the servers"
        say(f"cluster {key}: the values of {counted(total, 'partition')} were made again; {then}")
        for name, why in made.silent.items():
            say(f"storage node {name} did not answer, and was not needed: {why}")
        if made.lacking:
            say(f"WARNING: {lack_told(made.lacking)}")

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.coordinatorbackup import recover

        tell(await recover(host, opened, known, nodes, timeout, confirm or "", believe or ""))

    address = opencluster.required(coordinator)
    embedded = address.startswith(SCHEME)
    if not embedded:
        opencluster.with_coordinator(address, do, as_server=True)
        return
    if confirm:
        raise BadOption("an embedded log that is open anywhere is refused: leave --confirm out, and close it there")
    if storage:
        raise BadOption("the storage directories of an embedded log are known: leave --storage out")
    with tidy():
        tell(asyncio.run(recover_embedded(address, known, timeout, believe or "")))

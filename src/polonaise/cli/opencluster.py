"""The cluster that a command looks at or changes: its options, its connection, and tables of what is seen there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer
from typer import Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import adding, with_tls
from polonaise.cli.output import Json, or_dash, print_table, say_either, say_json, tidy, while_read
from polonaise.errors import BadOption
from polonaise.redaction import redacted_address

if TYPE_CHECKING:
    from polonaise.admin.cluster import ClusterObserver, ClusterStatus, PartitionStatus, ServerStatus, StorageStatus
    from polonaise.admin.copymoves import CopyMoves
    from polonaise.admin.memberedits import MemberEdits
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

    Status = TypeVar("Status", ServerStatus, StorageStatus, PartitionStatus)


TIMEOUT_S: Final = 3.0
"""Seconds that a node, and the coordinator, have to answer: who does not is shown, and nothing hangs."""

CoordinatorOption = Annotated[
    str | None,
    Option(
        "--coordinator",
        envvar=["POLONAISE_COORDINATOR", "POLONAISE_LOG"],
        help="Address of the cluster's coordinator: zookeeper://HOST:PORT,…/ROOT, or file:PATH.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, Option(parser=inputs.seconds_of, metavar="SECONDS", help="How long to wait for each node to answer.")
]
TimeoutOfAll = Annotated[
    float,
    Option(
        "--timeout",
        parser=inputs.seconds_of,
        metavar="SECONDS",
        help="How long to wait for each answer, and then for the change to be made.",
    ),
]


class Rows(NamedTuple):
    """A table: the names of its columns, its rows, and the indexes of the columns with numbers, which align right."""

    columns: list[str]
    rows: list[Sequence[object]]
    right: tuple[int, ...]


def required(coordinator: str | None) -> str:
    """Return the coordinator's address. Raises `BadOption` without one."""
    if not coordinator:
        from polonaise.admin.configuration import not_read_here

        raise BadOption(
            "no cluster is named: give --coordinator zookeeper://HOST:PORT,…/ROOT or file:PATH, or set "
            f"POLONAISE_COORDINATOR{not_read_here('coordinator', 'POLONAISE_COORDINATOR')}"
        )
    return coordinator


def with_coordinator(
    address: str, do: Callable[[Host, Coordinator], Coroutine[Any, Any, None]], *, as_server: bool = False
) -> None:
    """Run `do` with the cluster's coordinator, and with a host by which nodes are reached; close both at the end.

    With TLS, the certificate has to be for a client; `as_server`, for a server.
    """

    async def run() -> None:
        from polonaise.admin.opening import opened_coordinator
        from polonaise.host.tls import CLIENT, SERVER

        async with opened_coordinator(address, SERVER if as_server else CLIENT) as (host, opened):
            await do(host, opened)

    with tidy():
        asyncio.run(while_read(run()))


def named_servers() -> list[str]:
    """Return the addresses of servers that POLONAISE_LOG names: they tell what a coordinator that is away can't."""
    from polonaise.node.addresses import SERVERS, servers_at, split_topic

    address = os.environ.get("POLONAISE_LOG", "")
    if not address.startswith(f"{SERVERS}://"):
        return []
    return [*servers_at(split_topic(address)[0])]


def print_rows(each: Sequence[Status], rows_of: Callable[[Sequence[Status]], Rows], *, as_json: bool) -> None:
    """Print servers, storage nodes or partitions as a table, or as one JSON object per line."""
    if as_json:
        for item in each:
            say_json(item.document())
    else:
        table = rows_of(each)
        print_table(table.columns, table.rows, right=table.right)


def server_rows(servers: Sequence[ServerStatus]) -> Rows:
    return Rows(
        ["server", "name", "address", "state", "partitions", "problems"],
        [
            (
                each.server,
                each.name if each.name != each.address else "its address",
                each.address,
                "MISSING" if each.registered is False else "UNREACHABLE" if each.trouble else "reachable",
                "unknown" if each.partitions is None else each.partitions,
                each.troubles,
            )
            for each in servers
        ],
        (0, 4),
    )


def storage_rows(nodes: Sequence[StorageStatus]) -> Rows:
    return Rows(
        ["node", "address", "state", "partitions", "free", "problems"],
        [
            (
                each.name,
                "its name" if each.address == each.name else each.address,
                ("UNREACHABLE" if each.trouble else "reachable") + (", draining" if each.draining else ""),
                _copies_of(each),
                "-" if each.free_bytes is None else f"{size(each.free_bytes)} of {size(each.total_bytes or 0)}",
                each.troubles,
            )
            for each in nodes
        ],
        (3, 4),
    )


def _copies_of(each: StorageStatus) -> str:
    """Return how many partitions have a copy on a node; at most as many as it knows, while not all owners tell."""
    if each.partitions is None:
        return "unknown" if each.known is None else f"{each.known} at most"
    return f"{each.partitions}, {each.given_up} given up" if each.given_up else str(each.partitions)


def partition_rows(partitions: Sequence[PartitionStatus]) -> Rows:
    columns = ["partition", "state", "owner", "gen.", "session", "committed", "engaged", "problems"]
    return Rows(columns, [_partition_row(each) for each in partitions], (0, 2, 3, 4, 5))


def _partition_row(each: PartitionStatus) -> Sequence[object]:
    session, committed, engaged = "-", "unknown", "-"
    if (condition := each.condition) is not None:
        session = str(or_dash(condition.session))
        if condition.committed_high_water_mark is not None:
            committed = str(condition.committed_high_water_mark)
        left = [
            f"{len(group)} {word}" for word, group in (("behind", condition.behind), ("out", condition.out)) if group
        ]
        engaged = ", ".join([str(len(condition.engaged)), *left, *(["changing"] if condition.change else [])])
    return (
        each.partition,
        each.state if each.state in ("ready", "degraded") else each.state.upper(),
        "nobody" if each.owner is None else each.owner_name or each.owner.server,
        "-" if each.owner is None else each.owner.generation,
        session,
        committed,
        engaged,
        each.troubles,
    )


def size(count: int) -> str:
    """Return a number of bytes as a text for people, such as `1.5 GiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"


STEP_S: Final = 600.0
"""Seconds that one step, such as copying a partition to another node, may take until a command gives up waiting."""
StepTimeout = Annotated[
    float,
    Option(
        "--step-timeout",
        parser=inputs.seconds_of,
        metavar="SECONDS",
        help="How long to wait for each step, such as copying a partition, before giving up.",
    ),
]


class OpenCluster:
    """A cluster whose coordinator is open, and by whose host its nodes are reached, for the time of a command."""

    def __init__(self, address: str, host: Host, coordinator: Coordinator, given: dict[str, Any]) -> None:
        """`address` is that of the coordinator; `given` has the values of the options that the command has."""
        self.address = address
        self.host = host
        self.coordinator = coordinator
        self.timeout_s: float = given.get("timeout", TIMEOUT_S)
        self.as_json: bool = given.get("as_json", False)
        self.step_s: float = given.get("step_timeout", STEP_S)

    @cached_property
    def observer(self) -> ClusterObserver:
        from polonaise.admin.cluster import ClusterObserver

        return ClusterObserver(self.host, self.coordinator, self.address, self.timeout_s, named_servers())

    async def look(self) -> ClusterStatus:
        """Take the status, and warn if the coordinator is not believed. Raises its error if it could not be read."""
        status = await self.observer.look()
        if status.coordinator_error is not None:
            raise status.coordinator_error
        self.warn_of(status.belief.doubt)
        return status

    def warn_of(self, doubt: str) -> None:
        """Warn on standard error of what makes the coordinator's values doubtful, such as an older state."""
        if doubt:
            typer.echo(f"WARNING: {redacted_address(self.address)}: {doubt}", err=True)

    async def warn_of_older_state(self) -> None:
        """Ask the coordinator and all nodes, and warn as `warn_of` does: for what did not ask the nodes itself."""
        status = await self.observer.look()
        self.warn_of(status.belief.doubt)

    async def edits(self) -> MemberEdits:
        """Return what changes members of partitions. Raises what keeps the cluster from being changed."""
        from polonaise.admin.memberedits import MemberEdits

        edits = MemberEdits(self.coordinator, self.timeout_s)
        # Before anything is said or asked: in an older copy of the coordinator all else would be wrong. And before that
        # a read, which tells by itself why the coordinator gives no answer.
        await edits.description()
        await edits.may_change()
        return edits

    async def moves(self) -> CopyMoves:
        """Return what moves copies, and says how far it is. Raises what keeps the cluster from being changed."""
        from polonaise.admin.copymoves import CopyMoves

        def report(partition: int | None, line: str) -> None:
            told = line if partition is None else f"partition {partition}: {line}"
            self.tell({"partition": partition, "progress": line}, told)

        edits = await self.edits()
        return CopyMoves(self.host, edits, step_s=self.step_s, timeout_s=self.timeout_s, report=report)

    def tell(self, document: dict[str, Any], line: str) -> None:
        """Print one of both: with --json the document, else the line."""
        say_either(document, line, as_json=self.as_json)


def on_cluster(
    *,
    timeout_s: float | None = TIMEOUT_S,
    timeout: Any = Timeout,
    steps: bool = False,
    json: bool = True,
    as_server: bool = False,
    check: Callable[..., None] | None = None,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Decorate a command: it runs with its parameter `cluster`, an `OpenCluster`, which is closed at its end.

    It takes --coordinator; --timeout with this default and annotation, unless the default is None; --step-timeout with
    `steps`; --json with `json`; and the TLS options, with a certificate for a client or, `as_server`, for a server.
    `check`, if given, is called with the command's own arguments before anything is opened.
    """
    options: dict[str, tuple[Any, Any]] = {"coordinator": (CoordinatorOption, None)}
    if timeout_s is not None:
        options["timeout"] = (timeout, timeout_s)
    if steps:
        options["step_timeout"] = (StepTimeout, STEP_S)
    if json:
        options["as_json"] = (Json, False)

    def run(given: dict[str, Any], called: partial[Coroutine[Any, Any, None]]) -> None:
        if check is not None:
            check(**called.keywords)
        address = required(given["coordinator"])

        async def do(host: Host, opened: Coordinator) -> None:
            await called(cluster=OpenCluster(address, host, opened, given))

        with_coordinator(address, do, as_server=as_server)

    return lambda command: with_tls(adding(command, options, run, instead_of="cluster"))

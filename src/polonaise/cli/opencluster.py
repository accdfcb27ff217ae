"""The cluster that a command looks at or changes: its options, its connection, and what such commands say."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Option

from polonaise.cli import inputs, looking
from polonaise.cli.addedoptions import adding, with_tls
from polonaise.cli.output import Json, say_either
from polonaise.redaction import redacted_address

if TYPE_CHECKING:
    from polonaise.admin.cluster import ClusterObserver, ClusterStatus
    from polonaise.admin.copymoves import CopyMoves
    from polonaise.admin.memberedits import MemberEdits
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

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
        self.timeout_s: float = given.get("timeout", looking.TIMEOUT_S)
        self.as_json: bool = given.get("as_json", False)
        self.step_s: float = given.get("step_timeout", STEP_S)

    @cached_property
    def observer(self) -> ClusterObserver:
        from polonaise.admin.cluster import ClusterObserver

        return ClusterObserver(self.host, self.coordinator, self.address, self.timeout_s, looking.named_servers())

    async def look(self) -> ClusterStatus:
        """Take the status, and warn if the coordinator is not believed. Raises its error if it could not be read."""
        status = await self.observer.look()
        if status.coordinator_error is not None:
            raise status.coordinator_error
        self.warn_of(status.coordinator_disbelief)
        return status

    def warn_of(self, doubt: str) -> None:
        """Warn on standard error of what makes the coordinator's values doubtful, such as an older state."""
        if doubt:
            typer.echo(f"WARNING: {redacted_address(self.address)}: {doubt}", err=True)

    async def warn_of_older_state(self) -> None:
        """Ask the coordinator and all nodes, and warn as `warn_of` does: for what did not ask the nodes itself."""
        status = await self.observer.look()
        self.warn_of(status.coordinator_disbelief)

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
    timeout_s: float | None = looking.TIMEOUT_S,
    timeout: Any = looking.Timeout,
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
    options: dict[str, tuple[Any, Any]] = {"coordinator": (looking.CoordinatorOption, None)}
    if timeout_s is not None:
        options["timeout"] = (timeout, timeout_s)
    if steps:
        options["step_timeout"] = (StepTimeout, STEP_S)
    if json:
        options["as_json"] = (Json, False)

    def run(given: dict[str, Any], called: partial[Coroutine[Any, Any, None]]) -> None:
        if check is not None:
            check(**called.keywords)
        address = looking.required(given["coordinator"])

        async def do(host: Host, opened: Coordinator) -> None:
            await called(cluster=OpenCluster(address, host, opened, given))

        looking.with_coordinator(address, do, as_server=as_server)

    return lambda command: with_tls(adding(command, options, run, instead_of="cluster"))

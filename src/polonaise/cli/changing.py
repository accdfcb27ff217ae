"""Options and connections shared by the commands that change where a cluster's copies are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from polonaise.cli import inputs, looking
from polonaise.cli.output import say, say_json
from polonaise.errors import BadOption

if TYPE_CHECKING:
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
Force = Annotated[bool, Option("--force", help="Even if fewer copies are left in sync than the partition is to have.")]


Yes = Annotated[bool, Option("--yes", help="Do not ask, although the partition will have nothing to spare.")]


def confirm_lost_spare(lost: str, *, yes: bool) -> None:
    """Ask whether a change is to be made that leaves a partition nothing to spare. Raises `BadOption` if it is not.

    `lost` is what it would not have to spare any more; nobody is asked if that is empty, or with `yes`.
    """
    if not lost or yes:
        return
    import typer

    try:
        wanted = typer.confirm(f"{lost}. Make the change all the same?", err=True)
    except typer.Abort:  # nobody is there to answer
        wanted = False
    if not wanted:
        raise BadOption(f"nothing was changed: {lost}. With --yes nobody is asked; or choose another storage node")


def with_edits(
    coordinator: str | None,
    timeout_s: float,
    do: Callable[[Host, MemberEdits], Coroutine[Any, Any, None]],
    *,
    as_server: bool = False,
) -> None:
    """Connect to the cluster's coordinator, run `do`, and close the connection. As `looking.with_coordinator`."""

    async def run(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.memberedits import MemberEdits

        edits = MemberEdits(opened, timeout_s)
        # Before anything is said or asked: in an older copy of the coordinator all else would be wrong. And before that
        # a read, which tells by itself why the coordinator gives no answer.
        await edits.description()
        await edits.may_change()
        await do(host, edits)

    looking.with_coordinator(coordinator, run, as_server=as_server)


def with_moves(
    coordinator: str | None,
    timeout_s: float,
    step_s: float,
    do: Callable[[CopyMoves], Awaitable[None]],
    *,
    as_json: bool = False,
) -> None:
    """Connect to the cluster's coordinator, run `do`, which moves copies and tells how far it is, and close."""

    def report(partition: int | None, line: str) -> None:
        if as_json:
            say_json({"partition": partition, "progress": line})
        else:
            say(line if partition is None else f"partition {partition}: {line}")

    async def move(host: Host, edits: MemberEdits) -> None:
        from polonaise.admin.copymoves import CopyMoves

        await do(CopyMoves(host, edits, step_s=step_s, timeout_s=timeout_s, report=report))

    with_edits(coordinator, timeout_s, move)

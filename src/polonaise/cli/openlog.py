"""The log that a command uses: its options, its connection, and what is told of a log that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from typer import Argument, Option

from polonaise.cli import inputs
from polonaise.cli.addedoptions import adding, with_tls
from polonaise.cli.output import Json, tidy, while_read
from polonaise.client.protocol.arguments import partitions_named
from polonaise.errors import DeadlineExceeded, NotInitialized, PolonaiseError
from polonaise.redaction import redacted_address
from polonaise.terms import partition_words

if TYPE_CHECKING:
    from polonaise.admin.logs import TimeLimit
    from polonaise.client.log import Log
    from polonaise.terms import PartitionId

_NAMED_MAX: Final = 8
_WHYS_MAX: Final = 3
"""The most reasons that are told of why a command got no answer in time."""

Address = Annotated[
    str | None,
    Argument(
        metavar="[LOG]",
        help=f"Address of the log: {inputs.LOG_ADDRESSES}. Default: --log, or POLONAISE_LOG.",
        show_default=False,
    ),
]
LogAddress = Annotated[str, Argument(metavar="LOG", help=f"Address of the log: {inputs.LOG_ADDRESSES}.")]
LogOption = Annotated[
    str | None, Option("--log", envvar="POLONAISE_LOG", help="Address of the log, if not an argument.")
]
Partitions = Annotated[
    str | None, Option("--partition", "-p", help="Partitions: all, 3, or 0-6,9. Required if the log has more than one.")
]
OnePartition = Annotated[
    int | None,
    Option(
        "--partition",
        "-p",
        parser=inputs.partition_of,
        metavar="NUMBER",
        help="Partition. Required if there is more than one.",
    ),
]
AnyPartitions = Annotated[str, Option("--partition", "-p", help="Partitions: all, 3, or 0-6,9.")]
Timeout = Annotated[
    float,
    Option(
        parser=inputs.seconds_of, metavar="SECONDS", help="How long to wait for each answer; for the first, in all."
    ),
]


class OpenLog(NamedTuple):
    """A log that is open for the time of a command, with what the options that such commands share say."""

    log: Log
    limit: TimeLimit
    """The limit of --timeout, which has begun."""
    as_json: bool

    def partitions(self, text: str) -> list[PartitionId]:
        """Return the partitions that are written as `all`, `3` or `0-6,9`. Raises `BadOption`."""
        return partitions_named(text, self.log.partition_count, self.log.topic)


def on_log(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Decorate a command: it runs with its parameter `opened`, an `OpenLog`, which is closed at its end.

    It takes the log's address as an argument or by --log, --timeout, --json, and the TLS options.
    """
    options: dict[str, tuple[Any, Any]] = {
        "argument": (Address, None), "log_option": (LogOption, None),
        "timeout": (Timeout, 10.0), "as_json": (Json, False),
    }  # fmt: skip

    def run(given: dict[str, Any], called: Callable[..., Coroutine[Any, Any, None]]) -> None:
        from polonaise.admin.logs import TimeLimit

        address, limit = inputs.address_of(given["argument"], given["log_option"]), TimeLimit(given["timeout"])
        with_log(address, lambda log: called(opened=OpenLog(log, limit, given["as_json"])), limit=limit)

    return with_tls(adding(command, options, run, instead_of="opened"))


def check_there(address: str) -> None:
    """Raise `NotInitialized` if the address is of an embedded log that does not exist: connecting would make it."""
    from polonaise.node.embedded import SCHEME, is_there

    if address.startswith(SCHEME) and not is_there(address):
        raise NotInitialized(
            f"no embedded log at {redacted_address(address)}: correct the path, or make one: polonaise log create"
        )


def with_log(
    address: str,
    do: Callable[[Log], Coroutine[Any, Any, None]],
    *,
    makes: bool = False,
    limit: TimeLimit | None = None,
) -> None:
    """Connect to a log, run `do` with it, and close it. An embedded log that does not exist is made only if `makes`.

    `limit` is that of the command's --timeout: it begins here, and connecting counts; what is left is for `do` to keep
    to.
    """
    import polonaise
    from polonaise.host import broken_off

    if not makes:
        check_there(address)

    async def connected() -> None:
        if limit is not None:
            limit.begin()
        async with AsyncExitStack() as stack:
            connecting = asyncio.timeout_at(None if limit is None else limit.until_s)
            try:
                async with connecting:
                    log = await stack.enter_async_context(polonaise.connect(address))
            except TimeoutError as error:
                if limit is None or not connecting.expired():
                    raise
                named, within = redacted_address(address), f"within {limit.timeout_s:g} s"
                if why := broken_off(error):
                    raise DeadlineExceeded(f"{named} could not be opened {within}: {why}") from error
                raise DeadlineExceeded(
                    f"{named} did not answer {within}: see that what is named there is at work, or give it more time "
                    "with --timeout"
                ) from error
            if limit is None:
                await do(log)
            else:
                await _with_reason(log, do, limit)

    with tidy():
        asyncio.run(while_read(connected()))


async def _with_reason(log: Log, do: Callable[[Log], Coroutine[Any, Any, None]], limit: TimeLimit) -> None:
    """Run `do` with the log; where its time ends, tell what keeps the partitions, by their owners."""
    from polonaise.admin.logs import what_keeps

    asking = asyncio.create_task(what_keeps(log, limit))
    try:
        await do(log)
    except DeadlineExceeded as error:
        whys = asking.result() if asking.done() else {}
        told = [
            f"{partition_words(numbers, _NAMED_MAX)}: {why}"
            for why, numbers in list(whys.items())[:_WHYS_MAX]
            if why not in error.text
        ]
        because = f"; what keeps it, as its server says: {'; '.join(told)}" if told else ""
        longer = (
            "Give it more time with --timeout if that may pass"
            if whys or isinstance(error.__cause__, PolonaiseError)  # the reason is told
            else f"A server that has many partitions to start may need longer than {limit.timeout_s:g} s: give it more "
            "with --timeout"
        )
        raise DeadlineExceeded(f"{error.text}{because}. {longer}") from error
    finally:
        asking.cancel()
        await asyncio.wait([asking])

"""The `polonaise partition` commands: list the partitions of a cluster, describe one, reset the head of its log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Argument, Option

from polonaise.cli import inputs, looking
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import print_table, say, say_json, tidy, while_read
from polonaise.cli.tlsoptions import with_tls
from polonaise.errors import HeadNotReset

partition = typer.Typer(help="List the partitions of a cluster, describe one, reset its head.", no_args_is_help=True)


@partition.command("list", epilog=EXIT_STATUS)
@with_tls
def partition_list(
    coordinator: looking.CoordinatorOption = None,
    troubled: Annotated[bool, Option("--troubled", help="Only those that are not well.")] = False,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """List the partitions of a cluster: owner, generation, session, how far each is committed, and what is wrong."""
    from polonaise.admin.cluster import ClusterStatus, Wellness, partition_document

    def show(status: ClusterStatus) -> None:
        partitions = [each for each in status.partitions if not troubled or each.wellness is not Wellness.WELL]
        looking.print_rows(partitions, looking.partition_rows, partition_document, as_json=as_json)

    looking.look(coordinator, timeout, show)


@partition.command("describe", epilog=EXIT_STATUS)
@with_tls
def partition_describe(
    number: Annotated[int, Argument(parser=inputs.partition_of, metavar="PARTITION", help="Number of the partition.")],
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Describe one partition: what its owner says of it, and what the coordinator keeps of each of its replicas.

    A closing mark is missing while the end of that session is undecided, as that of the present one is.
    """
    from polonaise.admin.cluster import ClusterObserver, describe_partition, partition_document

    async def do(observer: ClusterObserver) -> None:
        found = await describe_partition(observer, number)
        if as_json:
            say_json(found.document())
            return
        looking.print_rows([found.status], looking.partition_rows, partition_document, as_json=False)
        replicas = [(each.name, each.state, _known(each.session), _known(each.closing)) for each in found.replicas]
        say("")
        print_table(["replica", "state", "last session", "closing mark"], replicas, right=(2, 3))
        if found.value.next is not None:
            say(f"next members: {', '.join(found.value.next)}")
        if found.status.counts:
            say("")
            print_table(["figure", "value"], list(found.status.counts.items()), right=(1,))

    looking.with_observer(coordinator, timeout, do)


@partition.command("reset-head", epilog=EXIT_STATUS)
@with_tls
def partition_reset_head(
    number: Annotated[int, Argument(parser=inputs.partition_of, metavar="PARTITION", help="Number of the partition.")],
    to: Annotated[
        int | None, Option("--to", metavar="ID", help="Id with which the log is to end; -1: empty.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        Option("--from", metavar="NODE", help="Storage node whose copy counts, if not the one least in doubt."),
    ] = None,
    confirm: Annotated[
        int | None,
        Option(metavar="ID", help="The same id again, in place of the question.", show_default=False),
    ] = None,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = 30.0,
    as_json: looking.Json = False,
) -> None:
    """Decide where the log of a partition ends, when a majority of its replicas is lost for good.

    Without --to, shows what the replicas that are left hold, and changes nothing. With it, shows what would be lost,
    asks for the id once more, and has the partition's owner cut the log there. The decision becomes a transaction of
    the log. A lost replica that comes back later is cut, and not believed.
    """
    from polonaise.admin.asking import opened_coordinator
    from polonaise.admin.headresets import ask_reset, await_reset, decision, head_state

    where = looking.required(coordinator)

    async def do() -> None:
        async with opened_coordinator(where) as (host, opened):
            state = await head_state(host, opened, number, min(timeout, looking.TIMEOUT_S))
            if not as_json:
                say(f"partition {number} is not open: {state.waits_for}")
                rows = [(c.name, c.last, c.proved, c.confirmed, c.joined) for c in state.copies]
                print_table(["replica", "holds", "proves", "confirmed", "session"], rows, right=(1, 2, 3, 4))
                if state.silent:
                    say(f"no answer from {', '.join(state.silent)}")
            if to is None:
                if as_json:
                    say_json(state.document())
                return
            reset = decision(state, to, source, host.clock.wall_us())
            lost = f"ids {to + 1} to {reset.known} are given up" if reset.known > to else "no id that is known is lost"
            silent = f", and whatever only {', '.join(state.silent)} may hold" if state.silent else ""
            told = f"the log would end at {to}, as {reset.source} holds it: {lost}{silent}"
            if confirm is None:
                again = typer.prompt(f"{told}. Type {to} once more to confirm", type=int, err=True)
            else:
                again = confirm
                if not as_json:
                    say(told)
            if again != to:
                raise HeadNotReset(f"{again} was given to confirm {to}: nothing was changed")
            await ask_reset(opened, state, reset)
            outcome = await await_reset(host, opened, state, reset, timeout)
        if as_json:
            say_json({"partition": number, "to": to, **asdict(outcome)})
        elif outcome.carried_out:
            say(f"the head was reset to {to}; transaction {to + 1} says so")
        else:
            say(f"nothing was given up: the replicas that came back prove the log up to {outcome.committed}")

    with tidy():
        asyncio.run(while_read(do()))


def _known(value: int | None) -> object:
    return "-" if value is None else value

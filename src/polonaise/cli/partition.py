"""The `polonaise partition` commands: list the partitions of a cluster, and describe one."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from polonaise.cli import inputs, looking
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import print_table, say, say_json
from polonaise.cli.tlsoptions import with_tls

partition = typer.Typer(help="List the partitions of a cluster, and describe one.", no_args_is_help=True)


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


def _known(value: int | None) -> object:
    return "-" if value is None else value

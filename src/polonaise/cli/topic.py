"""The `polonaise topic` commands: create topics, let them grow, list and describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli import looking
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.output import print_table, say, say_json
from polonaise.cli.tlsoptions import with_tls
from polonaise.errors import UnknownTopic
from polonaise.terms import counted

if TYPE_CHECKING:
    from polonaise.admin.topics import Topic
    from polonaise.coordination import Coordinator
    from polonaise.host import Host

topic = typer.Typer(
    help="Create topics, which are named groups of partitions; let them grow, list them, require copies of commits.",
    no_args_is_help=True,
)

_Name = Annotated[str, Argument(metavar="NAME", help="Name of the topic: a to z, digits, '.', '_' and '-'.")]
_Partitions = Annotated[int, Option("--partitions", min=1, max=4096, help="Number of partitions.")]


@topic.command("create", epilog=EXIT_STATUS)
@with_tls
def topic_create(
    name: _Name,
    partitions: _Partitions = 1,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Create a topic. Clients address it by its name, and see its partitions as 0, 1, 2, …."""

    async def do(_: Host, opened: Coordinator) -> None:
        from polonaise.admin.topics import create_topic

        made = await create_topic(opened, name, partitions, timeout)
        _say_grown(made, partitions, "created", as_json=as_json)

    looking.with_coordinator(coordinator, do)


@topic.command("add-partitions", epilog=EXIT_STATUS)
@with_tls
def topic_add_partitions(
    name: _Name,
    partitions: Annotated[int, Option("--partitions", min=1, max=4096, help="How many partitions to add.")],
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Add partitions to a topic, for good. Running clients and streams learn of them.

    What a partitioner computes from the number of partitions changes with it: see the documentation of topics.
    """

    async def do(_: Host, opened: Coordinator) -> None:
        from polonaise.admin.topics import add_partitions

        grown = await add_partitions(opened, name, partitions, timeout)
        _say_grown(grown, partitions, f"has {partitions} more", as_json=as_json)

    looking.with_coordinator(coordinator, do)


@topic.command("list", epilog=EXIT_STATUS)
@with_tls
def topic_list(
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """List the topics of a cluster: name, number of partitions, their ids, how many have an owner, what is required.

    The log's own partitions, which are in no topic, are not listed: `polonaise partition list` shows all.
    """

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.topics import list_topics

        topics = await list_topics(opened, timeout)
        await looking.warn_of_older_state(looking.observer_of(host, opened, coordinator, timeout))
        if as_json:
            for each in topics:
                say_json(each.document())
            return
        rows = [
            (each.name, len(each.ids), _shown(each.ids), sum(map(bool, each.owners)), each.required or "-")
            for each in topics
        ]
        print_table(["topic", "partitions", "ids", "owned", "required"], rows, right=(1, 3))

    looking.with_coordinator(coordinator, do)


@topic.command("describe", epilog=EXIT_STATUS)
@with_tls
def topic_describe(
    name: _Name,
    coordinator: looking.CoordinatorOption = None,
    timeout: looking.Timeout = looking.TIMEOUT_S,
    as_json: looking.Json = False,
) -> None:
    """Describe one topic: for each of its partitions the id in the cluster, and the server that owns it."""

    async def do(host: Host, opened: Coordinator) -> None:
        from polonaise.admin.topics import describe_topic

        observer = looking.observer_of(host, opened, coordinator, timeout)
        try:
            found = await describe_topic(opened, name, timeout)
        except UnknownTopic:
            await looking.warn_of_older_state(observer)  # the latest state may have it
            raise
        await looking.warn_of_older_state(observer)
        if as_json:
            say_json(found.document())
            return
        rows = [
            (number, id, owner or "-") for number, (id, owner) in enumerate(zip(found.ids, found.owners, strict=True))
        ]
        print_table(["partition", "id", "owner"], rows, right=(0, 1))
        if found.required:
            say(f"commits need {found.required}, by `polonaise topic require`")

    looking.with_coordinator(coordinator, do)


def _say_grown(grown: Topic, added: int, what: str, *, as_json: bool) -> None:
    if as_json:
        say_json({**grown.document(), "added": added})
        return
    say(f"topic {grown.name} {what}: {counted(len(grown.ids), 'partition')}, ids {_shown(grown.ids)}")
    unowned = grown.owners.count("")
    if unowned:
        say(f"{unowned} of them have no owner yet: a server that runs takes them within a minute")


def _shown(ids: tuple[int, ...]) -> str:
    """Return ids with each run of them shortened: `4-7, 9`."""
    runs: list[list[int]] = []
    for id in ids:
        if runs and id == runs[-1][1] + 1:
            runs[-1][1] = id
        else:
            runs.append([id, id])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)

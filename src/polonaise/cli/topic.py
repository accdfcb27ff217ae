"""The `polonaise topic` commands: create topics, let them grow, list and describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import print_each, print_table, say, say_json
from polonaise.errors import UnknownTopic
from polonaise.terms import PARTITIONS_MAX, counted, in_ranges

if TYPE_CHECKING:
    from polonaise.admin.topics import Topic

topic = typer.Typer(
    help="Create topics, which are named groups of partitions; let them grow, list them, require copies of commits.",
    no_args_is_help=True,
)

_Name = Annotated[str, Argument(metavar="NAME", help="Name of the topic: a to z, digits, '.', '_' and '-'.")]
_Partitions = Annotated[int, Option("--partitions", min=1, max=PARTITIONS_MAX, help="Number of partitions.")]


@topic.command("create", epilog=EXIT_STATUS)
@on_cluster()
async def topic_create(cluster: OpenCluster, name: _Name, partitions: _Partitions = 1) -> None:
    """Create a topic. Clients address it by its name, and see its partitions as 0, 1, 2, …."""
    from polonaise.admin.topics import create_topic

    made = await create_topic(cluster.coordinator, name, partitions, cluster.timeout_s)
    _say_grown(cluster, made, partitions, "created")


@topic.command("add-partitions", epilog=EXIT_STATUS)
@on_cluster()
async def topic_add_partitions(
    cluster: OpenCluster,
    name: _Name,
    partitions: Annotated[int, Option("--partitions", min=1, max=PARTITIONS_MAX, help="How many partitions to add.")],
) -> None:
    """Add partitions to a topic, for good. Running clients and streams learn of them.

    What a partitioner computes from the number of partitions changes with it: see the documentation of topics.
    """
    from polonaise.admin.topics import add_partitions

    grown = await add_partitions(cluster.coordinator, name, partitions, cluster.timeout_s)
    _say_grown(cluster, grown, partitions, f"has {partitions} more")


@topic.command("list", epilog=EXIT_STATUS)
@on_cluster()
async def topic_list(cluster: OpenCluster) -> None:
    """List the topics of a cluster: name, number of partitions, their ids, how many have an owner, what is required.

    The log's own partitions, which are in no topic, are not listed: `polonaise partition list` shows all.
    """
    from polonaise.admin.topics import list_topics

    topics = await list_topics(cluster.coordinator, cluster.timeout_s)
    await cluster.warn_of_older_state()
    print_each(
        topics,
        lambda each: each.document(),
        ["topic", "partitions", "ids", "owned", "required"],
        lambda each: (each.name, len(each.ids), in_ranges(each.ids), sum(map(bool, each.owners)), each.required or "-"),
        right=(1, 3),
        as_json=cluster.as_json,
    )


@topic.command("describe", epilog=EXIT_STATUS)
@on_cluster()
async def topic_describe(cluster: OpenCluster, name: _Name) -> None:
    """Describe one topic: for each of its partitions the id in the cluster, and the server that owns it."""
    from polonaise.admin.topics import describe_topic

    try:
        found = await describe_topic(cluster.coordinator, name, cluster.timeout_s)
    except UnknownTopic:
        await cluster.warn_of_older_state()  # the latest state may have it
        raise
    await cluster.warn_of_older_state()
    if cluster.as_json:
        say_json(found.document())
        return
    rows = [(number, id, owner or "-") for number, (id, owner) in enumerate(zip(found.ids, found.owners, strict=True))]
    print_table(["partition", "id", "owner"], rows, right=(0, 1))
    if found.required:
        say(f"commits need {found.required}, by `polonaise topic require`")


def _say_grown(cluster: OpenCluster, grown: Topic, added: int, what: str) -> None:
    partitions = counted(len(grown.ids), "partition")
    cluster.tell(
        {**grown.document(), "added": added}, f"topic {grown.name} {what}: {partitions}, ids {in_ranges(grown.ids)}"
    )
    if not cluster.as_json and (unowned := grown.owners.count("")):
        say(f"{unowned} of them have no owner yet: a server that runs takes them within a minute")

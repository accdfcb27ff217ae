"""The `polonaise cluster delete` command: a cluster's values are deleted from its coordinator."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from polonaise.cli.cluster import cluster
from polonaise.cli.exitstatus import EXIT_STATUS
from polonaise.cli.opencluster import OpenCluster, on_cluster
from polonaise.cli.output import say
from polonaise.errors import WrongClusterKey
from polonaise.terms import counted


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

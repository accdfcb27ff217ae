"""The settings that configuration files and environment variables may give: names, kinds, bounds and meanings.

Each has the name and the default of the field that it sets, where there is one. Reasons for the defaults stand there.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Final, NamedTuple

from polonaise.link.connection import LinkSettings
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings


class Kind(Enum):
    """The kind of a setting's value; the text says how one is written."""

    TEXT = "a text"
    LIST = 'a list, such as ["127.0.0.1:7100", "127.0.0.1:7101"], or a text with commas'
    FLAG = "true or false"
    COUNT = "a whole number"
    BYTES = 'bytes: a whole number, or a text such as "64 MiB"'
    SECONDS = 'seconds: a number, or a text such as "10 s", "500 ms", "6 h"'
    RATIO = "a number"


class Key(NamedTuple):
    """One setting of a node, or of `cluster start`."""

    name: str
    kind: Kind
    default: Any
    """The default; None for none."""
    meaning: str
    least: float = 0
    most: float = 2**62

    @property
    def unit(self) -> str:
        """The unit of its values, in a word; empty for a text or a flag."""
        return {Kind.BYTES: "bytes", Kind.SECONDS: "seconds"}.get(self.kind, "")


_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB
_DAY_S: Final = 86_400.0


def _key(of: type, name: str, kind: Kind, least: float, most: float, meaning: str) -> Key:
    """Return a key for this field of a dataclass, with its default."""
    field = next(each for each in fields(of) if each.name == name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Key(name, kind, default, meaning, least, most)


_LINK: Final = (
    _key(LinkSettings, "heartbeat_s", Kind.SECONDS, 0.1, 60, "A ping goes out on a connection that is idle for so long."),
    _key(LinkSettings, "silence_s_max", Kind.SECONDS, 0.5, 600, "A peer that is silent for so long counts as dead."),
)

SERVER: Final = (
    Key("coordinator", Kind.TEXT, None, "Address of the coordinator: zookeeper://HOST:PORT,…/ROOT, or file:PATH."),
    _key(ServerSettings, "listen", Kind.TEXT, 0, 0, "Address to listen at: host:port or unix:/path; port 0: any."),
    Key("storage", Kind.LIST, (), "Addresses of the storage nodes of a new cluster."),
    Key("partitions", Kind.COUNT, None, "Number of partitions of a new cluster. Default: 1.", 1, 4096),
    Key("fragments", Kind.TEXT, None, "Fragment store that the log is archived to: a directory, s3://…, gs://…, az://…."),
    _key(ServerSettings, "evidence", Kind.FLAG, 0, 1, "Also store what each append was judged by: its mark and locks."),
    _key(ServerSettings, "settle_s", Kind.SECONDS, 0, 3600, "How long a server lives before it is given others' partitions."),
    _key(ServerSettings, "acknowledge_s_max", Kind.SECONDS, 0.1, 600, "A replica that takes longer to sync is left out."),
    _key(ServerSettings, "inbox_s_max", Kind.SECONDS, 0.1, 600, "The longest that an append waits to be ordered."),
    _key(ServerSettings, "request_s_max", Kind.SECONDS, 0.1, 600, "The longest that a request or a mount waits."),
    _key(ServerSettings, "inbox_bytes_max", Kind.BYTES, 1 * _MIB, 16 * _GIB, "Appends that wait, per partition."),
    _key(ServerSettings, "append_window_bytes", Kind.BYTES, 64 * _KIB, 1 * _GIB, "Undecided appends of one mount."),
    _key(ServerSettings, "batch_bytes_max", Kind.BYTES, 4 * _KIB, 32 * _MIB, "A batch with so many bytes is full."),
    _key(ServerSettings, "batch_count_max", Kind.COUNT, 1, 1_000_000, "A batch with so many transactions is full."),
    _key(ServerSettings, "window", Kind.COUNT, 1, 64, "Batches of a partition that may wait for their quorum."),
    _key(ServerSettings, "lock_entries", Kind.COUNT, 1024, 2**28, "Entries of each partition's lock table, of 8 bytes each."),
    _key(ServerSettings, "cache_bytes_max", Kind.BYTES, 0, 64 * _GIB, "Recent batches in memory, per partition."),
    _key(ServerSettings, "connections_bytes_max", Kind.BYTES, 8 * _MIB, 64 * _GIB, "Memory for all clients' connections."),
    _key(ServerSettings, "subscriptions_max", Kind.COUNT, 1, 1_000_000, "Clients mounted on one partition."),
    _key(ServerSettings, "read_bytes_max", Kind.BYTES, 64 * _KIB, 32 * _MIB, "The answer to one read."),
    _key(ServerSettings, "read_wait_s_max", Kind.SECONDS, 0.1, 600, "The longest that a read waits for commits."),
    _key(ServerSettings, "checkpoint_transactions", Kind.COUNT, 1_000, 2**40, "A session ends after so many commits."),
    _key(ServerSettings, "pulse_s", Kind.SECONDS, 1, _DAY_S, "An idle partition proves about this often that it can commit."),
    _key(ServerSettings, "session_starts_max", Kind.COUNT, 1, 4096, "Partitions that start a session at the same time."),
    _key(ServerSettings, "replica_s_max", Kind.SECONDS, 0.1, 600, "The deadline of a request to a storage node."),
    _key(ServerSettings, "coordinator_s_max", Kind.SECONDS, 0.5, 600, "The deadline of a request to the coordinator."),
    _key(ServerSettings, "copy_pause_ratio", Kind.RATIO, 0, 1000, "Seconds of pause after each second of catching up a replica."),
    _key(ServerSettings, "readmit_transactions", Kind.COUNT, 1, 2**40, "A replica that lacks no more is let back in."),
    _key(ServerSettings, "warn_s", Kind.SECONDS, 0, _DAY_S, "What is wrong for so long is warned of in the server's log."),
    _key(ServerSettings, "warn_again_s", Kind.SECONDS, 1, _DAY_S, "A warning is repeated after so long."),
    _key(ServerSettings, "scrub_bytes_per_s", Kind.BYTES, 0, 2**40, "Fragments read per second in search of damage; 0: none."),
    _key(ServerSettings, "scrub_every_s", Kind.SECONDS, 1, 366 * _DAY_S, "Least time between two rounds of the scrub."),
    *_LINK,
)  # fmt: skip

STORAGE: Final = (
    Key("directory", Kind.TEXT, None, "Directory for the log's files; made if missing."),
    _key(StorageSettings, "listen", Kind.TEXT, 0, 0, "Address to listen at: host:port or unix:/path; port 0: any."),
    _key(StorageSettings, "segment_bytes_max", Kind.BYTES, 4 * _KIB, 2**40, "Size of a segment file."),
    _key(StorageSettings, "segment_batches_max", Kind.COUNT, 1, 2**31, "Number of batches at which a segment is full."),
    _key(StorageSettings, "partitions_max", Kind.COUNT, 1, 1_000_000, "Partitions that the node takes: ids below this."),
    _key(StorageSettings, "files_max", Kind.COUNT, 8, 1_000_000, "Files of partitions that stay open."),
    _key(StorageSettings, "queue_bytes_max", Kind.BYTES, 1 * _MIB, 16 * _GIB, "What waits for the disk, per partition."),
    _key(StorageSettings, "connections_bytes_max", Kind.BYTES, 8 * _MIB, 64 * _GIB, "Memory for all servers' connections."),
    _key(StorageSettings, "reads_max", Kind.COUNT, 1, 4096, "Reads of one connection that are answered at the same time."),
    _key(StorageSettings, "read_bytes_max", Kind.BYTES, 64 * _KIB, 32 * _MIB, "The answer to one read."),
    _key(StorageSettings, "scrub_bytes_per_s", Kind.BYTES, 0, 2**40, "Bytes read per second in search of damage; 0: none."),
    _key(StorageSettings, "scrub_every_s", Kind.SECONDS, 1, 366 * _DAY_S, "Least time between two rounds of the scrub."),
    _key(StorageSettings, "presence_s", Kind.SECONDS, 0.1, 600, "Time between two looks whether the directory is there."),
    *_LINK,
)  # fmt: skip

CLUSTER: Final = (
    Key("directory", Kind.TEXT, None, "Directory for everything that the cluster keeps; made if missing."),
    Key("coordinator", Kind.TEXT, None, "Kind of the coordinator: zookeeper or file. Default: zookeeper."),
    Key("storage", Kind.COUNT, None, "Number of storage nodes of a new cluster. Default: 3.", 1, 30),
    Key("servers", Kind.COUNT, None, "Number of servers. Default: 2, or as many as last time.", 1, 100),
    Key("partitions", Kind.COUNT, None, "Number of partitions of a new cluster. Default: 4.", 1, 4096),
    Key("port", Kind.COUNT, None, "First port of a new cluster; the others follow it. Default: free ones.", 1, 65_000),
    Key("restart", Kind.FLAG, True, "Start nodes again that end by themselves."),
)

TABLES: Final = {"server": SERVER, "storage": STORAGE, "cluster": CLUSTER}
"""The settings by the table of a configuration file that they stand in."""

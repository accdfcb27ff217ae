"""The settings that options, configuration files and variables may give: names, kinds, bounds, defaults and meanings.

A setting that sets a field of a dataclass has that field's name and default; the reason for the default stands there.
Options, the reading of files and of the environment, `config show` and the page of settings are made from these.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

from polonaise.link.settings import LinkSettings
from polonaise.node.logformat import LogFormat
from polonaise.node.playerplan import LEASE_S, PlayerPlan
from polonaise.player.protocol.settings import PlayerSettings
from polonaise.server.settings import ServerSettings
from polonaise.storage.settings import StorageSettings
from polonaise.terms import PARTITIONS_MAX


class SettingKind(Enum):
    """The kind of a setting's value; the text tells users how to write one."""

    TEXT = "a text"
    LIST = 'a list, such as ["127.0.0.1:7100", "127.0.0.1:7101"], or a text with commas'
    PARTITIONS = 'numbers of partitions: a list, such as [0, 3], or a text such as "0,3"'
    FLAG = "true or false"
    COUNT = "a whole number"
    BYTES = 'bytes: a whole number, or a text such as "64 MiB"'
    SECONDS = 'seconds: a number, or a text such as "10 s", "500 ms", "6 h"'
    RATIO = "a number"
    CHOICE = "one of a few texts"


class SettingKey(NamedTuple):
    """One setting of a node, or of `cluster start`."""

    name: str
    kind: SettingKind
    default: Any
    """None if there is none."""
    meaning: str
    """What the setting means, for helps, `config show` and the page of settings."""
    least: float = 0
    """The least value, inclusive, of a number or of each partition."""
    most: float = 2**62
    """The largest value, inclusive, likewise."""
    option: str = ""
    """The option of the command line that gives the setting, if any."""
    metavar: str | None = None
    """How the option's help writes a value; None: as its kind does."""
    choices: tuple[str, ...] = ()
    """The values of a `CHOICE`."""

    @property
    def unit(self) -> str:
        """In words; empty if there is none."""
        if "_bytes_per_s" in self.name:
            return "bytes per second"
        return {SettingKind.BYTES: "bytes", SettingKind.SECONDS: "seconds"}.get(self.kind, "")


BYTE_UNITS: Final = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB
_DAY_S: Final = 86_400.0


def written(kind: SettingKind, value: Any) -> str:
    """Return a value as text, as a variable of the environment could give it."""
    if kind is SettingKind.LIST:
        return ",".join(value)
    if kind is SettingKind.PARTITIONS:
        return ",".join(map(str, sorted(value)))
    if kind is SettingKind.FLAG:
        return "true" if value else "false"
    if kind is SettingKind.BYTES:
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            size = BYTE_UNITS[unit.lower()]
            if value >= size and value % size == 0:
                return f"{value // size:g} {unit}"
        return str(int(value))
    if kind is SettingKind.COUNT:
        return str(int(value))
    if kind in (SettingKind.SECONDS, SettingKind.RATIO):
        return f"{value:g}"
    return str(value)


def _key(of: type, name: str, kind: SettingKind, least: float, most: float, meaning: str, *option: Any) -> SettingKey:
    """Return the setting for a field of the dataclass `of`, with the field's default; `option` may have a metavar."""
    field = next(each for each in fields(of) if each.name == name)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return SettingKey(name, kind, default, meaning, least, most, *option)


_TEXT, _LIST, _FLAG, _COUNT = SettingKind.TEXT, SettingKind.LIST, SettingKind.FLAG, SettingKind.COUNT
_PARTITIONS, _CHOICE = SettingKind.PARTITIONS, SettingKind.CHOICE
_BYTES, _SECONDS, _RATIO = SettingKind.BYTES, SettingKind.SECONDS, SettingKind.RATIO
_of_server = partial(_key, ServerSettings)
_of_storage = partial(_key, StorageSettings)
_of_link = partial(_key, LinkSettings)
_of_player = partial(_key, PlayerPlan)
_of_delivery = partial(_key, PlayerSettings)

_LINK: Final = (
    _of_link("heartbeat_s", _SECONDS, 0.1, 60, "A ping goes out on a connection that is idle for so long."),
    _of_link("silence_s_max", _SECONDS, 0.5, 600, "A peer that is silent for so long counts as dead."),
)

_LISTEN: Final = "Address to listen at: host:port or unix:/path; with port 0 the system chooses one."

_NODE: Final = (
    SettingKey(
        "http", _TEXT, None,
        "Address of /live, /ready, /health and /metrics, without TLS; a port alone: on this machine only; off: "
        "nowhere, whatever file and environment say. Needs the extra metrics.",
        option="--http", metavar="HOST:PORT",
    ),
    SettingKey(
        "log_format", _CHOICE, LogFormat.TEXT.value, "Format of the log: text, for people, or json: one object a line.",
        option="--log-format", choices=tuple(LogFormat),
    ),
)  # fmt: skip

SERVER: Final = (
    SettingKey(
        "coordinator", _TEXT, None,
        "Address of the coordinator: zookeeper://HOST:PORT,…/ROOT, or file:PATH, a directory of this machine.",
        option="--coordinator",
    ),
    SettingKey(
        "storage", _LIST, (),
        "Storage nodes that the cluster is to have: NAME=HOST:PORT,… Without NAME= a node is named by its address.",
        option="--storage",
    ),
    SettingKey(
        "partitions", _COUNT, None, "Number of partitions that the cluster is to have. A new one has 1 by default.",
        1, PARTITIONS_MAX, "--partitions",
    ),
    _of_server("listen", _TEXT, 0, 0, _LISTEN, "--listen"),
    _of_server(
        "name", _TEXT, 0, 0,
        "Name of the server, which it keeps when it is started again: the cluster misses it by that name. Default: its "
        "address, if `listen` gives a port.",
        "--name",
    ),
    SettingKey(
        "fragments", _TEXT, None,
        "Fragment store that the log is archived to: a directory, or s3://…, gs://…, az://….",
        option="--fragments",
    ),
    _of_server("evidence", _FLAG, 0, 1, "Also store what each append was judged by: its mark and locks.", "--evidence"),
    _of_server(
        "preferred", _PARTITIONS, 0, PARTITIONS_MAX - 1,
        "Partitions that the server should own, as far as the balance over the servers allows.",
        "--prefer", "PARTITION,…",
    ),
    _of_server("settle_s", _SECONDS, 0, 3600, "A server lives so long before it is given others' partitions."),
    _of_server(
        "clock_off_s_max", _SECONDS, 0.1, _DAY_S,
        "A clock that is off by more starts no session, nor is it believed after a jump.",
    ),
    _of_server(
        "clock_settle_s", _SECONDS, 1, _DAY_S,
        "A clock that has jumped is believed after so long if no other one confirms it.",
    ),
    _of_server("acknowledge_s_max", _SECONDS, 0.1, 600, "A replica that takes longer to sync is left out."),
    _of_server("inbox_s_max", _SECONDS, 0.1, 600, "The longest that an append waits to be ordered."),
    _of_server("request_s_max", _SECONDS, 0.1, 600, "The longest that a request or a mount waits."),
    _of_server("inbox_bytes_max", _BYTES, 1 * _MIB, 16 * _GIB, "Appends that wait, per partition."),
    _of_server("append_window_bytes", _BYTES, 64 * _KIB, 1 * _GIB, "Undecided appends of one mount."),
    _of_server("batch_bytes_max", _BYTES, 4 * _KIB, 32 * _MIB, "A batch with so many bytes is full."),
    _of_server("batch_count_max", _COUNT, 1, 1_000_000, "A batch with so many transactions is full."),
    _of_server("window", _COUNT, 1, 64, "Batches of a partition that may wait for their quorum."),
    _of_server("lock_entries", _COUNT, 1024, 2**28, "Entries of each partition's lock table, of 8 bytes each."),
    _of_server("cache_bytes_max", _BYTES, 0, 64 * _GIB, "Recent batches in memory, per partition."),
    _of_server("connections_bytes_max", _BYTES, 8 * _MIB, 64 * _GIB, "Memory for all clients' connections."),
    _of_server("subscriptions_max", _COUNT, 1, 1_000_000, "Clients mounted on one partition."),
    _of_server("read_bytes_max", _BYTES, 64 * _KIB, 32 * _MIB, "The answer to one read."),
    _of_server("read_wait_s_max", _SECONDS, 0.1, 600, "The longest that a read waits for commits."),
    _of_server("checkpoint_transactions", _COUNT, 1_000, 2**40, "A session ends after so many commits."),
    _of_server(
        "pulse_s", _SECONDS, 1, _DAY_S, "An idle partition proves about this often that its session still holds."
    ),
    _of_server("session_starts_max", _COUNT, 1, 4096, "Partitions that start a session at the same time."),
    _of_server("replica_s_max", _SECONDS, 0.1, 600, "The deadline of a request to a storage node."),
    _of_server("coordinator_s_max", _SECONDS, 0.5, 600, "The deadline of a request to the coordinator."),
    _of_server("copies_max", _COUNT, 1, 4096, "Partitions that copy to late replicas at the same time."),
    _of_server("copies_per_storage_max", _COUNT, 1, 4096, "Those of them that copy to one storage node."),
    _of_server("copy_bytes_per_s", _BYTES, 4 * _KIB, 2**40, "Most bytes per second copied to late replicas."),
    _of_server("copy_bytes_per_s_min", _BYTES, 4 * _KIB, 2**40, "What is copied however slow appends are."),
    _of_server("copy_share", _RATIO, 0.01, 1, "Share of the time in which late replicas are copied to."),
    _of_server("copy_latency_s", _SECONDS, 0, 60, "Appends may take this long, or twice as long as without copies."),
    _of_server("readmit_transactions", _COUNT, 1, 2**40, "A replica that lacks no more is let back in."),
    _of_server("warn_s", _SECONDS, 0, _DAY_S, "What is wrong for so long is warned of in the server's log."),
    _of_server("warn_again_s", _SECONDS, 1, _DAY_S, "A warning is repeated after so long."),
    _of_server(
        "archive_fragment_bytes", _BYTES, 0, 2**40,
        "An archiver is late with what fills one of these; 0: with all (--rest).",
    ),
    _of_server(
        "scrub_bytes_per_s", _BYTES, 0, 2**40,
        "Bytes per second of fragments that are read in search of damage; 0: none.", "--scrub-bytes",
    ),
    _of_server("scrub_every_s", _SECONDS, 1, 366 * _DAY_S, "Least time from one round's beginning to the next one's."),
    *_NODE,
    *_LINK,
)  # fmt: skip

STORAGE: Final = (
    SettingKey("directory", _TEXT, None, "Directory for the log's files; made if missing.", option="--directory"),
    _of_storage(
        "name", _TEXT, 0, 0,
        "Name of the node. An empty directory takes it, or else the one by which the first server reaches it.",
        "--name",
    ),
    _of_storage("listen", _TEXT, 0, 0, _LISTEN, "--listen"),
    _of_storage("segment_bytes_max", _BYTES, 4 * _KIB, 2**40, "Size of a segment file, in bytes.", "--segment-bytes"),
    _of_storage("segment_batches_max", _COUNT, 1, 2**31, "Number of batches at which a segment is full."),
    _of_storage("partitions_max", _COUNT, 1, 1_000_000, "Partitions that the node takes: ids below this."),
    _of_storage("files_max", _COUNT, 8, 1_000_000, "Files of partitions that stay open."),
    _of_storage("queue_bytes_max", _BYTES, 1 * _MIB, 16 * _GIB, "What waits for the disk, per partition."),
    _of_storage("connections_bytes_max", _BYTES, 8 * _MIB, 64 * _GIB, "Memory for all servers' connections."),
    _of_storage("reads_max", _COUNT, 1, 4096, "Reads of one connection that are answered at the same time."),
    _of_storage("read_bytes_max", _BYTES, 64 * _KIB, 32 * _MIB, "The answer to one read."),
    _of_storage(
        "scrub_bytes_per_s", _BYTES, 0, 2**40, "Bytes per second that are read in search of damage; 0: none.",
        "--scrub-bytes",
    ),
    _of_storage("scrub_every_s", _SECONDS, 1, 366 * _DAY_S, "Least time from one round's beginning to the next one's."),
    _of_storage("presence_s", _SECONDS, 0.1, 600, "Time between two looks whether the directory is there."),
    *_NODE,
    *_LINK,
)  # fmt: skip

NEW_STORAGE, NEW_SERVERS, NEW_PARTITIONS = 3, 2, 4
"""The numbers of storage nodes, servers and partitions of a new local cluster for which nobody gives others."""

CLUSTER: Final = (
    SettingKey(
        "directory", _TEXT, None, "Directory for all that the cluster keeps; made if missing.", option="--directory"
    ),
    SettingKey(
        "coordinator", _CHOICE, None, "Kind of the coordinator: zookeeper or file. Default: zookeeper.",
        choices=("zookeeper", "file"),
    ),
    SettingKey(
        "storage", _COUNT, None, f"Number of storage nodes of a new cluster. Default: {NEW_STORAGE}.",
        1, 30, "--storage",
    ),
    SettingKey(
        "servers", _COUNT, None, f"Number of servers. Default: {NEW_SERVERS}, or as many as last time.",
        1, 100, "--servers",
    ),
    SettingKey(
        "partitions", _COUNT, None, f"Number of partitions of a new cluster. Default: {NEW_PARTITIONS}.",
        1, PARTITIONS_MAX, "--partitions",
    ),
    SettingKey(
        "port", _COUNT, None, "First port of a new cluster; the others follow it. Default: free ones.",
        1, 65_000, "--port",
    ),
    SettingKey("restart", _FLAG, True, "Start nodes again that end by themselves.", option="--restart"),
)  # fmt: skip

PLAYER: Final = (
    SettingKey(
        "name", _TEXT, None, "Name of the player: one process of those with the same name is active.", option="--name"
    ),
    SettingKey(
        "log", _TEXT, None, "Address of the log: polonaise://HOST:PORT,…, zookeeper://…, file:PATH, embedded:PATH.",
        option="--log",
    ),
    SettingKey("topic", _TEXT, None, "Topic of the log; without it, the log's own partitions."),
    SettingKey("partitions", _PARTITIONS, None, "Partitions to deliver. Default: all.", 0, PARTITIONS_MAX - 1),
    SettingKey("route", _TEXT, None, "The route function: package.module:function."),
    SettingKey(
        "python_path", _LIST, (".",), "Directories to look for the application's modules in, before all others."
    ),
    SettingKey(
        "retired", _LIST, (), "Names of targets that the route function may still return, and that get nothing."
    ),
    _of_player("lease_s", _SECONDS, *LEASE_S, "A standby takes over so long after the active process has died."),
    _of_player(
        "hand_over_s_max", _SECONDS, 0, 600, "The longest that a process that is stopped waits for acknowledgements."
    ),
    _of_delivery("batch_entries_max", _COUNT, 1, 1_000_000, "Entries in one batch."),
    _of_delivery("batch_bytes_max", _BYTES, 1 * _KIB, 32 * _MIB, "A batch with so many bytes is full."),
    _of_delivery("window_bytes", _BYTES, 1 * _KIB, 1 * _GIB, "Sent to a target and not acknowledged."),
    _of_delivery("partition_window_bytes", _BYTES, 1 * _KIB, 1 * _GIB, "Likewise, of one partition."),
    _of_delivery(
        "queue_entries_max", _COUNT, 1, 2**31, "Entries that wait for one target; above that it is caught up by reads."
    ),
    _of_delivery("queue_bytes_max", _BYTES, 64 * _KIB, 64 * _GIB, "Bytes that wait for one target, likewise."),
    _of_delivery(
        "recovery_bytes_max", _BYTES, 1 * _KIB, 1 * _GIB, "Read ahead for a target that catches up, per partition."
    ),
    _of_delivery("join_transactions", _COUNT, 0, 2**40, "A target that lacks no more gets the main stream again."),
    _of_delivery(
        "dummy_transactions", _COUNT, 1, 2**40, "A target that got nothing of so many is told how far the log is."
    ),
    _of_delivery("dummy_s", _SECONDS, 0.1, _DAY_S, "An idle target is told so often how far the log is."),
    _of_delivery(
        "start_patience_s", _SECONDS, 0, 600, "How long a player that begins waits for targets that do not answer."
    ),
    _of_delivery("open_s_max", _SECONDS, 0.1, 600, "The longest that a target may take to accept a stream."),
    _of_delivery(
        "progress_s_max", _SECONDS, 0.1, _DAY_S, "A target that acknowledges nothing for so long is disconnected."
    ),
    _of_delivery(
        "patience_s_max", _SECONDS, 0.1, _DAY_S, "Up to so long instead, after it has taken long, or was disconnected."
    ),
    _of_delivery(
        "retry_s_min", _SECONDS, 0.001, 600, "The first pause before a target is tried again; each doubles it."
    ),
    _of_delivery("retry_s_max", _SECONDS, 0.001, 3600, "The longest of these pauses."),
    _of_delivery(
        "steady_s", _SECONDS, 0.1, _DAY_S, "A stream that lasted so long makes the next pause the first again."
    ),
    *_NODE,
)  # fmt: skip

TABLES: Final = {"server": SERVER, "storage": STORAGE, "cluster": CLUSTER, "player": PLAYER}
"""The settings of each table of a configuration file, by the table's name."""

"""Every metric that nodes expose, with its meaning, and what it is read from if that is one measurement of a node.

`docs/monitoring.md` has the same list; a test compares them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from polonaise.server.serverhealth import ServerMeasures
from polonaise.storage.measures import StorageMeasures

PARTITION: Final = "partition"
CLIENT: Final = "client"
STORAGE: Final = "storage"
TARGET: Final = "target"
GROUP: Final = "group"
COORDINATOR_SERVER: Final = "coordinator_server"


class MetricKind(enum.Enum):
    """The kind of a metric; the values are Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    kind: MetricKind
    meaning: str
    """With the unit where the name has none."""
    labels: tuple[str, ...] = ()


_ALL: Final[list[Metric]] = []
OfServer: TypeAlias = Callable[[ServerMeasures], float | None]
OfStorage: TypeAlias = Callable[[StorageMeasures], float | None]
READ_OF_SERVER: Final[dict[Metric, OfServer]] = {}
"""What reads each metric that is one measurement of a server; it returns None for no sample."""
READ_OF_STORAGE: Final[dict[Metric, OfStorage]] = {}
"""The same for a storage node."""


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    _ALL.append(Metric(f"polonaise_{name}_total", MetricKind.COUNTER, meaning, labels))
    return _ALL[-1]


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    _ALL.append(Metric(f"polonaise_{name}", MetricKind.GAUGE, meaning, labels))
    return _ALL[-1]


def _histogram(name: str, meaning: str) -> Metric:
    _ALL.append(Metric(f"polonaise_{name}", MetricKind.HISTOGRAM, meaning))
    return _ALL[-1]


def _server_counter(name: str, read: OfServer, meaning: str) -> Metric:
    READ_OF_SERVER[metric := _counter(name, meaning)] = read
    return metric


def _server_gauge(name: str, read: OfServer, meaning: str) -> Metric:
    READ_OF_SERVER[metric := _gauge(name, meaning)] = read
    return metric


def _storage_counter(name: str, read: OfStorage, meaning: str) -> Metric:
    READ_OF_STORAGE[metric := _counter(name, meaning)] = read
    return metric


def _storage_gauge(name: str, read: OfStorage, meaning: str) -> Metric:
    READ_OF_STORAGE[metric := _gauge(name, meaning)] = read
    return metric


# fmt: off
# ---------------------------------------------------------------------- each node

NODE_INFO: Final = _gauge(
    "node_info", "Always 1: the node's role, its version, and a server's id.", "role", "version", "node"
)
NODE_READY: Final = _gauge("node_ready", "1 if `/ready` answers with 200, else 0.")
NODE_DEGRADED: Final = _gauge(
    "node_degraded", "1 for each kind of reason for which `/health` says that the node is not well, else 0.", "reason"
)
NODE_LOOP_DELAY: Final = _histogram("node_loop_delay_seconds",
    "How late a timer of the node's event loop went off, measured once a second: how long the loop was busy or stopped."
)
NODE_CERTIFICATE_EXPIRES: Final = _gauge("node_certificate_expires_timestamp_seconds",
    "When the node's certificate expires, in seconds since 1970; no sample without TLS.")
NODE_TASKS: Final = _gauge("node_tasks", "Tasks of the node's event loop.")

# ---------------------------------------------------------------------- a server as a whole

TRANSACTIONS: Final = _server_counter(
    "server_committed_transactions", lambda m: m.totals["committed_transactions"], "Transactions committed."
)
_server_counter("server_committed_batches", lambda m: m.totals["committed_batches"],
    "Batches committed: each is one sync on each engaged replica, or a part of one.")
_server_counter("server_committed_bytes", lambda m: m.totals["committed_bytes"], "Bytes of the batches committed.")
APPEND_SECONDS: Final = _histogram("server_append_seconds",
    "Time from the receipt of an append to its commit, as the server sees it; one observation for each batch: that of "
    "the oldest append in it.")
FAILED: Final = _counter("server_failed_appends", "Appends that clients were told have failed, by reason.", "reason")
_server_counter("server_void_appends", lambda m: m.totals["void_appends"],
    "Appends dropped because their client had left or mounted anew.")
REFUSED: Final = _counter(
    "server_refused_requests", "Frames and requests of clients refused, by the error's code.", "code"
)
CONFLICTS: Final = _counter("server_lock_conflicts",
    "Appends refused because of a lock. `certain`: the lock was raised by another append. `before_session`: nothing in "
    "the session raised it, and what did before is not known. `table`: in the lock table, where locks share places. "
    "The last two may be false.", "certainty")
LOCKS: Final = _gauge("server_locks", "Locks kept one by one, of all partitions without a lock table.")
LOCK_TABLES: Final = _gauge("server_lock_tables", "Partitions that keep their locks in a table of fixed size.")
_server_counter("server_sessions_started", lambda m: m.totals["sessions"], "Sessions started.")
FAULTS: Final = _server_counter(
    "server_session_faults", lambda m: m.totals["faults"], "Sessions ended by the fault of a replica."
)
PARTITIONS: Final = _gauge("server_partitions",
    "Partitions owned, by state: `ready`; `starting` (between sessions); `failing` (sessions end before they commit); "
    "`blocked` (an operator has to act); `stopped`.", "state")
OWNED: Final = _gauge(
    "server_owned_partitions", "Partitions owned, by the first 8 digits of the cluster's key.", "cluster"
)
CLUSTER_PARTITIONS: Final = _gauge(
    "server_cluster_partitions", "Partitions of the cluster, owned or not, by the same 8 digits.", "cluster"
)
UNDER_REPLICATED: Final = _gauge("server_under_replicated_partitions",
    "Partitions with a session in which not all members are engaged, or that have fewer members than they are to have.")
LISTED: Final = _gauge(
    "server_partitions_listed", "1 if this answer has the metrics of each partition, 0 if only totals."
)
INBOX: Final = _gauge("server_inbox_entries", "Append frames and requests that wait to be ordered.")
INBOX_BYTES: Final = _gauge("server_inbox_bytes", "Bytes of the appends that wait to be ordered.")
IN_FLIGHT: Final = _gauge(
    "server_in_flight_batches", "Batches and barriers sent to replicas that are not committed yet."
)
MOUNTS: Final = _gauge("server_mounts", "Mounts of clients, each of one partition.")
MOUNTS_BEHIND: Final = _gauge("server_mounts_behind",
    "Mounts that were not fed all that is committed, as far as known; no sample if that is 0 and not known of all.")
FEED_LAG: Final = _gauge("server_feed_lag_transactions_max",
    "The most transactions that a mount is behind what is committed; no sample if that is 0 and of some mounts not "
    "known, because the owner has not proved yet what is committed.")
REPLICA_PARTITIONS: Final = _gauge("server_replicas",
    "Partitions with a session, by storage node and whether its replica is `engaged` or `late`.", STORAGE, "state")
REPLICA_LAG: Final = _gauge("server_replica_lag_transactions_max",
    "The most transactions that a replica on this storage node is behind what was sent, as far as known; all, if it "
    "was away from the start.", STORAGE)
CONNECTED: Final = _gauge("server_storage_connected", "1 if the storage node is connected, else 0.", STORAGE)
RESENT: Final = _gauge("server_storage_resent_ratio",
    "The share of what was sent to the storage node in the last seconds that had to be sent again, because the network "
    "had lost it; no sample before the kernel has told, and where it does not.", STORAGE)
COPIED_BYTES: Final = _server_counter("server_copied_bytes", lambda m: m.own.copies["bytes"],
    "Bytes of batches copied to late replicas in the background, between sessions' starts.")
COPY_RATE: Final = _server_gauge("server_copy_bytes_per_second", lambda m: m.own.copies["bytes_per_s"],
    "The bytes per second that may be copied to late replicas at present: fewer while appends are slow.")
_server_gauge(
    "server_copies_under_way", lambda m: m.own.copies["under_way"], "Copies to late replicas that are being made."
)
_server_gauge("server_copies_waiting", lambda m: m.own.copies["waiting"],
    "Copies to late replicas that wait for their turn, or for the throttle.")
FALLING_BEHIND: Final = _gauge("server_replicas_falling_behind",
    "Late replicas that come no nearer although they are copied to, of all partitions.")
CACHE_HITS: Final = _server_counter(
    "server_tail_cache_hits", lambda m: m.totals["cache_hits"], "Batches that were asked for and found in memory."
)
CACHE_MISSES: Final = _server_counter("server_tail_cache_misses", lambda m: m.totals["cache_misses"],
    "Batches that were asked for and had to be read from a replica or a fragment.")
CACHE_BYTES: Final = _gauge("server_tail_cache_bytes", "Bytes of recent batches in memory.")
_server_gauge("server_connections", lambda m: m.connections, "Connections of clients.")
_server_gauge("server_connections_bytes", lambda m: m.connections_bytes,
    "Bytes held for connections: frames not handled yet and untaken answers.")
_server_counter("server_connections_cut_off", lambda m: m.connections_cut_off,
    "Connections cut off because all together held too much.")
_server_gauge("server_unanswered_requests", lambda m: m.requests,
    "Reads and other requests beside appends that are not answered yet.")
COORDINATOR_TROUBLE: Final = _gauge("server_coordinator_trouble",
    "1 if a value of the coordinator can't be read, no unique id given out, or the lease not renewed, else 0; no "
    "sample before the first answer or failure; `/health` says why.")
_server_gauge("server_given_up_partitions", lambda m: len(m.own.given_up_why or ()),
    "Partitions that the server can't serve, has given up for others to take over, and nobody serves since.")
MISSING_SERVERS: Final = _server_gauge("server_missing_servers", lambda m: m.missing_servers,
    "Other servers that the cluster is to have, until `polonaise server remove`, and that were not registered at the "
    "last look; no sample before the first.")
COORDINATOR_SERVER_UP: Final = _gauge("server_coordinator_server_up",
    "1 if a server of the coordinator, which is a ZooKeeper ensemble, served at the last look, else 0; no sample while "
    "this process itself can't ask it, such as without a certificate that can be used.", COORDINATOR_SERVER)
COORDINATOR_ERRORS: Final = _server_counter("server_coordinator_errors", lambda m: m.coordinator_errors,
    "Failed attempts to read the coordinator's values, to give out unique ids, or to renew the lease.")
CLOCK_OFFSET: Final = _gauge("server_clock_offset_seconds",
    "How far the clock of the storage node is ahead of the server's, below 0 if it is behind; no sample before it was "
    "measured.", STORAGE)
COORDINATOR_CLOCK_OFFSET: Final = _server_gauge(
    "server_coordinator_clock_offset_seconds", lambda m: m.own.clock["coordinator"],
    "How far the clock of the coordinator (of ZooKeeper's leader) is ahead of the server's, below 0 if it is behind; "
    "no sample while it is not known, and with a coordinator in a directory.")
CLOCK_UNFIT: Final = _server_gauge("server_clock_unfit", lambda m: m.own.clock["unfit"],
    "1 if the server's clock is off from those of a majority of the storage nodes, so that it starts no session, else "
    "0; no sample before any was measured.")
_server_gauge("server_clock_not_believed_seconds", lambda m: m.own.clock["not_believed_s"],
    "How far the server's clock is ahead of the time that commits get, because it has jumped or is off; 0 if it is "
    "believed.")
_server_counter("server_clock_jumps", lambda m: m.own.clock["jumps"],
    "How often the server's clock has jumped by more than `clock_off_s_max`.")
TIMES_STAND_STILL: Final = _gauge("server_times_stand_still_partitions",
    "Partitions whose commit times stand still, because a batch was committed by a clock that was ahead; `/health` "
    "says until when.")
ARCHIVE_LAG: Final = _server_gauge(
    "server_archive_lag_transactions_max", lambda m: m.archive and m.archive.transactions,
    "The most transactions committed in a partition that no fragment held at the last look, every five minutes; no "
    "sample without a fragment store, before the first look, and if that is 0 and not known of all partitions.")
ARCHIVE_LAG_SECONDS: Final = _gauge("server_archive_lag_seconds_max",
    "For how long the archiver could have written a fragment that was not there at the last look, of all partitions: "
    "since the commit that fills it (`archive_fragment_bytes`). 0 if there is none, as where all that is not archived "
    "fills none; no sample if that would be 0 and not all is known.")
ARCHIVE_LAG_UNKNOWN: Final = _server_gauge(
    "server_archive_lag_unknown_partitions", lambda m: m.archive and m.archive.unknown,
    "Partitions of which it was not known at the last look what the archive lacks: the store did not answer, or the "
    "partition was not ready. Those of which trimmed ids are missing are not among them: "
    '`polonaise_node_degraded{reason="fragments_missing"}`. No sample without a fragment store.')
FRAGMENT_ROUNDS: Final = _counter("server_fragment_scrub_rounds", "Rounds of the scrub of fragments that have ended.")
FRAGMENTS_DONE: Final = _gauge("server_fragment_scrub_done",
    "Fragments that the present round, or the last one, is done with; no sample before the first.")
FRAGMENTS_OF: Final = _gauge(
    "server_fragment_scrub_of", "Fragments in the present round, or the last one; no sample before the first."
)
FRAGMENTS_DAMAGED: Final = _counter("server_fragments_damaged", "Fragments found damaged.")
FRAGMENTS_REPAIRED: Final = _counter("server_fragments_repaired", "Fragments found damaged and repaired.")
FRAGMENTS_UNREPAIRED: Final = _gauge("server_fragments_unrepaired",
    "Fragments in the store that were found damaged, by the scrub or by a read, and are not repaired. No sample before "
    "the first round of the scrub, unless a read found one.")
FRAGMENTS_TROUBLE: Final = _gauge(
    "server_fragment_scrub_trouble", "1 if the fragment store can't be read, else 0; no sample before it was tried."
)
_server_gauge("server_fragment_store_away", lambda m: None if m.store_trouble is None else bool(m.store_trouble),
    "1 if the fragment store was away at the last look, every 15 seconds, or was not this cluster's, else 0: then the "
    "server can begin to serve no partition. No sample without a fragment store, and before the first look.")

# ---------------------------------------------------------------------- each partition, at its owner

PARTITION_READY: Final = _gauge(
    "partition_ready", "1 if the partition commits appends, else 0; `/health` says why not.", PARTITION
)
PARTITION_GENERATION: Final = _gauge("partition_generation", "The owner's generation.", PARTITION)
PARTITION_SESSION: Final = _gauge("partition_session", "The present session; -1 between sessions.", PARTITION)
PARTITION_MARK: Final = _gauge("partition_committed_id",
    "The committed high-water mark; -1 if nothing is committed, no sample before the owner has proved what is.",
    PARTITION)
PARTITION_TRANSACTIONS: Final = _counter(
    "partition_committed_transactions", "Transactions committed by this owner.", PARTITION
)
PARTITION_BYTES: Final = _counter(
    "partition_committed_bytes", "Bytes of the batches committed by this owner.", PARTITION
)
PARTITION_FAILED: Final = _counter("partition_failed_appends", "Appends that clients were told have failed.", PARTITION)
PARTITION_CONFLICTS: Final = _counter("partition_lock_conflicts", "Appends refused because of a lock.", PARTITION)
PARTITION_SESSIONS: Final = _counter("partition_sessions_started", "Sessions started by this owner.", PARTITION)
PARTITION_INBOX_BYTES: Final = _gauge(
    "partition_inbox_bytes", "Bytes of the appends that wait to be ordered.", PARTITION
)
PARTITION_IN_FLIGHT: Final = _gauge(
    "partition_in_flight_batches", "Batches and barriers sent to replicas that are not committed yet.", PARTITION
)
PARTITION_ENGAGED: Final = _gauge("partition_engaged_replicas", "Replicas engaged in the present session.", PARTITION)
PARTITION_MEMBERS: Final = _gauge(
    "partition_members", "Members of the present session: replicas that should be engaged.", PARTITION
)
PARTITION_MOUNTS: Final = _gauge("partition_mounts", "Mounts of clients.", PARTITION)
PARTITION_FEED_LAG: Final = _gauge("partition_feed_lag_transactions_max",
    "The most transactions that a mount is behind what is committed; no sample before the owner has proved what is.",
    PARTITION)
PARTITION_REPLICA_LAG: Final = _gauge("partition_replica_lag_transactions",
    "Transactions sent that a member has not acknowledged; of one that is late, those that its copy lacks, as far as "
    "known; all, if it was away from the start.", PARTITION, STORAGE)
CLIENT_LAG: Final = _gauge("client_feed_lag_transactions",
    "Transactions committed that a mount was not fed yet; no sample before the owner has proved what is committed.",
    PARTITION, CLIENT)

# ---------------------------------------------------------------------- each group of workers, at its first partition

GROUP_MEMBERS: Final = _gauge("group_members", "Members that are there.", PARTITION, GROUP)
GROUP_PARTITIONS: Final = _gauge("group_worked_partitions", "Partitions that a member works on.", PARTITION, GROUP)
GROUP_HINDERED: Final = _gauge("group_hindered_partitions",
    "Partitions whose worker does not go on: its handler or view fails, or the partition does not answer; `polonaise "
    "group describe` says why.", PARTITION, GROUP)
GROUP_LAG_UNKNOWN: Final = _gauge("group_lag_unknown_partitions",
    "Partitions that are worked on, and of which the worker does not know how much it has not handled.",
    PARTITION, GROUP)
GROUP_LAG: Final = _gauge("group_lag_transactions",
    "Transactions committed that the partitions which are worked on have not handled, in total, as their workers told "
    "last; no sample while that of one of them is not known.", PARTITION, GROUP)

# ---------------------------------------------------------------------- a storage node as a whole

_storage_counter(
    "storage_stored_transactions", lambda m: m.health.counts.get("transactions", 0), "Transactions stored and synced."
)
_storage_counter("storage_stored_batches", lambda m: m.health.counts.get("batches", 0), "Batches stored and synced.")
_storage_counter(
    "storage_stored_bytes", lambda m: m.health.counts.get("bytes", 0), "Bytes of the batches stored and synced."
)
SYNC_SECONDS: Final = _histogram("storage_sync_seconds",
    "Time to write and sync (fdatasync) what arrived for a partition in a run, with the wait for a thread; one "
    "observation for each sync.")
_storage_counter("storage_refused_messages", lambda m: m.health.counts.get("refused", 0),
    "Messages of servers refused, reads not counted.")
STORAGE_PARTITIONS: Final = _gauge("storage_partitions",
    "Partitions with files here, by state: `usable`; `unusable` (`/health` says why); `unopened` (not used since the "
    "node started); `given_up` (the copy is needed no more, and its files are left: see `storage clean`).", "state")
STORAGE_QUEUE: Final = _gauge("storage_queue_entries", "Messages that wait in the queues of all partitions.")
STORAGE_QUEUE_BYTES: Final = _gauge("storage_queue_bytes", "Memory that the messages in all queues take, in bytes.")
_storage_gauge("storage_connections", lambda m: m.connections,
    "Connections: two of each server, those of operators, and those without a hello so far.")
_storage_gauge("storage_connections_bytes", lambda m: m.connections_bytes,
    "Bytes held for connections: frames not handled yet and untaken answers.")
_storage_gauge(
    "storage_unanswered_reads", lambda m: m.reads, "Reads, and requests that name the node, that are not answered yet."
)
SEGMENTS: Final = _gauge("storage_segments", "Segment files of all usable partitions.")
LOG_BYTES: Final = _gauge("storage_log_bytes",
    "Bytes of the segments of all usable partitions, each up to its last batch: zeros written ahead are left out.")
_storage_gauge("storage_open_files", lambda m: m.open_files,
    "Files that are open: those of partitions, the control file and the directory's lock.")
_storage_gauge("storage_open_files_max", lambda m: m.open_files_max, "The most files of partitions that stay open.")
DISK_BYTES: Final = _gauge("storage_disk_bytes", "Size of the file system that the directory is on, in bytes.")
DISK_FREE: Final = _gauge("storage_disk_free_bytes", "Free bytes of that file system that the node may use.")
DISK_WAITS: Final = _storage_gauge("storage_disk_waits_seconds", lambda m: m.health.disk_waits_s,
    "For how long the oldest call to the disk has not returned; 0 if none is under way.")
_storage_gauge("storage_directory_gone", lambda m: int(bool(m.health.gone)),
    "1 if the node has lost its directory, and so stores nothing, else 0.")
_storage_gauge("storage_scrub_bytes_per_second", lambda m: m.health.scrub["bytes_per_s"],
    "The rate at which the scrub reads; 0 if it is switched off.")
_storage_counter("storage_scrub_rounds", lambda m: m.scrubbed.rounds, "Rounds of the scrub that have ended.")
_storage_gauge("storage_scrub_done", lambda m: m.scrubbed.partitions,
    "Partitions that the present round, or the last one, is done with.")
_storage_gauge(
    "storage_scrub_of", lambda m: m.scrubbed.partitions_of, "Partitions in the present round, or the last one."
)
_storage_gauge("storage_scrub_bytes", lambda m: m.scrubbed.bytes,
    "Bytes read and found good in the present round, or the last one.")
_storage_gauge("storage_scrub_finished_timestamp_seconds", lambda m: m.scrubbed.finished_us / 1e6,
    "When a round ended last, in seconds since 1970; 0 for never.")
_storage_counter("storage_damages_found", lambda m: m.scrubbed.found, "Damages found by the scrub.")
_storage_counter("storage_damages_repaired", lambda m: m.scrubbed.repaired,
    "Damages found by the scrub whose copy was made whole again.")
DAMAGES_UNREPAIRED: Final = _storage_gauge(
    "storage_damages_unrepaired", lambda m: m.health.scrub["found"] - m.health.scrub["repaired"],
    "Damages found by the scrub whose copy is not whole again; without copies that were given up.")

# ---------------------------------------------------------------------- each replica, on its storage node

REPLICA_USABLE: Final = _gauge(
    "replica_usable", "1 if the replica's files can be used, else 0; `/health` says why not.", PARTITION
)
REPLICA_SESSION: Final = _gauge("replica_session", "The session that the replica obeys; -1 for none.", PARTITION)
REPLICA_LAST: Final = _gauge("replica_last_id",
    "The last id that the replica holds, synced; if it holds none, the id before its first one, or -1 while no segment "
    "can be used.", PARTITION)
REPLICA_CONFIRMED: Final = _gauge(
    "replica_confirmed_id", "The highest id that the replica knows to be committed; -1 for none.", PARTITION
)
REPLICA_SEGMENTS: Final = _gauge("replica_segments", "Segment files.", PARTITION)
REPLICA_BYTES: Final = _gauge("replica_log_bytes",
    "Bytes of the segments, each up to its last batch: zeros written ahead are left out.", PARTITION)
REPLICA_QUEUE_BYTES: Final = _gauge("replica_queue_bytes", "Memory that waiting messages take, in bytes.", PARTITION)

# ---------------------------------------------------------------------- a process of a player

PLAYER_STATE: Final = _gauge("player_state",
    "1 for the state that the process is in, else 0: `connecting`, `standby`, `starting`, `active`, `handing_over`, "
    "`pausing`.", "player", "state")
PLAYER_EPOCH: Final = _gauge("player_epoch", "The epoch of the active player; no sample without one.")
PLAYER_TURNS: Final = _counter("player_turns", "How often the process has become active.")
PLAYER_SETTINGS_REFUSED: Final = _gauge(
    "player_settings_refused", "1 if the settings that were read last are wrong, and those before are in use, else 0."
)
PLAYER_CLOCK_OFFSET: Final = _gauge("player_clock_offset_seconds",
    "How far the clock of the log's server is ahead of this machine's, below 0 if it is behind; no sample before it "
    "was measured, and without an active player.")
PLAYER_PARTITIONS: Final = _gauge("player_partitions", "Partitions that the active player delivers.")
PLAYER_STOPPED: Final = _gauge(
    "player_stopped_partitions", "Partitions of which nothing more is read; `/health` says why."
)
PLAYER_LOG_TROUBLE: Final = _gauge(
    "player_log_trouble_partitions", "Partitions for which the log does not answer; `/health` says why."
)
TARGET_UP: Final = _gauge("player_target_up", "1 if the target has accepted a stream of this player, else 0.", TARGET)
TARGET_TERM: Final = _gauge("player_target_term", "The term of the target's last stream.", TARGET)
TARGET_WAITING: Final = _gauge("player_target_waiting_entries", "Entries that wait to be sent to the target.", TARGET)
TARGET_IN_FLIGHT: Final = _gauge(
    "player_target_in_flight_bytes", "Bytes that were sent to the target and are not acknowledged.", TARGET
)
TARGET_REFUSALS: Final = _counter("player_target_refusals", "Entries that the target has refused.", TARGET)
TARGET_HINDERED: Final = _gauge("player_target_hindered_partitions",
    "Partitions of which something keeps the target from getting all; `/health` says what.", TARGET)
TARGET_SLOW: Final = _gauge("player_target_slow_partitions",
    "Partitions of which the target has acknowledged nothing for long, while it goes on with what it was sent before.",
    TARGET)
TARGET_LAG: Final = _gauge("player_target_lag_transactions_max",
    "The most transactions of one partition behind the last one up to which the target lacks nothing, those counted "
    "there that are not its own; no sample if that is 0 and some partition's is not known.", TARGET)
TARGET_LAG_UNKNOWN: Final = _gauge("player_target_lag_unknown_partitions",
    "Partitions of which it is not known how much the target lacks, because it has told nothing, or the log does not "
    "tell how far it reaches.", TARGET)
TARGET_LAG_SECONDS: Final = _gauge("player_target_lag_seconds_max",
    "How long ago the oldest transaction was committed that the target lacks, of all partitions; 0 if it lacks none, "
    "no sample before it has told what it has, nor if that would be 0 and not all is known, nor if it was committed in "
    "the future. By the clock of the log's server, and up to a sixteenth too high; with more than 128 partitions by "
    "more. It may be that of one that is not the target's own, as long as what follows its last acknowledgement is not "
    "looked at: after a start, while it is read for a target that catches up, and within a batch.", TARGET)
TARGET_LAG_BYTES: Final = _gauge("player_target_lag_bytes",
    "About how many bytes of the log lie between the target and the end of what was read, of all partitions; no sample "
    "while the target lacks what was written before this player began.", TARGET)
DELIVERY_APPLIED: Final = _gauge(
    "player_applied_id", "The last id that the target is known to have applied.", TARGET, PARTITION
)
DELIVERY_LAG: Final = _gauge("player_lag_transactions",
    "Transactions behind the last one up to which the target lacks nothing, those counted there that are not its own.",
    TARGET, PARTITION)

# fmt: on
METRICS: Final = tuple(_ALL)
"""All metrics above, in their order."""
FROM_THE_LIBRARY: Final = {
    "process_virtual_memory_bytes": "Virtual memory of the process.",
    "process_resident_memory_bytes": "Resident memory of the process.",
    "process_start_time_seconds": "When the process started, in seconds since 1970.",
    "process_cpu_seconds_total": "Processor time of the process.",
    "process_open_fds": "Open file descriptors, sockets included.",
    "process_max_fds": "The most file descriptors that the process may open.",
    "python_gc_objects_collected_total": "Objects collected by Python's garbage collector, by `generation`.",
    "python_gc_objects_uncollectable_total": "Objects that the garbage collector could not free, by `generation`.",
    "python_gc_collections_total": "Collections by the garbage collector, by `generation`.",
    "python_info": "Always 1: the version of Python.",
}
"""The metrics of the process, which prometheus_client adds. Those of `process_` are there on Linux."""

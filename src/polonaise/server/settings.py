"""The settings of a server, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from polonaise.fragments.protocol.coverage import FRAGMENT_BYTES
from polonaise.link.settings import LinkSettings
from polonaise.server.protocol.order import INLINE_BYTES_MAX
from polonaise.server.protocol.settings import OwnerSettings


@dataclass(frozen=True, slots=True)
class ServerSettings(OwnerSettings):
    """The bounds of a server, in bytes, counts and seconds, in addition to those of its partitions' owners."""

    listen: str = "127.0.0.1:0"
    """The address to listen on; port 0 takes a free one."""
    name: str = ""
    """The server's name, by which the cluster misses it; empty for one that nobody misses."""
    link: LinkSettings = field(default_factory=LinkSettings)
    """Settings of each connection, to clients and to storage nodes."""
    connections_bytes_max: int = 96 * 1024 * 1024
    """The most bytes of frames not handled and messages not taken yet, of all clients; beyond it, those with the most
    are cut off."""
    inline_bytes_max: int = INLINE_BYTES_MAX
    """The largest body of an append, in bytes."""
    gather_s: float = 0.2
    """How long a session start waits for more replicas than it needs: once for their answers and, when a quorum is
    clean, for each further replica to become clean; twice as long as the quorum took, if that is longer. While too few
    replicas answer for the copies or zones that are required, appends are refused only after this long."""
    session_starts_max: int = 32
    """The most partitions that start a session at once, without those that take longer than `session_start_turn_s`;
    more would make each other miss their deadlines."""
    session_start_turn_s: float = 2.0
    """A session start that takes longer no longer counts against `session_starts_max`: what it waits for, others may
    not need. While fewer storage nodes are connected than a quorum of copies takes, it does: all wait for that."""
    session_start_wait_s_max: float = 30.0
    """When no partition has got its turn for this long, those that wait say so and ask again."""
    replica_s_max: float = 5.0
    """The deadline of one request to a replica, and of one attempt to connect. That of requests doubles whenever it is
    exceeded, up to a minute: a disk may be slow."""
    farewell_s_max: float = 1.0
    """The longest that a server that stops waits for its tasks to end, and then for replicas to note the committed
    mark."""
    preferred: frozenset[int] = frozenset()
    """The partitions that this server should own, if the balance over the servers allows."""
    settle_s: float = 10.0
    """Seconds for which a server has to live before it is given partitions, while others have lived so long; and for
    which the living servers and the assignment have to be the same (or for a lease, if that is longer) before
    partitions of living servers move: a server that comes and goes would move them each time."""
    give_up_s: float = 6.0
    """How long a partition is kept that this server can't serve, for want of what another server may have, before the
    others are told; time with a session counts half against it. Doubles with each giving up, up to two minutes."""
    coordinator_s_max: float = 5.0
    """The deadline of most of what a server asks the coordinator for in one go; reads of the assignment and renewals
    have none. A fifth of it is the longest wait for news of the assignment until the server looks again."""
    clock_off_s_max: float = 10.0
    """The most seconds by which the clock of a server that starts sessions may be off from those of a majority of its
    storage nodes, or jump without being confirmed. Clocks that are set by NTP differ far less."""
    clock_settle_s: float = 300.0
    """Seconds after which a clock that has jumped is believed though no other confirms it, as in an embedded log: long
    enough for whoever set it wrong to set it right again."""
    clock_patience_s: float = 5.0
    """Seconds for which the clock may be off before the server gives its partitions up to others."""
    members_look_s: float = 1.0
    """The shortest time between two looks at the coordinator for changes of a partition's members, which operators ask
    for; 0 for none: such a change is then made when the session ends by itself."""
    members_looks_per_s: int = 10
    """The most such looks in a second, of all partitions of a server: with thousands each waits longer."""
    members_hurry_per_s: int = 50
    """Likewise while a change is pending in any partition of the server, and for a minute after that or after a change
    of the cluster's description."""
    unique_ids_per_s: float = 100.0
    """The most unique ids a second that this server gives out, on average: each is a write at the coordinator, and
    anybody who reaches the port may ask. At once, two seconds' worth is given; others wait, and too many are
    refused."""
    notes_s: float = 1.0
    """The interval at which storage nodes are told news of the coordinator's values; 0: never."""
    retry_s_min: float = 0.05
    """The first pause before a failed connection, session start or coordinator request is tried again; each failure
    doubles it, except for the bulk connection to a storage node. Each is then made up to half longer or shorter, at
    random."""
    retry_s_max: float = 2.0
    """The longest such pause, without the random part."""
    warn_s: float = 3.0
    """A partition that is not ready, or a late replica, is warned of after this: longer than a session start."""
    warn_again_s: float = 30.0
    """The interval at which a warning is repeated. A late replica falls behind, as health calls it, when for this long
    it has lacked no fewer transactions than before."""
    copy_bytes: int = 1024 * 1024
    """About how many bytes are read at a time to bring a replica up to date, feed a lagging mount, or mend a
    fragment."""
    copies_max: int = 8
    """The most copies to late replicas that a server makes in the background at once."""
    copies_per_storage_max: int = 4
    """Likewise to one storage node, so that a slow one does not take all turns."""
    copy_bytes_per_s: int = 64 * 1024 * 1024
    """The most bytes per second of these copies, of all partitions."""
    copy_bytes_per_s_min: int = 1024 * 1024
    """The least, however slow appends are: without it, a late replica might stay late for ever."""
    copy_share: float = 0.5
    """The share of the time that these copies take, or more if they would be slower than `copy_bytes_per_s_min`: in the
    rest, replicas serve appends alone."""
    copy_latency_s: float = 0.01
    """Copying slows down when appends take longer than this, and than twice as long as without copies."""
    readmit_transactions: int = 1_000
    """A late replica that lacks more transactions than this is caught up with in the background, and not by the session
    start that lets it back in, unless the others are no quorum, or lack copies or zones that commits need."""
    readmit_s_min: float = 1.0
    """The shortest time between two ends of a session only to let a replica back in; longer where sessions take long to
    start."""
    read_bytes_max: int = 4 * 1024 * 1024
    """About the most bytes in the answer to one read, without its last batch."""
    read_wait_s_max: float = 30.0
    """The longest that a read waits for something to be committed, or a client for a newer assignment."""
    store_look_s: float = 15.0
    """The time between two looks whether the fragment store is there: without it a server can take over no partition.
    Also between two looks at what it lacks, while ids are missing."""
    archive_look_s: float = 300.0
    """The time between two looks at how far the fragment store is behind: each lists the whole store."""
    archive_fragment_bytes: int = FRAGMENT_BYTES
    """The size of the fragments that the archiver writes, in bytes of batches: what fills none yet is not late. 0 for
    an archiver that writes all there is (`--rest`)."""
    scrub_bytes_per_s: int = 2 * 1024 * 1024
    """The rate of the scrub, which reads the fragment store to find rot while the log can mend it. 0 for none: then
    only what reads could not use is looked at again."""
    scrub_every_s: float = 24 * 3600.0
    """The shortest time between the beginnings of two rounds of the scrub."""
    scrub_first_s: float = 60.0
    """About how long after the start the first round begins."""
    scrub_again_s: float = 60.0
    """The time until a store that could not be read, or a repair that may succeed later, is tried again; ten times as
    long for a fragment that only an operator can restore."""

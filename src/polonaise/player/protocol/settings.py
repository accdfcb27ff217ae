"""The settings of an active player, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

from polonaise.errors import BadOption

_MAY_BE_ZERO = ("join_transactions", "start_patience_s")


@dataclass(frozen=True, slots=True)
class PlayerSettings:
    """The bounds of one active player, in entries, transactions, bytes and seconds."""

    batch_entries_max: int = 512
    """Entries in one batch."""
    batch_bytes_max: int = 256 * 1024
    """No further entry joins a batch that it would bring above this many bytes."""
    window_bytes: int = 4 * 1024 * 1024
    """No further batch is sent to a target while this many bytes sent to it are not acknowledged."""
    partition_window_bytes: int = 512 * 1024
    """No further batch of a partition is sent to a target while this many bytes of it are not acknowledged."""
    queue_entries_max: int = 20_000
    """Entries of the main stream that wait for one target, of all partitions. Above it, those of a partition are
    dropped, and read from the log again when the target has caught up so far."""
    queue_bytes_max: int = 16 * 1024 * 1024
    """Bytes of the main stream that wait for one target, with what `queue_entries_max` says."""
    recovery_bytes_max: int = 512 * 1024
    """No further read is begun for a target that catches up while this many bytes of the partition wait to be sent."""
    join_transactions: int = 1_000
    """A target that catches up gets the main stream again once no more transactions than this lie between; and the main
    stream begins at most so far before the last that any target has applied."""
    dummy_transactions: int = 10_000
    """A target that got nothing of this many transactions is sent a dummy: they need not be read again after a
    restart."""
    dummy_s: float = 60.0
    """The interval, in seconds, at which idle targets that keep an older id are sent a dummy: without that, the log
    could be trimmed above it."""
    start_patience_s: float = 0.5
    """How many seconds a player that begins waits for targets that do not answer, so that the main streams begin near
    what all have applied. Afterwards those are caught up when they come back."""
    open_s_max: float = 5.0
    """Seconds that a target may take to accept a stream; the next attempt twice as long, up to six times this."""
    progress_s_max: float = 30.0
    """Seconds after which a target hangs that has acknowledged nothing of a partition, nor of what it was sent before
    that. It is disconnected, and sent batches of half as many entries of that partition until it has applied one. One
    that goes on with what it was sent before is told as slow."""
    patience_s_max: float = 600.0
    """What `progress_s_max` grows to: four times what the target took lately, and double each time that it ended."""
    retry_s_min: float = 0.05
    """Seconds of the first pause after a stream has ended, or a target has refused an entry; each failure doubles it.
    Without jitter: one player comes to each target."""
    retry_s_max: float = 10.0
    """Seconds of the longest pause, to which `retry_s_min` doubles."""
    steady_s: float = 60.0
    """Seconds after which a stream makes the next pause the first again: longer than `progress_s_max`, as what hangs on
    each stream from the beginning is not steady."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_whole = isinstance(each.default, int)
            is_number = isinstance(value, (int,) if is_whole else (int, float)) and not isinstance(value, bool)
            if not is_number or not (value > 0 or (value == 0 and each.name in _MAY_BE_ZERO)):
                wanted = "a whole number" if is_whole else "a number of seconds"
                least = "from 0 on" if each.name in _MAY_BE_ZERO else "above 0"
                raise BadOption(f"PlayerSettings.{each.name}={value!r}: {wanted} {least}")
        if self.retry_s_min > self.retry_s_max:
            raise BadOption("PlayerSettings: retry_s_min may not be above retry_s_max")

"""The settings of an active player, with the reasons for the defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields

from polonaise.errors import BadOption

_MAY_BE_ZERO = ("join_transactions", "start_patience_s")


@dataclass(frozen=True, slots=True)
class PlayerSettings:
    """The bounds of one active player, in entries, transactions, bytes and seconds."""

    batch_entries_max: int = 512
    """The most entries in one batch."""
    batch_bytes_max: int = 256 * 1024
    """No further entry joins a batch that it would bring above this many bytes; a larger entry goes alone."""
    window_bytes: int = 4 * 1024 * 1024
    """No further batch is sent to a target while this many bytes sent to it are not acknowledged."""
    partition_window_bytes: int = 512 * 1024
    """No further batch of a partition is sent to a target while this many bytes of it are not acknowledged: one that a
    target is slow with leaves room for others."""
    queue_entries_max: int = 20_000
    """The most entries of the main stream that wait for one target, of all partitions; then those of the partition
    that brings the next one are dropped, and read from the log again when the target has caught up so far."""
    queue_bytes_max: int = 16 * 1024 * 1024
    """The most bytes of the main stream that wait for one target, of all partitions, likewise."""
    recovery_bytes_max: int = 512 * 1024
    """No further read is begun for a target that catches up while this many bytes that were read for it in the
    partition wait to be sent."""
    join_transactions: int = 1_000
    """A target that catches up gets the main stream again once no more transactions than this lie between; and the
    main stream begins at most so far before the last of what any target has applied."""
    dummy_transactions: int = 10_000
    """A target that got nothing of this many transactions is sent a dummy, so that after a restart the player does
    not have to read them for it again."""
    dummy_s: float = 60.0
    """The interval, in seconds, at which each target that lacks nothing but keeps an older id is sent a dummy. Without
    that, the log could be trimmed above the id of an idle target."""
    start_patience_s: float = 0.5
    """How long a player that begins waits for targets that do not answer, so that the main streams begin near what all
    have applied. After that they begin without those, which are caught up when they come back."""
    open_s_max: float = 5.0
    """The longest that a target may take to accept a stream; then the attempt is given up, and the next one may take
    twice as long, up to six times this."""
    progress_s_max: float = 30.0
    """A target that is connected and for this long acknowledges nothing of a partition of which entries were sent, nor
    of what it was sent before them, is taken to hang. It is disconnected, and sent batches of half as many entries of
    that partition until it has applied one. One that goes on with what it was sent before is told as slow."""
    patience_s_max: float = 600.0
    """What this time grows to at most: it is kept at four times what the target has taken lately, and doubled each time
    that it has ended."""
    retry_s_min: float = 0.05
    """The first pause after a stream to a target has ended, or a target has refused an entry; each failure doubles
    it. Without jitter: one player comes to each target."""
    retry_s_max: float = 10.0
    """The longest of these pauses."""
    steady_s: float = 60.0
    """A stream that lasted this long makes the next pause the first again. Longer than `progress_s_max`: what hangs on
    each stream from the beginning is no steady target."""

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

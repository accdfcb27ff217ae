"""The census of faults: counts the faults that took effect in a schedule, and not those that were asked for.

A fault counts only if it had an effect: a partition if it held back a byte or a connect, a torn write if the disk
differs from the whole write. A schedule whose census is empty has shown nothing.
"""

from __future__ import annotations

from typing import Final

FAULTS: Final = (
    "crash", "power_loss", "torn_write", "bit_flip", "lost_directory_entry", "lost_write", "full_disk",
    "failed_sync", "failed_append", "failed_read", "failed_write", "partition_one_way", "partition_two_way",
    "delay", "reset", "pause", "clock_jump", "corrupt_file", "stale_disk", "wiped_disk", "byte_flip", "store_away",
    "store_unmounted", "damaged_object", "black_hole",
    # What one part of a schedule did: the nemesis, clean stops, the archive, an owner with two connections, moves of
    # storage nodes, trials, the disaster, changes of members, and requirements.
    "majority_failed_append", "stop", "server_stop", "trim", "fragment_read", "fragment_mended",
    "second_connection", "storage_moved", "wrong_address", "rot_at_rest", "removed_at_rest", "mislaid",
    "disk_in_turn", "lease", "session_run_out", "owner_cut_off", "hindrance_told", "directory_refused",
    "owner_replaced", "planned", "cut_off_from_storage", "majority_lost", "slow_disks", "needed_copy", "disaster",
    "overtaken", "gone_back", "copy_added", "copy_removed", "copy_emptied", "copy_empty_already", "copy_kept",
    "change_cancelled", "members_changed", "requirement_changed",
    # Delivery: players that were told that another one is active; looks at which health had to say what hinders a
    # target, and did; targets that were moved to an empty place.
    "player_replaced", "held_target_told", "target_moved",
    # Leases that clients had, and those that were lost because they could not be renewed.
    "lease_held", "lease_lost",
    # Resets of the head: carried out, with ids that were given up, withdrawn because the end of the log could be proved
    # after all; replicas that came back with what they held, faults meanwhile, and clients that were told to be ahead.
    "head_reset", "reset_gave_up", "reset_withdrawn", "reset_returned", "reset_raced", "client_ahead",
    # On the way to the coordinator: a request that was refused; one that did not reach it; a change that was made, but
    # whose caller was told only that no answer came; a request that arrived after its caller was gone.
    "coordinator_unavailable", "coordinator_unreachable", "coordinator_lost_result", "coordinator_orphaned",
)  # fmt: skip


class FaultCounts(dict[str, int]):
    """Counts of how often each class of fault took effect."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(FAULTS, 0))

    def count(self, name: str, times: int = 1) -> None:
        """Count faults of the class `name`. Raises `KeyError` if that is not in `FAULTS`."""
        self[name] += times

    def injected(self) -> dict[str, int]:
        """Return the counts of the classes that occurred, in the order of `FAULTS`."""
        return {name: count for name, count in self.items() if count}

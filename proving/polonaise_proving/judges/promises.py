"""Which judges look at which promise: the table of promises in `docs/architecture.md`, to be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from polonaise_proving.judges import checkers, flatness, histories, moments, partitions, rows
from polonaise_proving.judges.archivecheck import ArchiveCheck, check_fragments
from polonaise_proving.judges.checkers import CommitTimes
from polonaise_proving.judges.clients import AssignmentCheck, ClientsJudge
from polonaise_proving.judges.deliverycheck import DeliveryCheck
from polonaise_proving.judges.headresetcheck import HeadResetCheck
from polonaise_proving.judges.moments import OwnershipCheck
from polonaise_proving.judges.told import untold

JUDGES: Final[dict[str, tuple[Callable[..., Any], ...]]] = {
    "P1 durability": (
        partitions.durability,
        checkers.check_replicas,
        moments.quorum_holds,
        moments.needed_copies,
        moments.copies_hold,
        moments.left_in_sync,
        moments.members_as_asked,
        moments.acknowledged_is_held,
        moments.joined_where_it_ends,
        ArchiveCheck,
    ),
    "P2 agreement": (
        partitions.agreement,
        partitions.order,
        checkers.answers,
        checkers.listings,
        ClientsJudge,
        checkers.check_replicas,
        moments.fenced_out,
        histories.replicas,
        rows.judge_figures,
    ),
    "P3 order and density": (
        partitions.order,
        checkers.floors,
        checkers.left_out_is_own,
        ClientsJudge,
        CommitTimes,
    ),
    "P4 no dirty read": (partitions.no_dirty_read, checkers.answers, rows.judge_figures),
    "P5 serializability": (
        partitions.serializability,
        checkers.evidence,
        checkers.counters,
    ),
    "P6 fate": (
        partitions.fates,
        checkers.written,
        checkers.reasons,
        checkers.producers,
        ClientsJudge,
        moments.fates_told,
        moments.ahead_appends_nothing,
        histories.one_answer,
    ),
    "P7 exactly-once views": (histories.exactly_once, rows.mistakes),
    "P8 exactly-once delivery": (DeliveryCheck, rows.mistakes, rows.judge),
    "P9 all or nothing": (partitions.fates, rows.judge_figures),
    "P10 corruption": (
        partitions.fates,
        checkers.written,
        checkers.check_replicas,
        check_fragments,
        histories.readable,
        histories.archive,
        rows.judge_files,
    ),
    "P11 availability": (
        OwnershipCheck,
        AssignmentCheck,
        moments.planned_fails_nothing,
        moments.owned_as_before,
        moments.moved_once,
        moments.all_closed,
        flatness.courses,
    ),
    "P12 hostile input": (),
    "P13 fail-safe": (
        OwnershipCheck,
        HeadResetCheck,
        moments.nothing_accepted,
        moments.loss_is_told,
        moments.loss_is_counted_no_more,
        moments.refused_is_left,
        untold,
    ),
    "leases": (moments.one_holder,),
}
"""The judges of each promise, and of leases (`docs/leases.md`).

What no record shows is held by tests alone: no bytes crash a node (`tests/cluster/test_hostile.py`), and, in a
schedule, that everything is done in bounded time.
"""

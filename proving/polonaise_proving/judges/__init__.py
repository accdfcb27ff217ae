"""Judges: compare what is on record with what was promised, and know nothing of how a cluster keeps its promises.

`checkers` compares a simulated log at the end of a schedule with what clients were told, and `histories` the log of
real processes, promise by promise. `deliverycheck` and `deliveries` judge what targets have applied, `headresetcheck`
what a reset of the head has left, `ownershipcheck` who owns what, `committimes` how near to the true time commit times
are, `archivecheck` what is archived and trimmed, `moments` what was true at one moment, `told` what a cluster's status
says of faults, `rows` what Spark has copied, `flatness` whether processes grow. None of them knows on which stage a
scenario runs.

A new check is one function beside the others, and an entry of `promises`, which says who judges which promise of
`docs/architecture.md` (P1, P2, …).
"""

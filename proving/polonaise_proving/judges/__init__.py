"""Judges: compare what is on record with what was promised, and know nothing of how a cluster keeps its promises.

`checkers` compares a log at the end of a schedule with what clients were told, promise by promise. `deliverycheck`
judges what targets have applied, `headresetcheck` what a reset of the head has left, `ownershipcheck` who owns what,
`committimes` how near to the true time commit times are, `archivecheck` what is archived and trimmed. None of them
knows on which stage a scenario runs. Those of the smoke test are in `smoke/`. A new check is one function beside the
others; the promises (P1, P2, …) are those of `docs/architecture.md`.
"""

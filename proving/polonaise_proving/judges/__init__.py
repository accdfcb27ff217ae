"""Judges: compare what is on record with what was promised, and know nothing of how a cluster keeps its promises.

`partitions` compares what the log holds in the end with what clients were told and given, promise by promise, whichever
stage they ran on; `checkers` and `histories` look at what only a schedule, or only real processes, have on record.
`clients` looks at what clients of a schedule are told as they are told it. `deliverycheck` judges what targets have
applied, `headresetcheck` what a reset of the head has left, `archivecheck` what is archived and trimmed, `moments` what
was true at one moment, such as who owned what, `told` what a cluster's status says of faults, `rows` what real targets
have applied and Spark has copied, `flatness` whether processes grow. None of them knows on which stage a scenario runs.

A new check is one function beside the others, and an entry of `promises`, which says who judges which promise of
`docs/architecture.md` (P1, P2, …).
"""

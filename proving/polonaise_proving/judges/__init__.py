"""Judges: compare what is on record with what was promised, and know nothing of how a cluster keeps its promises.

`clients` looks at what clients of a schedule are told as they are told it, `checkers` compares the log with that at the
end, and `histories` does so for real processes, promise by promise. `deliverycheck` judges what targets have applied,
`headresetcheck` what a reset of the head has left, `archivecheck` what is archived and trimmed, `moments` what was true
at one moment, such as who owned what, `told` what a cluster's status says of faults, `rows` what real targets have
applied and Spark has copied, `flatness` whether processes grow. None of them knows on which stage a scenario runs.

A new check is one function beside the others, and an entry of `promises`, which says who judges which promise of
`docs/architecture.md` (P1, P2, …).
"""

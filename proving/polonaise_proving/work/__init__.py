"""Work: what clients, targets and operators do with a log while a scenario breaks what is below them.

An `application` is a client's memory, which outlives its process; `workload` has the steps that it takes, `rarework`
those that few seeds take. Others beside it: `waiting_client`, `leaseholding`, `archivist` and `archiving`,
`simulatedtarget`. A new step is one function beside the others. Work notes what it asked and was told in the `record`,
and judges nothing. The client of the smoke test is in `smoke/`, as its parts in other rooms are.
"""

"""Work: what clients, targets and operators do with a log while a scenario breaks what is below them.

As processes: `bankclient` moves money, `soakclient` does all that an application may (and `leaks`, if it is asked to),
`deliverywriter` writes what is sent to a `deliverytarget`. In the simulated machine an `application` is a client's
memory, which outlives its process; `workload` has the steps that it takes; others beside it: `leaseholding`,
`archiving`, `simulatedtarget`. A new step is one function beside the others. Work notes what it asked and was told in
the `record`, and judges nothing.
"""

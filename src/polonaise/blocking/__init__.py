"""The blocking face: the log for threads. Its methods are those of `polonaise.Log`; they wait instead of being awaited.

::

    with polonaise.blocking.connect("file:./bank/coordinator", view=balances) as log:
        receipt = log.run(withdraw, 1, 30, partition=0, timeout=10)
        receipt.applied()

One background thread per log does the work; any number of threads may use the log at the same time. Which thread runs
the application's code:

- The context of `run` and `once` runs in the thread that called them, so it may use what belongs to that thread, and
  may wait.
- A **view** is called in the background thread; so are the context of `submit`, the partitioner and `wants`. While
  they run, nothing else goes on: they must not wait for long, and can't wait for the log itself. They may use methods
  that do not wait, such as `Log.append`, `Log.applied` and `Log.decode`; `Receipt.applied` waits, as does
  `Receipt.result` of a receipt that is not settled, and they raise `wrong_thread` there. Only `apply` and `apply_many`
  of a `SqlView` run in threads of the view's.
- The **handler** of a group of workers runs in threads of the group, one for each partition that is being worked on.
- The **serializer** is called where the data is: in the thread of the context that appends it, in the thread that calls
  `decode`, and for `Log.append` and producers in the background thread; so several threads may call it at once.

After a fork the child must open a log of its own (`Forked`). A program that ends without `close` just ends; appends
that it did not wait for may be in the log or not.

Begin reading with `background`, the thread and its event loop, then `contexts`, and the lower half of `log`: what
stands above is made from the asynchronous classes (`make blocking`). What is exported here is public.
"""

from polonaise.blocking.connecting import connect
from polonaise.blocking.lease import Lease
from polonaise.blocking.log import Log
from polonaise.blocking.producer import Producer
from polonaise.blocking.reading import Reading
from polonaise.blocking.receipt import Outcome, Receipt, Submission
from polonaise.blocking.workergroup import WorkerGroup

__all__ = ["Lease", "Log", "Outcome", "Producer", "Reading", "Receipt", "Submission", "WorkerGroup", "connect"]

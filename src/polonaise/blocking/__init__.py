"""The log for threads: the methods of `polonaise.Log`, which wait where those are awaited.

::

    with polonaise.blocking.connect("file:./bank/coordinator", view=balances) as log:
        receipt = log.run(withdraw, 1, 30, partition=0, timeout=10)
        receipt.applied()

One background thread per log does the work; any number of threads may use the log at the same time. Who runs where:

- The context of `run` runs in the thread that called `run`, so that it may use what belongs to that thread, and wait.
- A **view** is called in the background thread, with plain methods; so are the context of `submit`, the serializer and
  the partitioner. While they run nothing else goes on: they must not wait for long, and can't wait for the log itself
  (`WrongThread`). What does not wait (`append`, `applied`, `decode`, …) they may use.

After a fork the child must open a log of its own (`Forked`). A program that ends without `close` just ends; what it had
appended without waiting for it may be in the log or not.
"""

from polonaise.blocking.connecting import connect
from polonaise.blocking.log import Log
from polonaise.blocking.producer import Producer
from polonaise.blocking.reading import Reading
from polonaise.blocking.receipt import Outcome, Receipt, Submission

__all__ = ["Log", "Outcome", "Producer", "Reading", "Receipt", "Submission", "connect"]

"""`make kill-test`: processes that share a log are killed with -9, over and over, those that serve it included.

`client` is such a process: it appends, runs contexts, keeps the view that all share (`ledger`), and writes down before
and after each step what it asked and what it was told (`journal`). `campaign` kills and restarts them; `verdict`
compares what they were told with what is in the log and in the view.
"""

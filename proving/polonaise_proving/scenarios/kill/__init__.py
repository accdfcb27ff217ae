"""`make kill-test`: processes that share a log are killed with -9, over and over, those that serve it included.

`campaign` starts clients of a bank with one view for all of them, kills and restarts them, and has `judges.histories`
compare what they were told with what is in the log and in the view.
"""

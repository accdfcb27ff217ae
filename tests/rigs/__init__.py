"""What several tests stand on: makers of batches, logs and clusters, fakes, processes, and how to wait.

One module per subject; `waiting` is the only one that sleeps. A test imports from here and from no other test's folder.
"""

"""Tools that several tests share: makers of batches, logs and clusters, fakes, processes, and waiting.

One module per subject; `waiting` is the only one that sleeps. A test imports from here and from no other test's folder.
"""

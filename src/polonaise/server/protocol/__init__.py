"""What the owner of a partition decides: locks, order, commit, session start. Plain objects without clock or I/O."""

"""What a storage node decides: which session it obeys, and what it may say. Plain objects without clock or I/O."""

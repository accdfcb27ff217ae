"""Polonaise: a distributed write-ahead log for Python."""

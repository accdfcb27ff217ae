"""The client's decisions: fates of appends, continuity of a feed, what goes into a frame, what to try again.

Plain synchronous objects: no clock, no network, no randomness of their own. The rooms around them do what they say.
"""

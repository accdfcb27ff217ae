"""The commands that this package adds to `polonaise`, by the entry points of the group `polonaise.commands`."""

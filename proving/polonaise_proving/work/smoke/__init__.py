"""The work of the smoke test: `client` is the program of one client process."""

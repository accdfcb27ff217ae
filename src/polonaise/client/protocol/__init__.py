"""The client's decisions as plain synchronous objects: no clock, no network, no randomness, no asyncio.

Begin with `outstanding`, which decides the fate of every append, and `outcomes`, which decides what a failed one leads
to. `draft`, `group` and `locks` lead from an application's transaction to what `outstanding` packs into frames.
`subscription` follows a feed through its mounts; `turns` orders contexts that want the same locks.
"""

"""The client's decisions as plain synchronous objects: no clock, no network, no randomness, no asyncio.

Begin with `outstanding`, which decides the fate of every append, and `outcomes`, which decides what a failed one leads
to. `draft`, `group`, `locks` and `packing` lead from an application's transaction to a frame; `arguments` checks what
the application passed. `subscription` and `continuity` follow a feed through its mounts; `ahead` divides a read into
requests. `turns` orders contexts that want the same locks. `window` and `backoff` bound what is sent and how often;
`oncekeys` is the record of a key of `log.once`.

The modules of the folder above carry out what is decided here. Tests and the model play these objects directly.
"""

"""The decisions of the source and the sink, without clock or I/O. Begin with `sinkprogress`: exactly-once rests on it.

The layouts of blocks, plans and the register outlive a process. Blocks and plans begin with a version number: another
layout takes another number. The register has none, so another layout of it takes another key.
"""

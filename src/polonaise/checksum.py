"""CRC-32 (that of zlib and Parquet), computed by the processor's own instructions where ISA-L is installed.

Every byte of a log is summed by each party that writes it, reads it or takes it from a peer: with zlib that is a good
part of all that they do, with ISA-L hardly any. The sums are the same.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a platform for which there is no wheel
    from zlib import crc32

__all__ = ["crc32"]

"""CRC-32 (that of zlib and Parquet), computed by the processor's own instructions where ISA-L is installed.

With zlib the sums would be a good part of all that writers, readers and peers do with a log.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:  # a platform for which there is no wheel
    from zlib import crc32

__all__ = ["crc32"]

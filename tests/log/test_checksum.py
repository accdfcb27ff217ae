"""The sums of the log are those of zlib, whoever computes them."""

from __future__ import annotations

import os
import zlib
from importlib.util import find_spec

import pytest

from polonaise.checksum import crc32
from rigs.programs import output_of, run_python


@pytest.mark.parametrize("size", [0, 1, 3, 8, 15, 16, 64, 100, 255, 4_096, 100_001])
def test_checksums_are_those_of_zlib(size: int) -> None:
    data = os.urandom(size)
    for start in (0, 1, 0xFFFF_FFFF):
        assert crc32(data, start) == zlib.crc32(data, start)
    assert crc32(memoryview(data)[size // 3 :]) == zlib.crc32(data[size // 3 :])
    assert crc32(bytearray(data)) == zlib.crc32(data)


def test_a_checksum_continues_one_that_was_computed_before() -> None:
    assert crc32(b"second", crc32(b"first")) == zlib.crc32(b"firstsecond")


@pytest.mark.parametrize("missing", [False, True])
def test_without_isal_zlib_computes_checksums(missing: bool) -> None:
    hidden = "sys.modules['isal'] = None" if missing else "pass"
    said = run_python("-c", f"import sys; {hidden}; from polonaise.checksum import crc32; print(crc32.__module__)")
    there = find_spec("isal") is not None and not missing
    assert output_of(said).strip() == ("isal.isal_zlib" if there else "zlib")

"""Which addresses name every interface of a machine, and so none that a peer could connect to."""

from __future__ import annotations

import pytest

from polonaise.host.address import is_every_interface, parse_address


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "0x0.0", "[::]", "[0:0::0]", "[::ffff:0.0.0.0]", "[::%eth0]"])
def test_every_interface(host: str) -> None:
    assert is_every_interface(parse_address(f"{host}:7000"))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.0", "[::1]", "[fe80::1%eth0]", "m1", "0a.example.com", "x"])
def test_one_interface(host: str) -> None:
    assert not is_every_interface(parse_address(f"{host}:0"))


def test_a_socket_in_the_file_system_is_one_place() -> None:
    assert not is_every_interface(parse_address("unix:/0.0.0.0"))

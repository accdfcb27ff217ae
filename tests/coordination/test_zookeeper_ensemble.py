"""Each server of an ensemble is asked by itself: one that is gone, hangs or serves nobody is told of by its address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from polonaise.coordination.backend import NotAsked
from polonaise.coordination.zookeeperensemble import ensemble_troubles
from polonaise.host.tls import TlsFiles, TlsIdentity
from rigs.descriptors import no_descriptors_left
from rigs.tls import Authority

SERVES = b"Zookeeper version: 3.9\nMode: follower\nNode count: 5\n"


@asynccontextmanager
async def server_that_says(answer: bytes | None) -> AsyncIterator[str]:
    """A server that answers this and closes the connection; None: it accepts, and never says a word."""
    end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        if answer is None:
            await end.wait()
        else:
            writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        end.set()
        listening.close()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (SERVES, ""),
        (b"srvr is not executed because it is not in the whitelist.\n", ""),
        (b"This ZooKeeper instance is not currently serving requests\n", "has not joined a majority"),
        (b"", "without an answer"),
        (None, "did not answer within 0.3 s"),
    ],
    ids=["serves", "may not tell", "no majority", "closes", "hangs"],
)
async def test_a_server_is_told_of_by_what_it_answers(answer: bytes | None, told: str) -> None:
    async with server_that_says(answer) as address, server_that_says(SERVES) as well:
        troubles = await ensemble_troubles(f"{address},{well}", None, 0.3)
        assert list(troubles) == [address, well]
        assert troubles[well] == ""
        assert (told in troubles[address]) if told else not troubles[address]


async def test_a_server_with_tls_only_is_no_server_that_hangs(tmp_path: Path) -> None:
    context = TlsIdentity(Authority(tmp_path).node()).accepting()
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        (told,) = (await ensemble_troubles(f"{host}:{port}", None, 2.0)).values()
    assert "has TLS only" in told
    assert "hangs" not in told


async def test_a_server_that_is_gone_is_told_of() -> None:
    async with server_that_says(SERVES) as address:
        pass
    assert "can't be reached" in (await ensemble_troubles(address, None, 5.0))[address]
    assert not isinstance((await ensemble_troubles(address, None, 5.0))[address], NotAsked)


async def test_what_keeps_this_process_from_asking_says_nothing_of_a_server(tmp_path: Path) -> None:
    async with server_that_says(SERVES) as address:
        files = TlsFiles(*(str(tmp_path / name) for name in ("ca.pem", "certificate.pem", "key.pem")))
        no_certificate = (await ensemble_troubles(address, files, 5.0))[address]
        with no_descriptors_left():
            no_descriptor = (await ensemble_troubles(address, None, 5.0))[address]
    for why, word in ((no_certificate, "certificate_unusable"), (no_descriptor, "raise its limit of open files")):
        assert isinstance(why, NotAsked)
        assert "can't be asked" in why
        assert word in why

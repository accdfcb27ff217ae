"""How losses are measured, by what the kernel counts."""

from __future__ import annotations

import asyncio
import socket

import pytest

from polonaise.host.tcpcounts import segment_counts
from polonaise.link.protocol.measuring import LATELY_S, LossMeasuring


def test_the_share_that_was_sent_again_lately_is_told() -> None:
    losses = LossMeasuring()
    assert losses.resent is None, "nobody has counted yet"
    losses.seen(0.0, 1_000, 500)  # of before: nobody knows when
    assert losses.resent == 0.0
    losses.seen(1.0, 1_100, 530)
    assert losses.resent == 0.3


def test_losses_of_long_ago_are_told_no_more() -> None:
    losses = LossMeasuring()
    for second, resent in enumerate([0, 10, 10, 10, 10, 10, 10, 10]):
        losses.seen(float(second), 100 * second, resent)
        assert (losses.resent > 0) == (1 <= second <= LATELY_S)


def test_a_single_loss_is_none() -> None:
    losses = LossMeasuring()
    losses.seen(0.0, 0, 0)
    losses.seen(1.0, 4, 2)
    assert losses.resent == 0.0


def test_all_sent_again_is_not_more_than_all() -> None:
    losses = LossMeasuring()
    losses.seen(0.0, 10, 0)
    losses.seen(1.0, 10, 5)  # such as what opens a connection, which carries no data
    assert losses.resent == 1.0


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not tell")
async def test_the_kernel_counts_what_was_sent_on_a_connection() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for _ in range(5):
            writer.write(b"x")
            await reader.readexactly(1)
        counts = segment_counts(writer.transport)
        assert counts is not None
        assert counts.sent >= 5
        assert counts.resent < counts.sent
        writer.close()
        await writer.wait_closed()


def test_without_a_connection_nothing_is_counted() -> None:
    assert segment_counts(None) is None

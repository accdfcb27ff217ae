"""What a client of the smoke test makes of an append that gets no answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from polonaise_proving.record.failures import SmokeFailed
from polonaise_proving.stages.hosts.clientjob import ClientJob
from polonaise_proving.work import bankclient as client_module
from polonaise_proving.work.bankclient import Client


async def test_an_append_without_an_answer_fails_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_LAST_S", 0.01)
    job = ClientJob("polonaise://localhost", str(tmp_path), "sqlite://", "client-1", 1, 1, 1.0)
    nothing: Any = None
    client = Client(nothing, nothing, job)
    with pytest.raises(SmokeFailed, match="no answer"):
        await client._fate("client-1.1/1", 0, asyncio.get_running_loop().create_future())
    assert job.journal.read_text() == ""

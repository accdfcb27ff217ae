"""Words for what a request asks for, for messages to people, who do not know the names of messages."""

from __future__ import annotations

import re
from typing import Final

from polonaise.wire.codec import Message

_ASKED: Final = {
    "HighWaterMark": "what is committed",
    "Health": "how it is",
    "Read": "batches",
    "ReadBatches": "batches",
    "ReadHistory": "batches",
    "Fetch": "the bodies of transactions",
    "GetRegister": "a register",
    "GetRegisters": "registers",
    "ListRegisters": "registers",
    "TrimLog": "a trim",
    "Trim": "a trim",
    "HoldLeases": "leases",
    "ReleaseLeases": "the end of leases",
    "ProveCopies": "a proof of copies",
    "DescribeCluster": "the cluster's description",
    "GetUniqueId": "an id",
    "GetAssignment": "the assignment",
    "DescribeTopic": "a topic",
    "ListTopics": "the topics",
    "LastSessionInfo": "what its copy holds",
    "FindBatch": "where a batch ends",
    "TellNoted": "what it has noted",
}


def request_words(request: Message) -> str:
    """Return what a request asks for, as a phrase."""
    name = type(request).__name__
    return _ASKED.get(name) or f"'{re.sub('(?<!^)(?=[A-Z])', ' ', name).lower()}'"

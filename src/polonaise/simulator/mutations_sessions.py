"""Mutations of how sessions end, and of what is told and kept from one to the next."""

from __future__ import annotations

from typing import Final

from polonaise.simulator.mutation import Mutation

_OWNER: Final = "polonaise.server.protocol.owner"

SESSION_MUTATIONS: Final[dict[str, Mutation]] = {
    "forming-batch-told-lost": Mutation(
        _OWNER,
        "        self._inbox.put_back(never_sent)\n",
        "        for entry in never_sent:\n"
        "            if hasattr(entry, 'appends'):\n"
        "                self.feeds.refuse(entry.mount, entry.appends, self.committed, FailureReason.SESSION_ENDED)\n",
        "P11: appends fail because their session has ended as planned before it had sent them",
    ),
}

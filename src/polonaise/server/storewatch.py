"""The watch of the fragment store: a server learns soon that its store is away, and not when it needs it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from polonaise.errors import PolonaiseError, StoreUnavailable
from polonaise.server.archivedhistory import ArchivedHistory

_log = logging.getLogger(__name__)
_ANSWER_S: Final = 5.0
"""The longest that a look may take: less than a server that has just started lives until it is given partitions."""


class StoreWatch:
    """Looks at the mark of the store every now and then: one small read, however large the store is."""

    def __init__(self, history: ArchivedHistory, look_s: float) -> None:
        self._history = history
        self._look_s = look_s
        self.trouble: str | None = None
        """Empty if the store can be used, None before the first look."""

    async def run(self) -> None:
        while True:
            trouble = await self._look()
            if trouble and not self.trouble:
                _log.warning("the fragment store can't be used: %s", trouble)
            elif self.trouble and not trouble:
                _log.warning("the fragment store %s can be used again", self._history)
            self.trouble = trouble
            await asyncio.sleep(self._look_s)

    async def _look(self) -> str:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._history.look()
        except TimeoutError:
            text = f"{self._history} did not answer within {_ANSWER_S:g} s: see that it can be reached"
            return str(StoreUnavailable(text))
        except PolonaiseError as error:
            return str(error)
        return ""

"""The answers to what clients ask of an owner: what each question is told once it is proved, or when it can't be."""

from __future__ import annotations

from collections.abc import Callable

from polonaise.errors import PolonaiseError
from polonaise.server.protocol.committedregisters import CommittedRegisters
from polonaise.server.protocol.effects import Answer, EffectsInOrder, RefuseRequest
from polonaise.server.protocol.feeds import Feeds
from polonaise.server.protocol.inbox import Inbox
from polonaise.server.protocol.mounts import Mount
from polonaise.server.protocol.questions import (
    FlushQuestion,
    MarkQuestion,
    MountQuestion,
    Pulse,
    Question,
    RegistersQuestion,
)
from polonaise.server.protocol.settings import OwnerSettings
from polonaise.terms import NO_TRANSACTION, Generation, MountState, TransactionId
from polonaise.wire.messages import Flushed, HighWaterMarkIs, Mounted


class Answers:
    """Answers questions. When one is proved, and so may be answered, is the owner's decision."""

    __slots__ = ("_feeds", "_generation", "_out", "_registers", "_settings", "unanswered")

    def __init__(
        self,
        generation: Generation,
        settings: OwnerSettings,
        feeds: Feeds,
        registers: CommittedRegisters,
        out: EffectsInOrder,
    ) -> None:
        self._generation = generation
        self._settings = settings
        self._feeds = feeds
        self._registers = registers
        self._out = out
        self.unanswered: list[Question] = []
        """Questions whose session ended before they were proved."""

    def take_unanswered(self) -> list[Question]:
        """The questions that an ended session has left; none are left here."""
        questions, self.unanswered = self.unanswered, []
        return questions

    def give(self, question: Question, committed: TransactionId) -> Mount | None:
        """Answer at once, or keep the answer with the mount that is returned until it was fed up to `committed`."""
        match question:
            case MountQuestion(_, request, mount, mark) if self._feeds.is_current(mount):
                if mark > committed:
                    self._feeds.end(mount)
                    self._mounted(mount, request, MountState.CLIENT_AHEAD, committed, f"the log ends at {committed}")
                    return None
                window = self._settings.append_window_bytes
                ready = Mounted(MountState.READY, self._generation, committed, window, reason="")
                mount.answer_after(committed, request, ready)
                return mount
            case FlushQuestion(_, request, mount) if self._feeds.is_current(mount):
                mount.answer_after(committed, request, Flushed(committed))
                return mount
            case MarkQuestion(_, request, connection):
                self._out.answer(Answer(connection, request, HighWaterMarkIs(self._generation, committed)))
            case RegistersQuestion(_, request, connection, asked):
                self._out.answer(Answer(connection, request, self._registers.answer(asked, committed)))
        return None

    def refuse(self, question: Question, error: PolonaiseError) -> None:
        """Say that the question was not answered in time, or can't be."""
        match question:
            case MountQuestion(_, request, mount, _):
                if self._feeds.is_current(mount):
                    self._feeds.end(mount)
                    self._mounted(mount, request, MountState.NOT_READY, NO_TRANSACTION, error.text)
            case FlushQuestion(_, request, mount):
                self._out.answer(RefuseRequest(mount.connection, request, error))
            case MarkQuestion(_, request, connection):
                self._out.answer(RefuseRequest(connection, request, error))
            case RegistersQuestion(_, request, connection, asked):
                self._registers.give_up(asked)
                self._out.answer(RefuseRequest(connection, request, error))
            case Pulse():
                pass

    def expire(self, inbox: Inbox, error: PolonaiseError, is_due: Callable[[Question], bool]) -> None:
        """Refuse the questions for which this holds, among those in the inbox too."""
        due = [question for question in self.unanswered if is_due(question)]
        if due:
            self.unanswered = [question for question in self.unanswered if not is_due(question)]
        for question in due + inbox.take_questions(is_due):
            self.refuse(question, error)

    def _mounted(self, mount: Mount, request: int, state: MountState, mark: TransactionId, reason: str) -> None:
        self._out.answer(Answer(mount.connection, request, Mounted(state, self._generation, mark, 0, reason=reason)))

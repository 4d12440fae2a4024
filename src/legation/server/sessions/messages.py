"""Messages to sessions: accepted messages, one turn after the other, and the prompts of clients of ACP.

INV-Q1  Messages are taken in the order in which they were accepted, each once; one that waits survives a restart.
INV-Q2  One worker for each session that has something to do; none for the others.
INV-M1  A message that was accepted is in the log as a prompt, or waits to be: never both, never neither.
INV-M2  A turn that a server's end cut off is ended in the log, with that reason, before the next server is reached; what its
        agent had asked is withdrawn, and the session says that it was cut until its next turn begins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from msgspec import UNSET
from msgspec.structs import replace

from legation.clock import Clock, new_id
from legation.errors import Conflict, Forbidden, InvalidParams, LegationError, PromptInFlight, RateLimited
from legation.server.inbox import TurnOutcome
from legation.server.sessions.agents import SessionAgents
from legation.server.sessions.record import (
    Begun,
    CutTurn,
    Details,
    FailedTurn,
    QueuedMessage,
    SessionRecord,
    SessionRecords,
    must_be_open,
)
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.tasks import TaskSet
from legation.wire import event_types
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import ContentBlock, ResourceLink, Text
from legation.wire.action import MAX_PATH
from legation.wire.api.sessions import Attachment
from legation.wire.event_types import CUT, PromptFinished, PromptStarted, SessionStatus

if TYPE_CHECKING:
    from legation.host.session import Session
    from legation.host.turn import CutWords, PromptResult, TurnEnd

MOST_REASON: Final = 2_000  # characters of why a turn failed: an agent may say anything
MOST_ATTACHED: Final = 100  # files to one message
MOST_QUEUED: Final = 64  # messages of one session that wait
MOST_QUEUED_SIZE: Final = 4 * 1024 * 1024  # characters of them
MOST_CONTEXT: Final = 64_000  # characters of a transcript that an agent is told: about 16,000 tokens
CONTEXT: Final = """\
This session goes on from an earlier one, which its agent can no longer open. What was said there, the last of it at the \
end; it is for you to know, and no new request:

<transcript>
{}
</transcript>
"""
WHY_CANCELLED: Final = "cancelled before the agent got it"
WHY_STOPPED: Final = "stopped: the server ended before the turn did"

_OF_TURNS: Final = frozenset(each.event_type() for each in (PromptStarted, PromptFinished))

logger = logging.getLogger("legation.sessions")


class MessageQueue:
    def __init__(
        self,
        records: SessionRecords,
        agents: SessionAgents,
        log: EventLog,
        clock: Clock,
        ended: Callable[[str, str, TurnOutcome], None],
    ) -> None:
        """`ended` is told of each turn that is over: its workspace, its session, and what it came to."""
        self._ended = ended
        self._records = records
        self._agents = agents
        self._log = log
        self._clock = clock
        self._closed = False
        self._workers = TaskSet("legation-session")

    def start(self) -> None:
        """Go on with what waited when the last server ended, of the sessions in memory."""
        for record in self._records:
            if record.details.queue and not record.ended:
                self._work_on(record)

    async def close(self) -> None:
        """Cancel the turns that run; what waits goes on waiting."""
        self._closed = True
        await self._workers.close()

    async def send(self, record: SessionRecord, message: QueuedMessage) -> asyncio.Future[int]:
        """Accept it: it is on the disk when this returns. What it returns resolves when its turn begins, to the last
        number that the log has by then: what is there now may still end, or a client of ACP come before."""
        must_be_open(record)
        waiting, begun = record.details.queue, record.details.begun
        unplayed = (*waiting, begun.message) if begun else waiting
        if message.id and message.id in [each.id for each in unplayed]:  # whoever was cut off sends it again
            raise Conflict(
                f"cannot take message {message.id}: there is one of that id, which waits or is played; give another id"
            )
        queue = (*waiting, message)
        if len(queue) > MOST_QUEUED or sum(each.size for each in queue) > MOST_QUEUED_SIZE:
            raise RateLimited(
                f"cannot take another message: {len(queue) - 1} wait for the running turn; send it when some are done",
                {"retryAfter": 1},
            )
        begins = record.begins[message.id] = asyncio.get_running_loop().create_future()
        try:
            await self._records.save(
                record, replace(record.details, queue=queue, updated_at=self._clock.now_ms())
            )
        except LegationError:  # who sent it is told so, and may send it again
            record.begins.pop(message.id, None)
            left = tuple(each for each in record.details.queue if each is not message)
            record.details = replace(record.details, queue=left)
            raise
        finally:
            self._work_on(record)
        return begins

    async def steer(self, record: SessionRecord, message: QueuedMessage) -> None:
        """Say it to the turn that runs, at once."""
        must_be_open(record)
        if record.session is None or not record.session.busy:
            raise Conflict(f"cannot steer session {record.id}: no turn runs; send it as a message")
        await record.session.steer(blocks_of(message))

    async def cancel(self, record: SessionRecord) -> None:
        """The turn that runs, or is about to; messages that wait follow it."""
        must_be_open(record)
        if record.session is not None and record.session.busy:
            await record.session.cancel()
        elif record.working is not None:
            record.cancelling = True

    async def stop(self, record: SessionRecord) -> None:
        """Begin nothing more of it."""
        if record.working is not None:
            record.working.cancel()
            await asyncio.wait({record.working})

    def drop(self, record: SessionRecord) -> None:
        """Drop what it was told and has not played; saved with the next that is."""
        record.begins.clear()
        record.details = replace(record.details, queue=(), begun=None)

    async def prompt(
        self, record: SessionRecord, session: Session, blocks: tuple[ContentBlock, ...]
    ) -> PromptResult:
        """A client of ACP has the word, now; `PromptInFlight` where another has it."""
        details = replace(record.details, updated_at=self._clock.now_ms())
        if not session.busy:  # else it will be refused
            details = replace(details, prompted=session.stream.head, cut=None, failed=None)
        await self._note(record, details)
        end = await session.talk.until_over(session.talk.begin(blocks))
        if record.details.prompted is not None and not session.busy:
            record.details = self._after(record.details, end)
            self._ended(record.workspace, record.id, _outcome(end))
            await self._note(record, replace(record.details, prompted=None))
        return end.told()

    def _after(self, details: Details, end: TurnEnd) -> Details:
        """Note how the turn ended, where it was cut off or failed."""
        error = end.result.error
        if end.cut is not None:
            return replace(details, cut=CutTurn(at=self._clock.now_ms(), reason=end.cut))
        if error is not None and _outcome(end) == "failed":
            return self._failed(details, error.message)
        return details

    def _failed(self, details: Details, why: str) -> Details:
        return replace(details, failed=FailedTurn(at=self._clock.now_ms(), reason=why[:MOST_REASON]))

    async def _note(self, record: SessionRecord, details: Details) -> None:
        try:
            await self._records.save(record, details)
        except LegationError as error:  # a failing disk keeps no prompt from its agent
            logger.warning("it is not on the disk that session %s was used: %s", record.id, error.code)

    def _work_on(self, record: SessionRecord) -> None:
        if record.working is None and not self._closed:
            record.working = self._workers.start(self._work(record))

    async def _work(self, record: SessionRecord) -> None:
        try:
            while record.details.queue and not record.ended:
                if record.session is not None and record.session.busy:
                    await record.session.talk.idle()  # a client of ACP has the word, and may close it
                else:
                    await self._next(record)
        except LegationError as error:
            logger.error("cannot go on with session %s: %s", record.id, error.message)
        except Exception:
            logger.exception("cannot go on with session %s: a defect", record.id)
        finally:
            record.working = None
            if record.status == "disconnected" and not self._closed:
                self._agents.forget_soon(record)

    async def _next(self, record: SessionRecord) -> None:
        message, *rest = record.details.queue
        begun = Begun(message=message, after=record.head)
        try:
            await self._records.save(
                record, replace(record.details, queue=tuple(rest), begun=begun, cut=None, failed=None)
            )
        except LegationError:  # the disk has it among those that wait, and there it stays
            record.details = _put_back(record.details, message)
            raise
        try:
            outcome = await self._turn(record, message)
            if outcome is None:
                after = _put_back(record.details, message)
            else:
                after = replace(record.details, begun=None)
                # Before it is saved: whoever is killed in between ends it once more at the next start.
                self._ended(record.workspace, record.id, outcome)
            await self._records.save(record, replace(after, updated_at=self._clock.now_ms()))
        finally:
            record.cancelling = record.played = False  # not before: whoever cancels until then means this one

    async def _turn(self, record: SessionRecord, message: QueuedMessage) -> TurnOutcome | None:
        """Play it; None: another has the word, and it must wait."""
        from legation.agents.modes import current_mode
        from legation.agents.rpc import AgentRefused
        from legation.server.sessions.options import left_in

        try:
            session = await self._agents.attach(record)
        except LegationError as error:
            logger.warning("session %s: %s", record.id, error.message)
            said = error.error.data if isinstance(error, AgentRefused) else UNSET
            return await self._tell_failed(record, message, error.message, said)
        blocks = blocks_of(message)
        if record.details.untold:  # before it is looked who has the word: nothing is awaited then
            blocks = (*await self._told_before(record), *blocks)
        if record.cancelling:
            return await self._tell_failed(record, message, WHY_CANCELLED)
        head, offers = record.head, session.offers
        try:
            turn = session.talk.begin(blocks, message=message.id or None)
        except PromptInFlight:
            return None
        except LegationError as error:  # its agent is gone again, and the log has nothing of it yet
            if session.ending:
                return "cancelled"
            return await self._tell_failed(record, message, error.message)
        self._tell_begun(record, message, head)
        record.played = True
        end = await session.talk.until_over(turn)
        if end.error is not None:
            logger.info("session %s: %s", record.id, end.error.message)
        elif end.result.error is None and record.details.untold:
            record.details = replace(record.details, untold=False)
        record.details = self._after(record.details, end)
        if session.offers is not offers and current_mode(session.offers) != current_mode(offers):
            record.details = left_in(record.details, session.offers)
        return _outcome(end)

    async def _told_before(self, record: SessionRecord) -> tuple[ContentBlock, ...]:
        """Return what was said in the session that this one continues, to stand before its first message."""
        from legation.host.resume import transcript_of

        stream = await self._log.find(record.details.continues or "", record.workspace)
        told = await transcript_of(stream, MOST_CONTEXT) if stream is not None else ""
        return (Text(text=CONTEXT.format(told)),) if told else ()  # it was deleted, or nothing was said in it

    def _tell_begun(self, record: SessionRecord, message: QueuedMessage, head: int) -> None:
        begins = record.begins.pop(message.id, None)
        if begins is not None and not begins.done():
            begins.set_result(head)

    async def _tell_failed(
        self, record: SessionRecord, message: QueuedMessage, why: str, said: object = UNSET
    ) -> TurnOutcome:
        """A turn that no agent has seen. Whoever has ended the session has dropped the message."""
        from legation.host.turn import unplayed_turn

        if record.ended:
            return "cancelled"
        stream = await self._log.stream(record.id, record.workspace)
        turn = new_id("trn", now_ms=self._clock.now_ms())
        error = RpcError(ErrorCode.INTERNAL_ERROR, why, said)
        payloads = unplayed_turn(turn, blocks_of(message), error, message.id or None)
        self._tell_begun(record, message, record.head)
        record.played = True
        await stream.append([event_types.draft(payload) for payload in payloads])
        record.stored_head = stream.head
        if why == WHY_CANCELLED:
            return "cancelled"
        record.details = self._failed(record.details, why)
        return "failed"

    # What a server that was killed left.

    async def recover(self) -> None:
        """A turn without its end is ended; a message that no agent has seen waits again. Of the sessions in memory."""
        for record in self._records:
            begun, prompted = record.details.begun, record.details.prompted
            if (begun is not None or prompted is not None) and not record.ended:
                await self._recover(record, await self._log.stream(record.id, record.workspace))

    async def _recover(self, record: SessionRecord, stream: Stream) -> None:
        from legation.host.resume import unfinished_events

        details, begun = record.details, record.details.begun
        heads = (begun.after if begun is not None else None, details.prompted)
        after = min(number for number in heads if number is not None)
        if ends := await unfinished_events(stream, after, cut_words("restarted")):
            status = SessionStatus(status="disconnected", reason=WHY_STOPPED)
            await stream.append([event_types.draft(payload) for payload in (*ends, status)])
        record.stored_head = stream.head
        cut, unplayed, error = None, begun, None
        outcome: TurnOutcome | None = None
        async for event in stream.subscribe(after, follow=False):
            match event_types.decode(event) if event.type in _OF_TURNS else None:
                case PromptStarted(message=message) if begun is not None and event.seq > begun.after:
                    if message == (begun.message.id or None):  # else a client of ACP has prompted it too
                        unplayed = None
                case PromptFinished(cut_by=why) as end:  # a server that was stopped says so in it, too
                    cut = CutTurn(at=event.at, reason=why) if why is not None else None
                    error = end.error
                    outcome = "cut" if why is not None else _outcome_of(end.stop_reason, error)
        queue = details.queue if unplayed is None else (unplayed.message, *details.queue)
        left = replace(details, begun=None, prompted=None, queue=queue, cut=cut or details.cut)
        if outcome == "failed" and error is not None:
            left = self._failed(left, error.message)
        if outcome is not None:  # it may have ended before anybody was told
            self._ended(record.workspace, record.id, outcome)
        await self._records.save(record, left)


def _outcome(end: TurnEnd) -> TurnOutcome:
    if end.cut is not None and not end.cancelled:
        return "cut"
    return "cancelled" if end.cancelled else _outcome_of(end.result.stop_reason, end.result.error)


def _outcome_of(stop_reason: str, error: RpcError | None) -> TurnOutcome:
    """Tell what a turn came to that its agent ended."""
    if error is not None:
        if error.data == CUT:
            return "cut"
        return "cancelled" if error.code == ErrorCode.REQUEST_CANCELLED else "failed"
    return "cancelled" if stop_reason == "cancelled" else "ended"


def cut_words(how: Literal["stopped", "restarted"]) -> CutWords:
    """Return the words for what ends with the server."""
    from legation.host.turn import CutWords  # late: a server without sessions loads no host

    return CutWords(
        f"cannot finish the turn: the server was {how} while it ran; see what was done, then send the next message",
        f"the server was {how} while it waited for an answer",
    )


def blocks_of(message: QueuedMessage) -> tuple[ContentBlock, ...]:
    return (Text(text=message.text), *message.links)


def _put_back(details: Details, message: QueuedMessage) -> Details:
    """Put it before those that wait."""
    return replace(details, queue=(message, *details.queue), begun=None)


def links_to(
    attachments: Sequence[Attachment], folders: Sequence[Path], forbidden: ForbiddenPlaces
) -> tuple[ResourceLink, ...]:
    """Make links of attachments, which are files in the session's folders; a relative path begins in the first. Blocks
    for as long as the disk does."""
    forbidden = forbidden.of_session(folders)
    if len(attachments) > MOST_ATTACHED:
        raise InvalidParams(f"cannot attach more than {MOST_ATTACHED} files; leave some out")
    return tuple(_link(number, each, folders, forbidden) for number, each in enumerate(attachments))


def _link(
    number: int, given: Attachment, folders: Sequence[Path], forbidden: ForbiddenPlaces
) -> ResourceLink:
    where = f"attachments[{number}]"
    if "\0" in given.path:
        raise _refusal(where, "its path holds the character NUL")
    if len(given.path) > MAX_PATH:
        raise _refusal(where, "its path is too long")
    path = Path(os.path.realpath(folders[0] / given.path))  # links lead where they lead
    if not any(path.is_relative_to(folder) for folder in folders):
        raise _refusal(where, "it is, or leads, outside the session's folders")
    try:
        forbidden.check_name(path.parts)
        status = path.stat()
        forbidden.check(status)
    except Forbidden:
        raise _refusal(where, "it is Legation's own or the system's") from None
    except (OSError, ValueError):
        raise _refusal(where, "there is no such file") from None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _refusal(where, "it is no file")
    return ResourceLink(
        name=given.filename or path.name,
        uri=f"file://{quote(os.fsencode(path))}",
        mime_type=given.mime or guess_type(path.name)[0],
        size=status.st_size if stat.S_ISREG(status.st_mode) else None,
    )


def _refusal(where: str, why: str) -> InvalidParams:
    return InvalidParams(
        f"cannot attach {where}: {why}; name a file in the session's folders",
        {"path": f"$.{where}.path", "type": "invalid_request"},
    )

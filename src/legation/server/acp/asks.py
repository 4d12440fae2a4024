"""Requests to a client, and what an agent asks and a person must answer, put to the client that is connected, while the inbox
has it too.

INV-Q1  The first answer counts, whoever gives it: a client's goes the same way as everybody's, with its own
        credential. Whoever was slower is told that nothing is asked any more, and what it answers is ignored.
INV-Q2  Policies come first: a client is never asked what a rule decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from legation.agents.messages import RpcMessage, read_error
from legation.clock import new_id
from legation.errors import LegationError, TransportClosed
from legation.server.acp.log import ConnectionLog
from legation.server.acp.messages import key_of, notification_line, request_line
from legation.server.sessions.clients import ClientAnswer
from legation.server.sessions.service import SessionService
from legation.wire import jsontext
from legation.wire.acp.methods import (
    CreateElicitationResponse,
    PermissionOption,
    RequestPermissionResponse,
    SelectedOutcome,
)
from legation.wire.acp.rpc import CANCEL_REQUEST, ClientMethod
from legation.wire.api.sessions import PermissionReplyWord
from legation.wire.event_types import PermissionAsked, QuestionAsked
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.acp.connection import AcpConnection

MOST_WAITING: Final = 1_000  # of one client; an agent's runaway questions must not fill our memory


class ClientCalls:
    def __init__(self, outlet: ConnectionLog) -> None:
        self._outlet = outlet
        self.waiting: dict[bytes, asyncio.Future[ClientAnswer]] = {}  # by the ids of what was asked

    async def ask(self, method: str, params: object) -> ClientAnswer:
        """Wait until it is answered; whoever gives up withdraws it, as ACP has it, and a late answer is ignored."""
        if len(self.waiting) >= MOST_WAITING:
            raise TransportClosed("cannot ask the client any more: it answers nothing; wait for that")
        request_id = new_id("req")
        key = jsontext.write(request_id)
        answer: asyncio.Future[ClientAnswer] = asyncio.get_running_loop().create_future()
        self.waiting[key] = answer
        self._outlet.say(request_line(request_id, method, params))
        try:
            return await answer
        except asyncio.CancelledError:
            self._outlet.say(notification_line(CANCEL_REQUEST, {"requestId": request_id}))
            raise
        finally:
            del self.waiting[key]

    def tell(self, method: str, params: object) -> None:
        """Ask, and not wait for the answer."""
        self._outlet.say(request_line(new_id("req"), method, params))

    def answered(self, message: RpcMessage, by: Principal) -> None:
        """Unknown ids are of what was withdrawn, or of an earlier life."""
        answer = self.waiting.get(key_of(message))
        if answer is not None and not answer.done():
            error = read_error(bytes(message.error)) if message.error else None
            answer.set_result(ClientAnswer(bytes(message.result), error, by))

    def give_up(self) -> None:
        """Withdraw what the client was asked, while there is somebody to say so to."""
        gone = TransportClosed("cannot ask the client: it has gone; ask again when it is back")
        for key, answer in self.waiting.items():
            if not answer.done():
                self._outlet.say(notification_line(CANCEL_REQUEST, {"requestId": msgspec.Raw(key)}))
                answer.set_exception(gone)


_WORDS: Final[Mapping[str, PermissionReplyWord]] = {
    "allow_once": "once",
    "allow_always": "always",
    "reject_once": "reject",
    "reject_always": "reject",
}

_T = TypeVar("_T")

logger = logging.getLogger("legation.acp")


class Asking:
    """Questions of one connection. A permission is put to the client when both have come: the agent's question in the
    log, and the word of the door that somebody must answer it."""

    def __init__(self, connection: AcpConnection, sessions: SessionService, waiting: Container[str]) -> None:
        self._connection = connection
        self._waiting = waiting  # permissions that somebody must answer
        self._sessions = sessions
        self._asked: dict[str, tuple[str, PermissionAsked]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._answering: set[str] = set()  # the client has answered: what follows is not cut off

    # From the log.

    def asked(self, session_id: str, ask: PermissionAsked) -> None:
        self._asked[ask.id] = session_id, ask
        if ask.id in self._waiting:
            self.wanted(ask.id)

    def ended(self, question_id: str) -> None:
        """Answered, by whomever."""
        self._asked.pop(question_id, None)
        task = self._running.pop(question_id, None)
        if task is not None and question_id not in self._answering:
            task.cancel()

    def question(self, session_id: str, asked: QuestionAsked) -> None:
        self._begin(asked.id, partial(self._ask_question, session_id, asked))

    # From the door.

    def wanted(self, permission_id: str) -> None:
        """Put it to the client: somebody must answer it. One that is not in the log yet is put when it is."""
        if self._connection.decides and (asked := self._asked.pop(permission_id, None)) is not None:
            self._begin(permission_id, partial(self._ask_permission, *asked))

    async def stop(self) -> None:
        running = list(self._running.values())
        for question in [*self._running, *self._asked]:
            self.ended(question)
        if running:
            await asyncio.wait(running)

    def _begin(self, question_id: str, ask: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await ask()
            except TransportClosed:
                pass  # the client has gone; the inbox has it
            except LegationError as error:  # somebody was faster, or it is not for this credential
                logger.info("an answer of a client to %s did not count: %s", question_id, error.code)
            finally:
                self._answering.discard(question_id)
                if self._running.get(question_id) is asyncio.current_task():
                    del self._running[question_id]

        if question_id in self._answering:
            return
        if (former := self._running.get(question_id)) is not None:  # a client that opens its session again
            former.cancel()
        self._running[question_id] = asyncio.create_task(run(), name=f"legation-asks-{question_id}")

    async def _ask_permission(self, session_id: str, ask: PermissionAsked) -> None:
        self._connection.note_asks()
        answered = await self._connection.calls.ask(
            ClientMethod.REQUEST_PERMISSION, permission_request(session_id, ask)
        )
        word = _word(answered, ask.options)
        if word is not None:  # else it is left to the inbox: this client does not decide
            self._answering.add(ask.id)
            record = await self._sessions.records.get(answered.by.workspace, session_id)
            await self._sessions.approvals.reply(answered.by, record, ask.id, word)

    async def _ask_question(self, session_id: str, asked: QuestionAsked) -> None:
        self._connection.note_asks()
        answered = await self._connection.calls.ask(
            ClientMethod.ELICITATION_CREATE, _elicitation(session_id, asked)
        )
        response = _read(answered, CreateElicitationResponse)
        if response is not None:
            self._answering.add(asked.id)
            record = await self._sessions.records.get(answered.by.workspace, session_id)
            self._sessions.approvals.reply_question(answered.by, record, asked.id, response)


def permission_request(session_id: str, ask: PermissionAsked) -> dict[str, object]:
    call: dict[str, object] = {
        "toolCallId": ask.tool_call_id or ask.id,
        "title": ask.title,
        "kind": ask.action.kind,
        "status": "pending",
        "rawInput": ask.action.params,
    }
    if ask.diffs:
        call["content"] = list(ask.diffs)
    if ask.action.paths:
        call["locations"] = [{"path": path} for path in ask.action.paths]
    about = {"permissionId": ask.id, "tool": ask.action.tool, "expiresAt": ask.expires_at}
    return {
        "sessionId": session_id,
        "toolCall": call,
        "options": list(ask.options),
        "_meta": {"legation": about},
    }


def _elicitation(session_id: str, asked: QuestionAsked) -> dict[str, object]:
    given = {
        "mode": asked.mode,
        "message": asked.message,
        "requestedSchema": asked.requested_schema,
        "elicitationId": asked.elicitation_id,
        "url": asked.url,
        "toolCallId": asked.tool_call_id,
    }
    return {"sessionId": session_id, **{name: value for name, value in given.items() if value is not None}}


def _word(answered: ClientAnswer, options: tuple[PermissionOption, ...]) -> PermissionReplyWord | None:
    response = _read(answered, RequestPermissionResponse)
    if response is None or not isinstance(response.outcome, SelectedOutcome):
        return None
    kinds = {option.option_id: option.kind for option in options}
    return _WORDS.get(kinds.get(response.outcome.option_id, ""))


def _read(answered: ClientAnswer, shape: type[_T]) -> _T | None:
    if answered.error is not None:
        return None
    try:
        return msgspec.convert(answered.value(), shape)
    except msgspec.ValidationError:
        return None

"""Requests to a client: to be answered by whoever is at its end, or withdrawn."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from legation.agents.messages import Message, read_error
from legation.errors import TransportClosed
from legation.ids import new_id
from legation.server.acp.log import ConnectionLog
from legation.server.acp.messages import key_of, notification_line, request_line
from legation.server.sessions.clients import Answered
from legation.wire import jsontext
from legation.wire.acp.rpc import CANCEL_REQUEST
from legation.wire.principal import Principal

MOST_WAITING: Final = 1_000  # of one client; an agent's runaway questions must not fill our memory


class ClientCalls:
    def __init__(self, outlet: ConnectionLog) -> None:
        self._outlet = outlet
        self._waiting: dict[bytes, asyncio.Future[Answered]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, method: str, params: object) -> Answered:
        """Until it is answered; whoever gives up withdraws it, as ACP has it, and a late answer is ignored."""
        if len(self._waiting) >= MOST_WAITING:
            raise TransportClosed("cannot ask the client any more: it answers nothing; wait for that")
        request_id = new_id("req")
        key = jsontext.write(request_id)
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[key] = answer
        self._outlet.say(request_line(request_id, method, params))
        try:
            return await answer
        except asyncio.CancelledError:
            self._outlet.say(notification_line(CANCEL_REQUEST, {"requestId": request_id}))
            raise
        finally:
            del self._waiting[key]

    def tell(self, method: str, params: object) -> None:
        """Ask, and not wait for the answer."""
        self._outlet.say(request_line(new_id("req"), method, params))

    def answered(self, message: Message, by: Principal) -> None:
        """Unknown ids are of what was withdrawn, or of an earlier life."""
        answer = self._waiting.get(key_of(message))
        if answer is not None and not answer.done():
            error = read_error(bytes(message.error)) if message.error else None
            answer.set_result(Answered(bytes(message.result), error, by))

    def give_up(self) -> None:
        """Nobody will answer any more: what the client was asked is withdrawn, while there is somebody to say so to."""
        gone = TransportClosed("cannot ask the client: it has gone; ask again when it is back")
        for key, answer in self._waiting.items():
            if not answer.done():
                self._outlet.say(notification_line(CANCEL_REQUEST, {"requestId": msgspec.Raw(key)}))
                answer.set_exception(gone)

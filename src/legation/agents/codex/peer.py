"""JSON-RPC as the app server of Codex speaks it: without the member `jsonrpc`, one message a line.

INV-1  Messages are handed on in the order in which they came, an answer to us in its place among them.
INV-2  A line that is no message is reported and skipped; it never ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from legation.agents.answers import READ_ERRORS, read_answer
from legation.agents.calls import Calls
from legation.agents.messages import Message, id_key, read_error, read_message
from legation.agents.rpc import WRITE_TIMEOUT, AgentRefused
from legation.errors import AgentError, LegationError, TimedOut, TransportClosed
from legation.proc import Child
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification; `line` is all of it as it came, and `is_cut` where `params` are a digest of its."""

    method: str
    params: bytes
    line: bytes
    is_cut: bool = False


@dataclass(slots=True)
class Asked:
    """A request of the server's, which is answered once, with a result wherever it knows one."""

    method: str
    params: bytes
    line: bytes
    key: bytes
    _write: Callable[[bytes, object], None] = field(repr=False)
    is_cut: bool = False
    answered: bool = False

    def answer(self, answer: object) -> None:
        if not self.answered:
            self.answered = True
            self._write(self.key, answer)


class Ear(Protocol):
    """Must not wait."""

    def heard(self, heard: Heard) -> None: ...
    def asked(self, asked: Asked) -> None: ...
    def stray(self, line: bytes) -> None: ...


class Peer:
    def __init__(self, child: Child, ear: Ear) -> None:
        self._child = child
        self._ear = ear
        self._calls = Calls()
        self._closed = False

    async def call(
        self,
        method: str,
        params: object,
        shape: type[_T],
        timeout: float,
        on_answer: Callable[[_T | AgentError], None] | None = None,
    ) -> _T:
        """Written before it first waits. `on_answer` is called in the answer's place with what is returned or raised
        later. Raises TransportClosed where no answer will come."""
        found: list[_T | AgentError] = []

        def answered(raw: bytes | RpcError) -> None:
            found.append(_read(method, raw, shape))
            if on_answer:
                on_answer(found[0])

        if self._closed:
            raise TransportClosed(f"cannot send {method}: the agent's output has ended; start it again")
        call = self._calls.begin(method, answered)
        try:
            self._write({"id": call.number, "method": method, "params": params})
            async with asyncio.timeout(timeout):
                await self._child.drain(WRITE_TIMEOUT)
                await call.answer
        except TimeoutError:
            if not call.answered:
                self._calls.give_up(call)
                what = f"cannot complete {method}: the agent did not answer within {timeout} s"
                raise TimedOut(what) from None
        except (asyncio.CancelledError, LegationError):
            if not call.answered:
                self._calls.give_up(call)
            raise
        finally:
            self._calls.end(call)
        if not found:
            raise TransportClosed(f"cannot complete {method}: the agent's output has ended; look at its exit")
        if isinstance(found[0], AgentError):
            raise found[0]
        return found[0]

    def notify(self, method: str) -> None:
        self._write({"method": method})

    def take(self, line: bytes, brief: bytes) -> str | None:
        """Hands one line on, of which `brief` is decoded. Says what is odd about an answer that nobody waits for."""
        if not line.strip():
            return None
        is_cut = brief is not line
        message = read_message(brief if brief.isascii() else brief.decode(errors="replace").encode())
        if message is None or not (message.method or message.id):
            self._ear.stray(line)
        elif not message.method:
            error, result = bytes(message.error), bytes(message.result) or b"null"
            return self._calls.take(id_key(bytes(message.id)), read_error(error) if error else result)
        elif message.id:
            self._ear.asked(self._asked(message, line, is_cut))
        else:
            self._ear.heard(Heard(message.method, bytes(message.params), line, is_cut))
        return None

    def close(self) -> None:
        """No answer will come any more."""
        self._closed = True
        self._calls.abandon()

    def _asked(self, message: Message, line: bytes, is_cut: bool) -> Asked:
        return Asked(
            message.method, bytes(message.params), line, bytes(message.id), self._write_answer, is_cut
        )

    def _write_answer(self, raw_id: bytes, answer: object) -> None:
        part = b"error" if isinstance(answer, RpcError) else b"result"
        with suppress(LegationError):  # the server went away with its question
            self._child.write(b'{"id":%b,"%b":%b}\n' % (raw_id, part, jsontext.write(answer)))

    def _write(self, message: dict[str, object]) -> None:
        self._child.write(jsontext.write(message) + b"\n")


def _read(method: str, raw: bytes | RpcError, shape: type[_T]) -> _T | AgentError:
    if isinstance(raw, RpcError):
        return AgentRefused(method, raw)
    try:
        return read_answer(raw, shape)
    except READ_ERRORS:
        error = RpcError(ErrorCode.INTERNAL_ERROR, "the answer has not the form that was expected")
        return AgentRefused(method, error)

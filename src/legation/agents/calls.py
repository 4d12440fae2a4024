"""Our requests to an agent: those that wait for an answer, and those given up whose answer may still come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from legation.wire.acp.rpc import ErrorCode, RpcError

GIVEN_UP_KEPT = 1000  # an agent need not ever answer what we gave up


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """`answer` is None where there will be none."""

    number: int
    method: str
    on_answer: Callable[[bytes | RpcError], None]
    answer: asyncio.Future[bytes | RpcError | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def answered(self) -> bool:
        return self.answer.done() and not self.answer.cancelled()


class Calls:
    def __init__(self) -> None:
        self._last = 0
        self._open: dict[bytes, Call] = {}
        self._given_up: dict[bytes, str] = {}  # id -> method, oldest first

    def begin(self, method: str, on_answer: Callable[[bytes | RpcError], None]) -> Call:
        self._last += 1
        call = Call(self._last, method, on_answer)
        self._open[b"%d" % call.number] = call
        return call

    def end(self, call: Call) -> None:
        del self._open[b"%d" % call.number]

    def give_up(self, call: Call) -> None:
        """The agent still owes an answer, and that it was cancelled is then the one to expect."""
        if len(self._given_up) >= GIVEN_UP_KEPT:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[b"%d" % call.number] = call.method

    def method(self, key: bytes) -> str | None:
        """Of the call that waits for an answer with that id."""
        call = self._open.get(key)
        return call.method if call else None

    def take(self, key: bytes, answer: bytes | RpcError) -> str | None:
        """Hands the answer to whoever waits for it. Says what is odd about one that nobody waits for."""
        call = self._open.get(key)
        if call and not call.answer.done():
            call.answer.set_result(answer)
            call.on_answer(answer)
            return None
        method = self._given_up.pop(key, None)
        if method is None:
            return "an answer came that nobody waits for"
        if isinstance(answer, RpcError) and answer.code == ErrorCode.REQUEST_CANCELLED:
            return None
        return f"the answer to {method} came after it was given up"

    def abandon(self) -> None:
        """No answer will come any more."""
        for call in self._open.values():
            if not call.answer.done():
                call.answer.set_result(None)

"""Claude Code's control protocol: requests of ours and of the program's, beside the conversation on the same pipes.

INV-1  Only what was encoded here is written: one bad line would end the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from legation.agents.claude.messages import ControlAnswer
from legation.agents.rpc import AgentRefused
from legation.errors import LegationError, TimedOut
from legation.proc import Child
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError

_Answered = Callable[[ControlAnswer], None]


@dataclass(frozen=True, slots=True)
class _Pending:
    answer: asyncio.Future[ControlAnswer]
    on_answer: _Answered | None


class Control:
    def __init__(self, child: Child) -> None:
        self._child = child
        self._count = 0
        self._pending: dict[str, _Pending] = {}

    def write(self, message: Mapping[str, object]) -> None:
        self._child.write(jsontext.write(message) + b"\n")

    # Ours.

    def send(
        self, request: Mapping[str, object], on_answer: _Answered | None = None
    ) -> asyncio.Future[ControlAnswer]:
        """`on_answer` is called in the answer's place among the lines."""
        self._count += 1
        request_id = f"legation_{self._count}"
        answer: asyncio.Future[ControlAnswer] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = _Pending(answer, on_answer)
        self.write({"type": "control_request", "request_id": request_id, "request": request})
        return answer

    async def call(self, method: str, request: Mapping[str, object], timeout: float) -> Mapping[str, object]:
        """What it answers; `method` is ours, for what is told of a refusal. The time is the program's."""
        answer = self.send(request)
        try:
            async with asyncio.timeout(timeout):
                found = await answer
        except TimeoutError:
            raise TimedOut(f"cannot complete {method}: the agent did not answer within {timeout} s") from None
        if found.subtype != "success":
            raise AgentRefused(method, RpcError(ErrorCode.INTERNAL_ERROR, found.error or "it gave no reason"))
        return found.response

    def take(self, answer: ControlAnswer) -> None:
        """Our own answers come back too, and count for nothing."""
        pending = self._pending.pop(answer.request_id, None)
        if pending is None or pending.answer.done():
            return
        if pending.on_answer is not None:
            pending.on_answer(answer)
        pending.answer.set_result(answer)

    def abandon(self, error: LegationError) -> None:
        """There will be no answers any more."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
                pending.answer.exception()  # nobody need wait for it
        self._pending.clear()

    # The program's.

    def answer(self, request_id: str, response: Mapping[str, object]) -> None:
        self._respond({"subtype": "success", "request_id": request_id, "response": response})

    def refuse(self, request_id: str, error: str) -> None:
        self._respond({"subtype": "error", "request_id": request_id, "error": error})

    def _respond(self, response: Mapping[str, object]) -> None:
        with suppress(LegationError):  # it went away with its question
            self.write({"type": "control_response", "response": response})

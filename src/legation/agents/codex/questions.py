"""The requests of one session's threads that wait for an answer of the host's.

INV-1  Each is answered once: with the host's decision, or not at all where the server no longer waits for it.
INV-2  So many at once wait, and no more: the rest, or one under an id that waits already, is declined.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from legation.agents.codex import permissions as asks
from legation.agents.codex.declined import NOBODY, declined
from legation.agents.codex.peer import Asked
from legation.agents.codex.requests import (
    CommandAsked,
    ElicitationAsked,
    FileChangeAsked,
    PermissionsAsked,
    UserInputAsked,
)
from legation.agents.codex.translate import Translation
from legation.agents.messages import id_key
from legation.agents.native import Permission
from legation.agents.rpc import REQUESTS_AT_ONCE
from legation.wire.acp.capabilities import ElicitationCapabilities
from legation.wire.acp.elicitation import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.toolcall import ToolCallPatch

_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)
SHAPES: Final[dict[str, type[Any]]] = {
    "item/commandExecution/requestApproval": CommandAsked,
    "item/fileChange/requestApproval": FileChangeAsked,
    "item/permissions/requestApproval": PermissionsAsked,
    "item/tool/requestUserInput": UserInputAsked,
    "mcpServer/elicitation/request": ElicitationAsked,
}


class Host(Protocol):
    """As a native agent asks it."""

    @property
    def elicitation(self) -> ElicitationCapabilities: ...
    def say_unknown(self, session_id: str, line: bytes) -> None: ...
    def ask_permission(self, session_id: str, call: ToolCallPatch) -> asyncio.Task[Permission]: ...
    def ask_question(self, request: CreateElicitationRequest) -> asyncio.Task[CreateElicitationResponse]: ...


class Questions:
    def __init__(self, host: Host, session_id: str, translation: Translation) -> None:
        self._host = host
        self._session_id = session_id
        self._translation = translation
        self._waiting: dict[
            bytes, tuple[str, asyncio.Task[None]]
        ] = {}  # by request, and whose thread it is of

    def ask(self, thread_id: str, asked: Asked) -> None:
        """Recorded in its place before this returns."""
        shape = SHAPES.get(asked.method)
        too_many = id_key(asked.key) in self._waiting or len(self._waiting) >= REQUESTS_AT_ONCE
        if shape is None or too_many:
            self._host.say_unknown(self._session_id, asked.line)
            asked.answer(declined(asked))
            return
        try:
            params = msgspec.json.decode(asked.params, type=shape)
        except (ValueError, RecursionError):
            self._host.say_unknown(self._session_id, asked.line)
            asked.answer(declined(asked))
            return
        self._ask(thread_id, asked, params)

    def withdraw(self, request_id: int | str) -> None:
        """The server waits for it no longer."""
        waiting = self._waiting.get(id_key(msgspec.json.encode(request_id)))
        if waiting:
            waiting[1].cancel()

    def withdraw_all(self, thread_id: str | None = None) -> None:
        """Of one thread, or of all: its turn is over."""
        for whose, task in [*self._waiting.values()]:
            if thread_id in (None, whose):
                task.cancel()

    def _ask(self, thread_id: str, asked: Asked, params: object) -> None:
        match params:
            case CommandAsked():
                self._permission(thread_id, asked, asks.command_call(params), asks.decision)
            case FileChangeAsked():
                calls = asks.change_calls(params, self._translation.item(thread_id, params.item_id))
                self._wait(thread_id, asked, self._all_of(calls), asks.decision)
            case PermissionsAsked():
                call = asks.permissions_call(params)
                self._permission(thread_id, asked, call, lambda found: asks.granted(params, found))
            case UserInputAsked():
                self._user_input(thread_id, asked, params)
            case ElicitationAsked():
                self._elicitation(thread_id, asked, params)

    def _permission(
        self, thread_id: str, asked: Asked, call: ToolCallPatch, answer: Callable[[Permission], object]
    ) -> None:
        self._wait(thread_id, asked, self._host.ask_permission(self._session_id, call), answer)

    def _all_of(self, calls: tuple[ToolCallPatch, ...]) -> asyncio.Task[Permission]:
        """Allowed where each is; the first that is not decides, and the rest is taken back."""
        asked = [self._host.ask_permission(self._session_id, call) for call in calls]

        async def decided() -> Permission:
            found = Permission(allowed=False)
            for each in asked:
                found = await each
                if not found.allowed:
                    break
            return found

        def take_back(_: asyncio.Task[Permission]) -> None:
            for each in asked:
                each.cancel()

        task = asyncio.create_task(decided(), name="legation-codex-changes")
        task.add_done_callback(take_back)
        return task

    def _user_input(self, thread_id: str, asked: Asked, params: UserInputAsked) -> None:
        if self._host.elicitation.form is None:
            asked.answer(asks.said(params.questions, NOBODY))
            return
        request = CreateElicitationRequest(
            mode="form",
            message=asks.message(params.questions),
            requested_schema=asks.form(params.questions),
            session_id=self._session_id,
            tool_call_id=params.item_id,
        )
        coming = self._host.ask_question(request)
        self._wait(thread_id, asked, coming, lambda found: asks.answers(params.questions, found))

    def _elicitation(self, thread_id: str, asked: Asked, params: ElicitationAsked) -> None:
        call = asks.mcp_call(params, self._translation.open_items(thread_id), asked.key.decode())
        if call is not None:
            self._permission(thread_id, asked, call, asks.mcp_decision)
            return
        offered = self._host.elicitation.form if params.mode == "form" else self._host.elicitation.url
        if params.mode not in ("form", "url") or offered is None:
            asked.answer(declined(asked))
            return
        schema = params.requested_schema
        request = CreateElicitationRequest(
            mode=params.mode,
            message=params.message,
            requested_schema=schema if isinstance(schema, dict) else None,
            url=params.url,
            elicitation_id=params.elicitation_id,
            session_id=self._session_id,
        )
        self._wait(thread_id, asked, self._host.ask_question(request), asks.elicited)

    def _wait(
        self, thread_id: str, asked: Asked, coming: asyncio.Task[_T], answer: Callable[[_T], object]
    ) -> None:
        async def pass_on() -> None:
            try:
                asked.answer(answer(await coming))
            except Exception:  # noqa: BLE001 - a task boundary; what is no yes must be a no
                _log.exception("cannot answer %s of Codex", asked.method)
                asked.answer(declined(asked))

        def withdraw(task: asyncio.Task[None]) -> None:
            """A task that is cancelled before its first step has cancelled nothing that it would wait for."""
            self._waiting.pop(key, None)
            if task.cancelled():
                coming.cancel()

        key = id_key(asked.key)
        task = asyncio.create_task(pass_on(), name=f"legation-codex-asked-{asked.method}")
        self._waiting[key] = thread_id, task
        task.add_done_callback(withdraw)

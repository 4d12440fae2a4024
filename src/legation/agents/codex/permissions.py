"""The requests of one session's threads, as the host is asked them, and its decisions as the server takes them.

INV-1  Each is answered once: with the host's decision, or not at all where the server no longer waits for it.
INV-2  So many at once wait, and no more: the rest, or one under an id that waits already, is declined.
INV-3  Only once: what Codex would remember for a session, or as a rule, is never chosen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from legation.agents.codex.messages import (
    CodexRequest,
    CommandAsked,
    ElicitationAsked,
    FileChangeAsked,
    FileChangeItem,
    FileUpdate,
    McpToolCall,
    PermissionsAsked,
    ThreadItem,
    UserInputAsked,
    UserInputQuestion,
)
from legation.agents.codex.tools import (
    EXEC,
    PATCH,
    change_kind,
    inner_command,
    mcp_name,
    read_locations,
    tool_call,
)
from legation.agents.codex.translate import CodexTranslator
from legation.agents.messages import id_key, read_call_id
from legation.agents.native import NativeAgent, PermissionDecision, question_field
from legation.agents.rpc import REQUESTS_AT_ONCE, TOO_MANY
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import Content, Text, ToolCall, ToolCallLocation, ToolCallPatch

_T = TypeVar("_T")
_log: Final = logging.getLogger(__name__)
SHAPES: Final[dict[str, type[Any]]] = {
    "item/commandExecution/requestApproval": CommandAsked,
    "item/fileChange/requestApproval": FileChangeAsked,
    "item/permissions/requestApproval": PermissionsAsked,
    "item/tool/requestUserInput": UserInputAsked,
    "mcpServer/elicitation/request": ElicitationAsked,
}


class CodexPermissions:
    """Ask the host, and answer the server."""

    def __init__(self, agent: NativeAgent, session_id: str, translator: CodexTranslator) -> None:
        self._agent = agent
        self._session_id = session_id
        self._translator = translator
        self._waiting: dict[
            bytes, tuple[str, asyncio.Task[None]]
        ] = {}  # by request, and whose thread it is of

    def ask(self, thread_id: str, asked: CodexRequest) -> None:
        """Ask the host. The question is recorded in its place before this returns."""
        shape = SHAPES.get(asked.method)
        too_many = id_key(asked.key) in self._waiting or len(self._waiting) >= REQUESTS_AT_ONCE
        if too_many:
            self._agent.tell_refused(TOO_MANY, read_call_id(asked.params))
        if shape is None or too_many:
            self._agent.say_unknown(self._session_id, asked.line)
            asked.answer(declined(asked))
            return
        try:
            params = msgspec.json.decode(asked.params, type=shape)
        except (ValueError, RecursionError):
            self._agent.say_unknown(self._session_id, asked.line)
            asked.answer(declined(asked))
            return
        self._ask(thread_id, asked, params)

    def cancel(self, request_id: int | str) -> None:
        """The server waits for it no longer."""
        waiting = self._waiting.get(id_key(msgspec.json.encode(request_id)))
        if waiting:
            waiting[1].cancel()

    def cancel_all(self, thread_id: str | None = None) -> None:
        """Take back those of one thread, or of all: its turn is over."""
        for whose, task in [*self._waiting.values()]:
            if thread_id in (None, whose):
                task.cancel()

    def _ask(self, thread_id: str, asked: CodexRequest, params: object) -> None:
        match params:
            case CommandAsked():
                self._permission(thread_id, asked, command_call(params), decision)
            case FileChangeAsked():
                calls = change_calls(params, self._translator.item(thread_id, params.item_id))
                self._wait(thread_id, asked, self._all_of(calls), decision)
            case PermissionsAsked():
                call = permissions_call(params)
                self._permission(thread_id, asked, call, lambda found: permissions_decision(params, found))
            case UserInputAsked():
                self._user_input(thread_id, asked, params)
            case ElicitationAsked():
                self._elicitation(thread_id, asked, params)

    def _permission(
        self,
        thread_id: str,
        asked: CodexRequest,
        call: ToolCallPatch,
        answer: Callable[[PermissionDecision], object],
    ) -> None:
        self._wait(thread_id, asked, self._agent.ask_permission(self._session_id, call), answer)

    def _all_of(self, calls: tuple[ToolCallPatch, ...]) -> asyncio.Task[PermissionDecision]:
        """Allowed where each is; the first that is not decides, and the rest is taken back."""
        asked = [self._agent.ask_permission(self._session_id, call) for call in calls]

        async def decided() -> PermissionDecision:
            found = PermissionDecision(allowed=False)
            for each in asked:
                found = await each
                if not found.allowed:
                    break
            return found

        def take_back(_: asyncio.Task[PermissionDecision]) -> None:
            for each in asked:
                each.cancel()

        task = asyncio.create_task(decided(), name="legation-codex-changes")
        task.add_done_callback(take_back)
        return task

    def _user_input(self, thread_id: str, asked: CodexRequest, params: UserInputAsked) -> None:
        if self._agent.elicitation.form is None:
            asked.answer(question_said(params.questions, NOBODY))
            return
        request = CreateElicitationRequest(
            mode="form",
            message=question_message(params.questions),
            requested_schema=question_form(params.questions),
            session_id=self._session_id,
            tool_call_id=params.item_id,
        )
        coming = self._agent.ask_question(request)
        self._wait(thread_id, asked, coming, lambda found: question_answers(params.questions, found))

    def _elicitation(self, thread_id: str, asked: CodexRequest, params: ElicitationAsked) -> None:
        call = mcp_call(params, self._translator.open_items(thread_id), asked.key.decode())
        if call is not None:
            self._permission(thread_id, asked, call, mcp_decision)
            return
        offered = self._agent.elicitation.form if params.mode == "form" else self._agent.elicitation.url
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
        self._wait(thread_id, asked, self._agent.ask_question(request), elicitation_answer)

    def _wait(
        self, thread_id: str, asked: CodexRequest, coming: asyncio.Task[_T], answer: Callable[[_T], object]
    ) -> None:
        async def pass_on() -> None:
            try:
                asked.answer(answer(await coming))
            except Exception:  # noqa: BLE001 - a task boundary; what is no yes must be a no
                _log.exception("cannot answer %s of Codex", asked.method)
                asked.answer(declined(asked))

        def take_back(task: asyncio.Task[None]) -> None:
            """A task that is cancelled before its first step has cancelled nothing that it would wait for."""
            self._waiting.pop(key, None)
            if task.cancelled():
                coming.cancel()

        key = id_key(asked.key)
        task = asyncio.create_task(pass_on(), name=f"legation-codex-asked-{asked.method}")
        self._waiting[key] = thread_id, task
        task.add_done_callback(take_back)


# Permissions: requests as tool calls, and decisions as the server takes them.


DECLINED: Final = "The user declined to answer."

_MCP_APPROVAL: Final = "mcp_tool_call"


def command_call(asked: CommandAsked) -> ToolCallPatch:
    """The call of a command. Where it is about a host instead, that is what is judged."""
    command = inner_command(asked.command or "")
    given: dict[str, object] = {"command": command, "cwd": asked.cwd, "reason": asked.reason}
    if asked.kind != "command":
        given["kind"] = asked.kind
    if asked.additional_permissions is not None:
        given["additionalPermissions"] = asked.additional_permissions
    network = asked.network_approval_context
    if network is not None:
        given["url"] = f"{network.protocol}://{network.host}"
    return ToolCallPatch(
        tool_call_id=asked.item_id,
        title=str(given.get("url", command)),
        name=EXEC,
        kind="fetch" if network else "execute",
        status="pending",
        raw_input={key: value for key, value in given.items() if value},
        locations=read_locations(asked.command_actions or ()),
    )


def change_calls(asked: FileChangeAsked, item: ThreadItem | None) -> tuple[ToolCallPatch, ...]:
    """One for each kind of change: a file that is deleted must not pass for an edit because another one is edited with it.
    The diffs are joined from the item; of one that was not told nobody knows what it does."""
    if not isinstance(item, FileChangeItem) or not item.changes:
        given: object = {"reason": asked.reason, "grantRoot": asked.grant_root}
        unseen = ToolCallPatch(
            tool_call_id=asked.item_id, name=PATCH, kind="other", status="pending", raw_input=given
        )
        return (unseen,)
    parts: dict[str, list[FileUpdate]] = {}
    for each in item.changes:
        parts.setdefault(change_kind((each,)), []).append(each)
    calls = (tool_call(msgspec.structs.replace(item, changes=tuple(part))) for part in parts.values())
    return tuple(_change(asked, call) for call in calls if call)


def _change(asked: FileChangeAsked, known: ToolCall) -> ToolCallPatch:
    """`grant_root` would let it write to a folder from then on."""
    places = known.locations or ()
    if asked.grant_root:
        places = (*places, ToolCallLocation(path=asked.grant_root))
    return ToolCallPatch(
        tool_call_id=asked.item_id,
        title=known.title,
        name=known.name,
        kind=known.kind,
        status="pending",
        raw_input=known.raw_input,
        locations=places,
        content=known.content,
    )


def permissions_call(asked: PermissionsAsked) -> ToolCallPatch:
    given = {"permissions": asked.permissions, "reason": asked.reason, "cwd": asked.cwd}
    return ToolCallPatch(
        tool_call_id=asked.item_id,
        title=asked.reason or "More permissions",
        name="request_permissions",
        kind="other",
        status="pending",
        raw_input=given,
        locations=tuple(ToolCallLocation(path=path) for path in _paths(asked.permissions)) or None,
    )


def mcp_call(asked: ElicitationAsked, items: Iterable[ThreadItem], request: str) -> ToolCallPatch | None:
    """The call of an MCP tool; None where it is no approval but a question of the server's own. Which tool it is about is said by the item
    that waits for it, of which the sentence in the request tells one from another."""
    meta = asked.meta if isinstance(asked.meta, Mapping) else {}
    if meta.get("codex_approval_kind") != _MCP_APPROVAL:
        return None
    given = meta.get("tool_params")
    waiting = [
        item
        for item in items
        if isinstance(item, McpToolCall) and item.server == asked.server_name and item.arguments == given
    ]
    said = asked.message.partition('run tool "')[2].rpartition('"?')[0]
    if len({each.tool for each in waiting}) > 1:
        waiting = [each for each in waiting if each.tool == said]
    tool = waiting[-1].tool if waiting else said or "?"
    name = mcp_name(asked.server_name, tool)
    return ToolCallPatch(
        tool_call_id=waiting[-1].id if waiting else f"mcp-{request}",
        title=name,
        name=name,
        kind="other",
        status="pending",
        raw_input=given if isinstance(given, Mapping) else {"input": given},
    )


def plan_call(turn_id: str, plan: str) -> ToolCallPatch:
    return ToolCallPatch(
        tool_call_id=f"{turn_id}-approve-plan",
        title="Carry out the plan",
        name="approve_plan",
        kind="switch_mode",
        status="pending",
        raw_input={"plan": plan},
        content=(Content(content=Text(text=plan)),),
    )


def decision(permission: PermissionDecision) -> object:
    if permission.cancelled:
        return {"decision": "cancel"}
    return {"decision": "accept"} if permission.allowed else DECLINE


def permissions_decision(asked: PermissionsAsked, permission: PermissionDecision) -> object:
    return {"permissions": asked.permissions if permission.allowed else {}, "scope": "turn"}


def mcp_decision(permission: PermissionDecision) -> object:
    if permission.allowed:
        return {"action": "accept", "content": {}}
    return {"action": "cancel" if permission.cancelled else "decline", "content": None}


# Questions.


def question_form(questions: tuple[UserInputQuestion, ...]) -> dict[str, object]:
    """One field a question; what is written freely is for a question without options."""
    fields = {each.id: question_field(each.header, each.question, each.options or ()) for each in questions}
    return {"type": "object", "properties": fields, "required": list(fields)}


def question_message(questions: tuple[UserInputQuestion, ...]) -> str:
    return "\n".join(each.question for each in questions)


def question_answers(questions: tuple[UserInputQuestion, ...], given: CreateElicitationResponse) -> object:
    """Codex goes on with any answer; that there is none it is told in words."""
    if given.action != "accept":
        return question_said(questions, DECLINED)
    content = given.content or {}
    told = {each.id: {"answers": _texts(content.get(each.id))} for each in questions if each.id in content}
    return {"answers": told}


def question_said(questions: tuple[UserInputQuestion, ...], text: str) -> object:
    return {"answers": {each.id: {"answers": [text]} for each in questions}}


def elicitation_answer(given: CreateElicitationResponse) -> object:
    content = msgspec.to_builtins(given.content or {}) if given.action == "accept" else None
    return {"action": given.action, "content": content}


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def _paths(permissions: Mapping[str, object]) -> list[str]:
    files = permissions.get("fileSystem")
    lists = [files.get(way) for way in ("read", "write")] if isinstance(files, Mapping) else []
    return [path for each in lists if isinstance(each, list) for path in each if isinstance(path, str)]


# The answer to a request that nobody can decide: no, in the form that the server understands.


DECLINE: Final = {"decision": "decline"}
NOBODY: Final = "Nobody can be asked here: decide by yourself, or go on without."

ANSWERS: Final[dict[str, object]] = {
    "item/commandExecution/requestApproval": DECLINE,
    "item/fileChange/requestApproval": DECLINE,
    "item/permissions/requestApproval": {"permissions": {}, "scope": "turn"},
    "item/tool/requestUserInput": {"answers": {}},
    "item/tool/call": {"contentItems": [{"type": "inputText", "text": NOBODY}], "success": False},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    # As they were called before threads had items.
    "applyPatchApproval": {"decision": "denied"},
    "execCommandApproval": {"decision": "denied"},
}


def declined(asked: CodexRequest) -> object:
    unknown = RpcError(ErrorCode.METHOD_NOT_FOUND, f"{asked.method} is not offered")
    return ANSWERS.get(asked.method, unknown)

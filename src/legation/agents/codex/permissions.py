"""What the server asks, as the host is asked it, and the host's decisions as the server takes them.

Only once: what Codex would remember for a session, or as a rule, is never chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from legation.agents.codex.changes import kind_of
from legation.agents.codex.declined import DECLINE
from legation.agents.codex.items import FileChange, FileUpdate, McpToolCall, ThreadItem
from legation.agents.codex.requests import (
    CommandAsked,
    ElicitationAsked,
    FileChangeAsked,
    PermissionsAsked,
    Question,
)
from legation.agents.codex.shellwords import inner_command
from legation.agents.codex.tools import EXEC, PATCH, mcp_name, read_locations, tool_call
from legation.agents.native import Permission
from legation.wire.acp.content import Text
from legation.wire.acp.elicitation import CreateElicitationResponse
from legation.wire.acp.toolcall import Content, ToolCall, ToolCallLocation, ToolCallPatch

DECLINED: Final = "The user declined to answer."

_MCP_APPROVAL: Final = "mcp_tool_call"


# Permissions.


def command_call(asked: CommandAsked) -> ToolCallPatch:
    """Where it is about a host instead of a command, that is what is judged."""
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
    if not isinstance(item, FileChange) or not item.changes:
        given: object = {"reason": asked.reason, "grantRoot": asked.grant_root}
        unseen = ToolCallPatch(
            tool_call_id=asked.item_id, name=PATCH, kind="other", status="pending", raw_input=given
        )
        return (unseen,)
    parts: dict[str, list[FileUpdate]] = {}
    for each in item.changes:
        parts.setdefault(kind_of((each,)), []).append(each)
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
    """None where it is no approval but a question of the MCP server's own. Which tool it is about is said by the item
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


def decision(permission: Permission) -> object:
    if permission.cancelled:
        return {"decision": "cancel"}
    return {"decision": "accept"} if permission.allowed else DECLINE


def granted(asked: PermissionsAsked, permission: Permission) -> object:
    return {"permissions": asked.permissions if permission.allowed else {}, "scope": "turn"}


def mcp_decision(permission: Permission) -> object:
    if permission.allowed:
        return {"action": "accept", "content": {}}
    return {"action": "cancel" if permission.cancelled else "decline", "content": None}


# Questions.


def form(questions: tuple[Question, ...]) -> dict[str, object]:
    """One field a question; what is written freely is for a question without options."""
    fields = {each.id: _field(each) for each in questions}
    return {"type": "object", "properties": fields, "required": list(fields)}


def message(questions: tuple[Question, ...]) -> str:
    return "\n".join(each.question for each in questions)


def answers(questions: tuple[Question, ...], given: CreateElicitationResponse) -> object:
    """Codex goes on with any answer; that there is none it is told in words."""
    if given.action != "accept":
        return said(questions, DECLINED)
    content = given.content or {}
    told = {each.id: {"answers": _texts(content.get(each.id))} for each in questions if each.id in content}
    return {"answers": told}


def said(questions: tuple[Question, ...], text: str) -> object:
    return {"answers": {each.id: {"answers": [text]} for each in questions}}


def elicited(given: CreateElicitationResponse) -> object:
    content = msgspec.to_builtins(given.content or {}) if given.action == "accept" else None
    return {"action": given.action, "content": content}


def _field(question: Question) -> dict[str, object]:
    field: dict[str, object] = {
        "type": "string",
        "title": question.header,
        "description": question.question,
    }
    if question.options:
        field["oneOf"] = [
            {"const": each.label, "title": each.label, "description": each.description}
            for each in question.options
        ]
    return field


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def _paths(permissions: Mapping[str, object]) -> list[str]:
    files = permissions.get("fileSystem")
    lists = [files.get(way) for way in ("read", "write")] if isinstance(files, Mapping) else []
    return [path for each in lists if isinstance(each, list) for path in each if isinstance(path, str)]

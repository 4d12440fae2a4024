"""Items of a thread that are tool calls, as ACP has them. What policies judge is in `raw_input` and `locations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from legation.agents.codex import changes
from legation.agents.codex.items import (
    CollabAgentToolCall,
    CommandAction,
    CommandExecution,
    DynamicToolCall,
    EnteredReviewMode,
    ExitedReviewMode,
    FileChange,
    FunctionCallOutput,
    ImageGeneration,
    ImageView,
    McpToolCall,
    Sleep,
    SubAgentActivity,
    ThreadItem,
    WebSearch,
)
from legation.agents.codex.shellwords import inner_command
from legation.wire.acp.content import Text
from legation.wire.acp.toolcall import Content, ToolCall, ToolCallLocation, ToolCallStatus, ToolCallUpdate

EXEC: Final = "exec_command"
PATCH: Final = "apply_patch"

_STATUSES: Final[Mapping[str, ToolCallStatus]] = {
    "inProgress": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "declined": "failed",
    "interrupted": "failed",
}
_COLLAB: Final[Mapping[str, str]] = {"spawnAgent": "spawn_agent", "closeAgent": "close_agent"}


def tool_call(item: ThreadItem) -> ToolCall | None:
    """The call as it is announced; None where the item is none."""
    match item:
        case CommandExecution():
            command = inner_command(item.command)
            return ToolCall(
                tool_call_id=item.id,
                title=command,
                name=EXEC,
                kind="execute",
                status=status_of(item.status),
                raw_input={"command": command, "cwd": item.cwd},
                locations=read_locations(item.command_actions),
            )
        case FileChange():
            return ToolCall(
                tool_call_id=item.id,
                title=changes.title_of(item.changes),
                name=PATCH,
                kind=changes.kind_of(item.changes),
                status=status_of(item.status),
                raw_input={"changes": msgspec.to_builtins(item.changes)},
                locations=changes.locations(item.changes),
                content=changes.diffs(item.changes),
            )
        case McpToolCall():
            return _called(item, mcp_name(item.server, item.tool), item.status, item.arguments)
        case DynamicToolCall():
            name = f"{item.namespace}.{item.tool}" if item.namespace else item.tool
            return _called(item, name, item.status, item.arguments)
        case CollabAgentToolCall():
            given = {"prompt": item.prompt} if item.prompt else {}
            return _called(item, _COLLAB.get(item.tool, item.tool), item.status, given)
        case SubAgentActivity():
            return _called(item, f"sub_agent_{item.kind}", "completed", {"agent": item.agent_path})
        case WebSearch():
            return _called(item, "web_search", "inProgress", {"query": item.query}, kind="search")
        case ImageView():
            place = (ToolCallLocation(path=item.path),)
            call = _called(item, "view_image", "inProgress", {"path": item.path}, kind="read")
            return msgspec.structs.replace(call, locations=place)
        case ImageGeneration():
            return _called(item, "image_generation", item.status, {"prompt": item.revised_prompt})
        case Sleep():
            return _called(item, "sleep", "inProgress", {"milliseconds": item.duration_ms})
        case EnteredReviewMode() | ExitedReviewMode():
            return _called(item, "review", "inProgress", {"review": item.review}, kind="think")
        case FunctionCallOutput():
            return _called(item, item.name, "inProgress", {})
        case _:
            return None


def tool_end(item: ThreadItem) -> ToolCallUpdate | None:
    """How it ended; None where the item is no tool call."""
    match item:
        case CommandExecution():
            output = item.aggregated_output or ""
            return ToolCallUpdate(
                tool_call_id=item.id,
                status="failed" if item.exit_code else status_of(item.status),
                content=_text(output) if output else None,
                raw_output={"exitCode": item.exit_code, "output": output},
            )
        case FileChange():
            return ToolCallUpdate(
                tool_call_id=item.id,
                status=status_of(item.status),
                content=changes.diffs(item.changes),
                locations=changes.locations(item.changes),
            )
        case McpToolCall():
            return ToolCallUpdate(
                tool_call_id=item.id,
                status=status_of(item.status),
                content=_mcp_content(item.result),
                raw_output=item.error if item.error is not None else item.result,
            )
        case FunctionCallOutput():
            return ToolCallUpdate(tool_call_id=item.id, status="completed", raw_output=item.output)
        case ImageGeneration():
            place = (ToolCallLocation(path=item.saved_path),) if item.saved_path else None
            return ToolCallUpdate(tool_call_id=item.id, status=status_of(item.status), locations=place)
        case DynamicToolCall() | CollabAgentToolCall():
            return ToolCallUpdate(tool_call_id=item.id, status=status_of(item.status))
        case (
            SubAgentActivity()
            | WebSearch()
            | ImageView()
            | Sleep()
            | EnteredReviewMode()
            | ExitedReviewMode()
        ):
            return ToolCallUpdate(tool_call_id=item.id, status="completed")
        case _:
            return None


def mcp_name(server: str, tool: str) -> str:
    return f"mcp__{server}__{tool}"


def status_of(status: str) -> ToolCallStatus:
    return _STATUSES.get(status, "in_progress")


def read_locations(actions: tuple[CommandAction, ...]) -> tuple[ToolCallLocation, ...] | None:
    """What Codex thinks that a command reads: shown, and seen by policies beside the command itself."""
    found = tuple(ToolCallLocation(path=each.path) for each in actions if each.path)
    return found or None


def _called(item: ThreadItem, name: str, status: str, given: object, kind: str = "other") -> ToolCall:
    return ToolCall(
        tool_call_id=item.id,
        title=name,
        name=name,
        kind=kind,
        status=status_of(status),
        raw_input=UNSET if given is None else given,
    )


def _text(text: str) -> tuple[Content, ...]:
    return (Content(content=Text(text=text)),)


def _mcp_content(result: object) -> tuple[Content, ...] | None:
    blocks = result.get("content") if isinstance(result, dict) else None
    if not isinstance(blocks, list):
        return None
    texts = [each["text"] for each in blocks if isinstance(each, dict) and isinstance(each.get("text"), str)]
    return _text("\n".join(texts)) if texts else None

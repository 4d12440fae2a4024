"""Items of a thread that are tool calls, as ACP has them. What policies judge is in `raw_input` and `locations`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from legation.agents.codex.messages import (
    CollabAgentToolCall,
    CommandAction,
    CommandExecution,
    DynamicToolCall,
    EnteredReviewMode,
    ExitedReviewMode,
    FileChangeItem,
    FileUpdate,
    FunctionCallOutput,
    ImageGeneration,
    ImageView,
    McpToolCall,
    Sleep,
    SubAgentActivity,
    ThreadItem,
    WebSearch,
)
from legation.wire.acp.updates import (
    Content,
    Diff,
    Text,
    ToolCall,
    ToolCallLocation,
    ToolCallStatus,
    ToolCallUpdate,
    ToolKind,
)

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
        case FileChangeItem():
            return ToolCall(
                tool_call_id=item.id,
                title=change_title(item.changes),
                name=PATCH,
                kind=change_kind(item.changes),
                status=status_of(item.status),
                raw_input={"changes": msgspec.to_builtins(item.changes)},
                locations=changed_locations(item.changes),
                content=change_diffs(item.changes),
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
    """The call as it ended; None where the item is none."""
    match item:
        case CommandExecution():
            output = item.aggregated_output or ""
            return ToolCallUpdate(
                tool_call_id=item.id,
                status="failed" if item.exit_code else status_of(item.status),
                content=_text(output) if output else None,
                raw_output={"exitCode": item.exit_code, "output": output},
            )
        case FileChangeItem():
            return ToolCallUpdate(
                tool_call_id=item.id,
                status=status_of(item.status),
                content=change_diffs(item.changes),
                locations=changed_locations(item.changes),
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
    """Files that Codex thinks that a command reads: shown, and seen by policies beside the command itself."""
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


# Changes of files. Of a file that is updated Codex tells only the hunks, so that a diff is of one hunk.


_MOVED = "\n\nMoved to: "  # stands behind the hunks of a file that is moved


def change_diffs(changes: Iterable[FileUpdate]) -> tuple[Diff, ...]:
    return tuple(diff for change in changes for diff in _change_diffs(change))


def changed_locations(changes: Iterable[FileUpdate]) -> tuple[ToolCallLocation, ...]:
    """Files that are changed, and where one is moved to: a policy must see both."""
    paths = [path for each in changes for path in (each.path, each.kind.move_path) if path]
    return tuple(ToolCallLocation(path=path) for path in dict.fromkeys(paths))


def change_kind(changes: tuple[FileUpdate, ...]) -> ToolKind:
    if changes and all(each.kind.type == "delete" for each in changes):
        return "delete"
    return "move" if any(each.kind.move_path for each in changes) else "edit"


def change_title(changes: tuple[FileUpdate, ...]) -> str:
    return ", ".join(each.path for each in changes) or "Change files"


def _change_diffs(change: FileUpdate) -> Iterator[Diff]:
    match change.kind.type:
        case "add":
            yield Diff(path=change.path, new_text=change.diff)
        case "delete":
            yield Diff(path=change.path, old_text=change.diff, new_text="")
        case _:
            for old, new in _hunks(change.diff.partition(_MOVED)[0]):
                yield Diff(path=change.path, old_text=old, new_text=new)


def _hunks(text: str) -> Iterator[tuple[str, str]]:
    old: list[str] = []
    new: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("@@"):
            if old or new:
                yield "".join(old), "".join(new)
            old, new = [], []
        elif not line.startswith("\\"):  # "\ No newline at end of file"
            if not line.startswith("+"):
                old.append(line[1:])
            if not line.startswith("-"):
                new.append(line[1:])
    if old or new:
        yield "".join(old), "".join(new)


# Command lines.


# Only the system's own shells: a program of another place may do anything with the same words.
_SHELLS: Final = frozenset(
    f"{folder}/{name}" for folder in ("/bin", "/usr/bin", "/usr/local/bin") for name in ("bash", "sh", "zsh")
)
_RUN: Final = frozenset(("-c", "-lc"))


def inner_command(command: str) -> str:
    """Unwrap a command of the system's shells; any other stays as it is."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    wrapped = len(words) == 3 and words[0] in _SHELLS and words[1] in _RUN
    return words[2] if wrapped else command

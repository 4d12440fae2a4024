"""OpenCode's tools, in ACP's words: what kind each is, what it is called, which files it is about, what it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from legation.agents.opencode.messages import (
    PermissionRequest,
    ToolCompleted,
    ToolErrored,
    ToolPart,
    ToolPending,
    ToolState,
)
from legation.wire.acp.updates import (
    Content,
    Diff,
    Text,
    ToolCall,
    ToolCallContent,
    ToolCallLocation,
    ToolCallPatch,
    ToolCallUpdate,
    ToolKind,
)

KINDS: Final[Mapping[str, ToolKind]] = {
    "bash": "execute",
    "read": "read",
    "glob": "search",
    "grep": "search",
    "list": "search",
    "edit": "edit",
    "write": "edit",
    "apply_patch": "edit",
    "webfetch": "fetch",
    "websearch": "search",
    "todowrite": "think",
    "plan_exit": "switch_mode",
}
OUTSIDE: Final = (
    "external_directory"  # asked besides the tool itself, for what lies outside the session's folder
)
LOOP: Final = "doom_loop"  # the model makes the same call again and again
TITLE_LENGTH: Final = 200  # characters of a command in a title
_STATUSES: Final = {
    "pending": "pending",
    "running": "in_progress",
    "completed": "completed",
    "error": "failed",
}
_DELETES: Final = re.compile(r"^[^\S\n]*\*\*\* Delete File:", re.MULTILINE)
_PATCHED: Final = re.compile(
    r"^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\*\*\* Move to: (.+)$", re.MULTILINE
)


class Names:
    """OpenCode calls the tool of an MCP server `server_tool`, with what it dislikes in names replaced."""

    def __init__(self, servers: tuple[str, ...] = ()) -> None:
        known = {_sanitized(name): name for name in servers}
        self._servers = sorted(known.items(), key=lambda each: -len(each[0]))

    def of(self, tool: str) -> str:
        """`mcp__server__tool` where it is one's."""
        for prefix, server in self._servers:
            if tool.startswith(f"{prefix}_") and tool not in KINDS:
                return f"mcp__{_sanitized(server)}__{tool[len(prefix) + 1 :]}"
        return tool


def kind_of(tool: str, given: Mapping[str, Any]) -> ToolKind:
    """A patch that deletes a file is a deletion, whatever else it does."""
    patch = given.get("patchText")
    if isinstance(patch, str) and _DELETES.search(patch):
        return "delete"
    return KINDS.get(tool, "other")


def call_of(part: ToolPart, names: Names, meta: Mapping[str, object] | None) -> ToolCall:
    state = part.state
    return ToolCall(
        tool_call_id=part.call_id,
        title=_title(part.tool, state.input, state),
        name=names.of(part.tool),
        kind=kind_of(part.tool, state.input),
        status=_status(state),
        raw_input=state.input,
        locations=_locations(part.tool, state.input),
        content=_content(part.tool, state),
        meta=meta,
    )


def update_of(part: ToolPart) -> ToolCallUpdate:
    """Arguments come whole once it runs."""
    state = part.state
    update = ToolCallUpdate(
        tool_call_id=part.call_id,
        title=_title(part.tool, state.input, state),
        status=_status(state),
        raw_input=state.input,
        locations=_locations(part.tool, state.input),
        content=_content(part.tool, state),
    )
    if isinstance(state, ToolCompleted):
        return _replaced(update, {"output": state.output})
    return _replaced(update, {"error": state.error}) if isinstance(state, ToolErrored) else update


def asked_call(request: PermissionRequest, part: ToolPart | None, names: Names) -> ToolCallPatch:
    """The call that a permission is asked for: what is known of it, and what the question adds."""
    tool = part.tool if part else request.permission
    given = part.state.input if part else {}
    shown = tuple(_shown_changes(request.metadata))
    params = dict(given) or {**request.metadata, "patterns": list(request.patterns)}
    return ToolCallPatch(
        tool_call_id=request.tool.call_id if request.tool else request.id,
        title=_asked_title(request, tool, params),
        name=names.of(tool),
        kind=kind_of(tool, given),
        status="pending",
        raw_input=params,
        locations=(*(_locations(tool, params) or ()), *_asked_places(request)) or None,
        content=shown or None,
    )


def _asked_title(request: PermissionRequest, tool: str, params: Mapping[str, Any]) -> str:
    title = _title(tool, params, None)
    if request.permission == OUTSIDE:
        return f"{title} (outside the working folder)"
    return f"{title} (the same call again and again)" if request.permission == LOOP else title


def _asked_places(request: PermissionRequest) -> Iterator[ToolCallLocation]:
    path = request.metadata.get("filepath")
    if isinstance(path, str) and path.startswith("/"):
        yield ToolCallLocation(path=path)
    if request.permission == OUTSIDE:
        yield from (ToolCallLocation(path=_folder(each)) for each in request.patterns if each.startswith("/"))


def _folder(pattern: str) -> str:
    return pattern.removesuffix("*").rstrip("/") or "/"


def _shown_changes(metadata: Mapping[str, Any]) -> Iterator[Diff]:
    text = metadata.get("diff")
    if isinstance(text, str):
        yield from patch_diffs(text)


def _status(state: ToolState) -> str:
    return _STATUSES[str(state.__struct_config__.tag)]


def _title(tool: str, given: Mapping[str, Any], state: ToolState | None) -> str:
    command = given.get("command")
    if tool == "bash" and isinstance(command, str) and command:
        return command[:TITLE_LENGTH]
    for name in ("filePath", "path", "pattern", "url", "query", "description"):
        value = given.get(name)
        if isinstance(value, str) and value:
            return f"{tool} {value}"[:TITLE_LENGTH]
    told = state.title if isinstance(state, ToolCompleted) else None
    return f"{tool} {told}"[:TITLE_LENGTH] if told else tool


def _locations(tool: str, given: Mapping[str, Any]) -> tuple[ToolCallLocation, ...] | None:
    line = given.get("offset")
    found = [
        ToolCallLocation(path=path, line=line if tool == "read" and isinstance(line, int) else None)
        for path in _paths(given)
    ]
    return tuple(found) or None


def _paths(given: Mapping[str, Any]) -> Iterator[str]:
    for name in ("filePath", "path"):
        value = given.get(name)
        if isinstance(value, str) and value:
            yield value
    patch = given.get("patchText")
    if isinstance(patch, str):
        yield from (found[1] or found[2] for found in _PATCHED.finditer(patch))


def _content(tool: str, state: ToolState) -> tuple[ToolCallContent, ...] | None:
    if isinstance(state, ToolPending):
        return None
    shown: list[ToolCallContent] = [*_changes(tool, state)]
    if isinstance(state, ToolCompleted) and state.output and not shown:
        shown.append(Content(content=Text(text=state.output)))
    elif isinstance(state, ToolErrored):
        shown.append(Content(content=Text(text=state.error)))
    return tuple(shown) or None


def _changes(tool: str, state: ToolState) -> Iterator[Diff]:
    """Changes that a tool made to files: by the diff that it tells of, else by its arguments."""
    if KINDS.get(tool) != "edit" or isinstance(state, ToolPending):
        return
    told = tuple(_shown_changes(state.metadata or {}))
    given = state.input
    path, new = given.get("filePath"), given.get("newString", given.get("content"))
    if told:
        yield from told
    elif isinstance(path, str) and isinstance(new, str):
        old = given.get("oldString")
        yield Diff(path=path, new_text=new, old_text=old if isinstance(old, str) else None)


def _replaced(update: ToolCallUpdate, output: object) -> ToolCallUpdate:
    return msgspec.structs.replace(update, raw_output=output)


def _sanitized(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


# Unified diffs, as OpenCode shows what it is about to change, as the old and the new text of each file.


_NO_FILE: Final = "/dev/null"
_NO_NEWLINE: Final = "\\"


def patch_diffs(text: str) -> tuple[Diff, ...]:
    """Old and new are what the hunks show of the file; without an old side the file is new."""
    return tuple(filter(None, (_file_diff(lines) for lines in _files(text.splitlines(keepends=True)))))


def _files(lines: list[str]) -> Iterator[list[str]]:
    """A file's part begins with `---`, which stands right before `+++`."""
    starts = [
        at
        for at in range(len(lines) - 1)
        if lines[at].startswith("--- ") and lines[at + 1].startswith("+++ ")
    ]
    for start, end in pairwise([*starts, len(lines)]):
        yield lines[start:end]


def _file_diff(lines: list[str]) -> Diff | None:
    before, after = (_file_name(line) for line in lines[:2])
    path = before if after == _NO_FILE else after
    old: list[str] = []
    new: list[str] = []
    sides: list[list[str]] = []  # those that the line above is of
    old_lines, inside = 0, False
    for line in lines[2:]:
        if line.startswith("@@"):
            inside = True
            old_lines += not _adds_only(line)
        elif inside and line[:1] in (" ", "-", "+"):
            sides = [side for side, other in ((old, "+"), (new, "-")) if line[0] != other]
            for side in sides:
                side.append(line[1:])
        elif line.startswith(_NO_NEWLINE):  # of the line above
            for side in sides:
                side[-1] = side[-1].removesuffix("\n")
        elif not inside:
            continue
        else:
            inside = False  # the header of what comes next
    if not path:
        return None
    return Diff(path=path, old_text="".join(old) if old_lines else None, new_text="".join(new))


def _file_name(line: str) -> str:
    """Behind it there may be a time, after a tab."""
    return line[4:].split("\t")[0].strip()


def _adds_only(line: str) -> bool:
    """`@@ -0,0 +1,3 @@`: there is no old file."""
    return line.startswith("@@ -0,0 ")

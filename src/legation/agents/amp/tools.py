"""The tools of Amp as ACP shows them. Where its lines are Claude Code's, its tools are its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from legation.agents.claude.tools import title_of
from legation.wire.acp.updates import (
    Content,
    Diff,
    Text,
    ToolCall,
    ToolCallContent,
    ToolCallLocation,
    ToolCallPatch,
    ToolKind,
)

KINDS: Final[Mapping[str, ToolKind]] = {
    "shell_command": "execute",
    "async_shell_command": "execute",
    "shell_command_status": "execute",
    "shell_command_kill": "execute",
    "Bash": "execute",
    "apply_patch": "edit",
    "create_file": "edit",
    "edit_file": "edit",
    "undo_edit": "edit",
    "format_file": "edit",
    "delete_file": "delete",
    "Read": "read",
    "view_media": "read",
    "Grep": "search",
    "Glob": "search",
    "glob": "search",
    "finder": "search",
    "web_search": "fetch",
    "read_web_page": "fetch",
    "download_thread_file": "fetch",
    "Task": "think",
    "oracle": "think",
    "librarian": "think",
    "todo_write": "think",
}
# Those that act on this machine: one that was run and not asked about has gone past the gate.
_LOCAL: Final = frozenset(("execute", "edit", "delete"))
_PATHS: Final = ("path", "file_path")
_TITLES: Final = ("command", "cmd", "path", "url", "query", "pattern", "prompt", "description")
# Without a word on blanks at the end: looking for them from each character on would take the square of a line's length.
_PATCHED: Final = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_DELETES: Final = re.compile(r"^\*\*\* Delete File: ", re.MULTILINE)
_ADDED: Final = re.compile(r"^\*\*\* Add File: (.+)\n(?:[ \t\r]*\n)*((?:\+.*\n?)*)", re.MULTILINE)


def is_local(name: str) -> bool:
    return KINDS.get(name) in _LOCAL or name.startswith("mcp__")


def announced(call: ToolCall) -> ToolCall:
    """Add to a call that the translator of Claude Code's lines made what it does not know of Amp's tools."""
    about = described(call.tool_call_id, call.name or "", call.raw_input)
    return ToolCall(
        tool_call_id=call.tool_call_id,
        title=about.title or call.title,
        name=call.name,
        kind=about.kind,
        status=call.status,
        content=about.content,
        locations=about.locations,
        raw_input=call.raw_input,
        meta=call.meta,
    )


def described(call_id: str, name: str, given: object) -> ToolCallPatch:
    """All that a policy or a person needs to decide on it."""
    arguments = given if isinstance(given, Mapping) else {}
    return ToolCallPatch(
        tool_call_id=call_id,
        title=_title(name, arguments),
        name=name,
        kind=_kind(name, arguments),
        content=tuple(_content(name, arguments)) or None,
        locations=tuple(ToolCallLocation(path=path) for path in _paths(arguments)) or None,
        raw_input=given,
    )


def _kind(name: str, given: Mapping[str, object]) -> ToolKind:
    """A patch that deletes a file among others is no mere edit."""
    kind = KINDS.get(name, "other")
    deletes = kind == "edit" and any(_DELETES.search(text) for text in _patches(given))
    return "delete" if deletes else kind


def _title(name: str, given: Mapping[str, object]) -> str:
    found = (str(given[key]) for key in _TITLES if isinstance(given.get(key), str) and given[key])
    return title_of(name, next(found, ", ".join(_paths(given))), KINDS.get(name))


def _paths(given: Mapping[str, object]) -> tuple[str, ...]:
    named = tuple(str(given[key]) for key in _PATHS if isinstance(given.get(key), str) and given[key])
    patched = (path.rstrip() for text in _patches(given) for path in _PATCHED.findall(text))
    return tuple(dict.fromkeys((*named, *filter(None, patched))))


def _patches(given: Mapping[str, object]) -> Iterator[str]:
    """Under whatever name: a patch is known by its first line."""
    return (text for text in given.values() if isinstance(text, str) and "*** Begin Patch" in text)


def _content(name: str, given: Mapping[str, object]) -> Iterator[ToolCallContent]:
    path = given.get("path")
    if isinstance(path, str):
        old, new, whole = given.get("old_str"), given.get("new_str"), given.get("content")
        if isinstance(old, str) and isinstance(new, str):
            yield Diff(path=path, new_text=new, old_text=old)
        elif name == "create_file" and isinstance(whole, str):
            yield Diff(path=path, new_text=whole)
    for patch in _patches(given):
        for added, lines in _ADDED.findall(patch):
            yield Diff(path=added.rstrip(), new_text="".join(f"{line[1:]}\n" for line in lines.splitlines()))
        if "*** Update File:" in patch or "*** Delete File:" in patch:  # of which it tells no whole texts
            yield Content(content=Text(text=patch))

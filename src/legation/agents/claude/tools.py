"""The tools of Claude Code as ACP shows them: what a call is called, what kind it is, what it touches; and its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from legation.wire.acp.updates import (
    PLAN_STATUSES,
    Content,
    Diff,
    Image,
    Plan,
    PlanEntry,
    SessionUpdate,
    Text,
    ToolCall,
    ToolCallContent,
    ToolCallLocation,
    ToolCallPatch,
    ToolKind,
)

AGENT: Final = "Agent"
ASK: Final = "AskUserQuestion"
EXIT_PLAN: Final = "ExitPlanMode"
TODO: Final = "TodoWrite"
META: Final = "claudeCode"  # whose member of `_meta` it is, as the maker's own ACP adapter calls it
TITLE_SHOWN: Final = 200  # characters of a command or a pattern

KINDS: Final[Mapping[str, ToolKind]] = {
    "Read": "read",
    "ReadMcpResourceTool": "read",
    "ListMcpResourcesTool": "read",
    "NotebookRead": "read",
    "LS": "search",
    "Glob": "search",
    "Grep": "search",
    "ToolSearch": "search",
    "Write": "edit",
    "Edit": "edit",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
    "Bash": "execute",
    "BashOutput": "execute",
    "KillShell": "execute",
    "Monitor": "execute",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
    "web_search": "fetch",
    "web_fetch": "fetch",
    AGENT: "think",
    "Task": "think",
    TODO: "think",
    "TaskCreate": "think",
    "TaskUpdate": "think",
    "TaskGet": "think",
    "TaskList": "think",
    "EnterPlanMode": "switch_mode",
    EXIT_PLAN: "switch_mode",
}
_PATHS: Final = ("file_path", "notebook_path", "path")
# What a call is best known by, the first of them that it has.
_TITLES: Final = (
    "command",
    "file_path",
    "notebook_path",
    "pattern",
    "url",
    "query",
    "description",
    "path",
    "skill",
)


def announced(call_id: str, name: str, given: object, parent: str | None = None) -> ToolCall:
    """`parent` is the call of the sub-agent that makes it."""
    about = described(call_id, name, given)
    return ToolCall(
        tool_call_id=call_id,
        title=about.title or name,
        name=name,
        kind=about.kind,
        status="pending",
        content=about.content,
        locations=about.locations,
        raw_input=given,
        meta={META: {"parentToolUseId": parent}} if parent else None,
    )


def described(call_id: str, name: str, given: object) -> ToolCallPatch:
    """All that a policy or a person needs to decide on it."""
    arguments = given if isinstance(given, Mapping) else {}
    about = (str(arguments[key]) for key in _TITLES if isinstance(arguments.get(key), str) and arguments[key])
    return ToolCallPatch(
        tool_call_id=call_id,
        title=title_of(name, next(about, ""), KINDS.get(name)),
        name=name,
        kind=KINDS.get(name, "other"),
        content=_content(name, arguments) or None,
        locations=_locations(arguments) or None,
        raw_input=given,
    )


def output(content: object) -> tuple[ToolCallContent, ...]:
    """A tool's result: a text, or blocks."""
    if isinstance(content, str):
        return (_text(content),) if content else ()
    if not isinstance(content, list | tuple):
        return ()
    return tuple(shown for block in content if (shown := _block(block)) is not None)


def written(given: object) -> Diff | None:
    """Read the change of a file that was written whole from `tool_use_result`; an edit's own words are shorter than its file."""
    if not isinstance(given, Mapping):
        return None
    path, new, old = given.get("filePath"), given.get("content"), given.get("originalFile")
    if isinstance(path, str) and isinstance(new, str) and isinstance(old, str):
        return Diff(path=path, new_text=new, old_text=old)
    return None


def title_of(name: str, about: str, kind: str | None) -> str:
    """A command speaks for itself; the rest is called by its tool's name, too."""
    about = " ".join(about.split())
    about = about if len(about) <= TITLE_SHOWN else f"{about[: TITLE_SHOWN - 1]}…"
    if not about:
        return name
    return about if kind == "execute" else f"{name}: {about}"


def _locations(given: Mapping[str, object]) -> tuple[ToolCallLocation, ...]:
    paths = (given.get(key) for key in _PATHS)
    line = given.get("offset")
    return tuple(
        ToolCallLocation(path=path, line=line if isinstance(line, int) and line >= 0 else None)
        for path in paths
        if isinstance(path, str) and path
    )


def _content(name: str, given: Mapping[str, object]) -> tuple[ToolCallContent, ...]:
    path = given.get("file_path")
    if name == EXIT_PLAN and isinstance(given.get("plan"), str):
        return (_text(str(given["plan"])),)
    if not isinstance(path, str):
        return ()
    edits = given.get("edits")
    if name == "MultiEdit" and isinstance(edits, list | tuple):
        return tuple(diff for edit in edits if (diff := _edit(path, edit)) is not None)
    diff = _edit(path, given) if name == "Edit" else None
    if name == "Write" and isinstance(given.get("content"), str):
        diff = Diff(path=path, new_text=str(given["content"]))
    return (diff,) if diff else ()


def _edit(path: str, given: object) -> Diff | None:
    if not isinstance(given, Mapping):
        return None
    old, new = given.get("old_string"), given.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str):
        return None
    return Diff(path=path, new_text=new, old_text=old)


def _block(block: object) -> Content | None:
    if not isinstance(block, Mapping):
        return None
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, Mapping):
        data, kind = source.get("data"), source.get("media_type")
        if isinstance(data, str) and data.endswith(" characters]"):  # of a digest, and not put back
            return _text(f"[a picture: {data[-40:].rpartition('[')[2]}")
        if isinstance(data, str) and isinstance(kind, str):
            return Content(content=Image(data=data, mime_type=kind))
    text = block.get("text")
    return _text(text) if isinstance(text, str) else None


def _text(text: str) -> Content:
    return Content(content=Text(text=text))


# The model's list of what is to be done, as a plan: from `TodoWrite`, or from the task tools that replace it.


_PRIORITY: Final = "medium"  # it has none, and a plan must name one
_CREATE: Final = "TaskCreate"
_UPDATE: Final = "TaskUpdate"


def todo_plan(name: str, given: object) -> Iterator[SessionUpdate]:
    """The whole list, where the call is one that sets it."""
    todos = given.get("todos") if name == TODO and isinstance(given, Mapping) else None
    if isinstance(todos, list | tuple):
        entries = (
            _plan_entry(each.get("content"), each.get("status"))
            for each in todos
            if isinstance(each, Mapping)
        )
        yield Plan(entries=tuple(entries))


class TaskBoard:
    """Tasks are made and changed one by one; a call counts once it has succeeded."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, Mapping[str, object]]] = {}
        self._tasks: dict[str, PlanEntry] = {}

    def called(self, call_id: str, name: str, given: object) -> None:
        if name in (_CREATE, _UPDATE) and isinstance(given, Mapping):
            self._calls[call_id] = (name, given)

    def returned(self, call_id: str, details: object, *, failed: bool) -> Iterator[SessionUpdate]:
        name, given = self._calls.pop(call_id, ("", {}))
        if not name or failed or not isinstance(details, Mapping):
            return
        if name == _CREATE:
            made = details.get("task")
            task = str(made.get("id")) if isinstance(made, Mapping) else ""
            self._tasks[task] = _plan_entry(given.get("subject"), "pending")
        elif not self._change(str(given.get("taskId")), given):
            return
        yield Plan(entries=tuple(self._tasks.values()))

    def _change(self, task: str, given: Mapping[str, object]) -> bool:
        before = self._tasks.get(task)
        if before is None:
            return False
        if given.get("status") == "deleted":
            del self._tasks[task]
        else:
            self._tasks[task] = _plan_entry(
                given.get("subject") or before.content, given.get("status") or before.status
            )
        return True


def _plan_entry(content: object, status: object) -> PlanEntry:
    known = status if isinstance(status, str) and status in PLAN_STATUSES else "pending"
    return PlanEntry(content=str(content or ""), priority=_PRIORITY, status=known)

"""File changes as diffs. Of a file that is updated Codex tells only the hunks, so a diff is of one hunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from legation.agents.codex.items import FileUpdate
from legation.wire.acp.toolcall import Diff, ToolCallLocation, ToolKind

_MOVED = "\n\nMoved to: "  # stands behind the hunks of a file that is moved


def diffs(changes: Iterable[FileUpdate]) -> tuple[Diff, ...]:
    return tuple(diff for change in changes for diff in _diffs(change))


def locations(changes: Iterable[FileUpdate]) -> tuple[ToolCallLocation, ...]:
    """Where a file is moved to as well: a policy must see both."""
    paths = [path for each in changes for path in (each.path, each.kind.move_path) if path]
    return tuple(ToolCallLocation(path=path) for path in dict.fromkeys(paths))


def kind_of(changes: tuple[FileUpdate, ...]) -> ToolKind:
    if changes and all(each.kind.type == "delete" for each in changes):
        return "delete"
    return "move" if any(each.kind.move_path for each in changes) else "edit"


def title_of(changes: tuple[FileUpdate, ...]) -> str:
    return ", ".join(each.path for each in changes) or "Change files"


def _diffs(change: FileUpdate) -> Iterator[Diff]:
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

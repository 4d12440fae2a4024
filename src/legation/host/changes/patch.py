"""What changed in a folder, as values and as a patch that `git apply` takes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Status = Literal["added", "modified", "deleted"]

LINK_MODE: Final = 0o120000

# difflib is quadratic at its worst and cannot be interrupted: longer files are shown as replaced as a whole.
COMPARED_LINES: Final = 10_000
TOLD_NOTES: Final = 5
OURS: Final = "not looked into: Legation's own files"

_PLAIN: Final = {byte: chr(byte) for byte in range(ord(" "), 127)}
_ESCAPES: Final = {
    7: "\\a",
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
    34: '\\"',
    92: "\\\\",
}


@dataclass(frozen=True, slots=True)
class FileChange:
    """`path` is relative to the folder, bytes that are not UTF-8 as `\\xNN`.

    `binary` means that the content is not in the diff: not UTF-8 text, too large, or unreadable.
    """

    path: str
    added: int
    removed: int
    status: Status
    binary: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """`diff` holds the text files only, so that `git apply` always takes it; `files` names every changed file.

    `incomplete` says what was not looked at, or could not be shown.
    """

    diff: str
    files: tuple[FileChange, ...]
    incomplete: str | None


class Side(NamedTuple):
    """A file on one side of a comparison; its mode is git's. `content` is None for what was too large, unreadable or
    Legation's own; `mark` still tells whether it changed."""

    mode: int
    content: bytes | None
    mark: tuple[int, int, int, int]


def told(notes: set[str]) -> str | None:
    """What was left out, in one line of a bounded length."""
    first, more = sorted(notes)[:TOLD_NOTES], len(notes) - TOLD_NOTES
    return "; ".join(first + ([f"and {more} more"] if more > 0 else [])) or None


def shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def as_text(content: bytes | None) -> str | None:
    if content is None or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def count_lines(section: bytes) -> tuple[int, int]:
    """The added and removed lines of one file's section of a patch."""
    _, marker, hunks = section.partition(b"\n@@")
    if not marker:
        return 0, 0
    lines = hunks.split(b"\n")
    return sum(line.startswith(b"+") for line in lines), sum(line.startswith(b"-") for line in lines)


def section(path: bytes, before: Side | None, after: Side | None) -> str | None:
    """One file's part of the patch, or None when a side is not text."""
    if before and after and (before.mode == LINK_MODE) != (after.mode == LINK_MODE):
        gone, new = section(path, before, None), section(path, None, after)
        return None if gone is None or new is None else gone + new
    old = as_text(before.content) if before else ""
    new = as_text(after.content) if after else ""
    if old is None or new is None:
        return None
    hunks = _hunks(_lines(old), _lines(new))
    names = [
        f"--- {_named(b'a/' + path)}\n" if before else "--- /dev/null\n",
        f"+++ {_named(b'b/' + path)}\n" if after else "+++ /dev/null\n",
    ]
    return "".join([*_head(path, before, after), *(names if hunks else ()), *hunks])


def _head(path: bytes, before: Side | None, after: Side | None) -> Iterator[str]:
    yield f"diff --git {_quoted(b'a/' + path)} {_quoted(b'b/' + path)}\n"
    if before and after and before.mode != after.mode:
        yield f"old mode {before.mode:o}\nnew mode {after.mode:o}\n"
    elif after and not before:
        yield f"new file mode {after.mode:o}\n"
    elif before and not after:
        yield f"deleted file mode {before.mode:o}\n"


def _hunks(old: list[str], new: list[str]) -> list[str]:
    if len(old) + len(new) > COMPARED_LINES and old != new:
        whole = f"@@ -{min(1, len(old))},{len(old)} +{min(1, len(new))},{len(new)} @@\n"
        lines = [whole, *("-" + line for line in old), *("+" + line for line in new)]
    else:
        lines = list(difflib.unified_diff(old, new))[2:]
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _lines(text: str) -> list[str]:
    """Lines as git has them: only a line feed ends one."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])


def _named(path: bytes) -> str:
    name = _quoted(path)
    return name + "\t" if " " in name and not name.startswith('"') else name


def _quoted(path: bytes) -> str:
    """A path as git writes it: in C quotes where a reader could be misled."""
    text = as_text(path)
    if text is not None and not any(char < " " or char in '"\\\x7f' for char in text):
        return text
    escaped = _PLAIN | _ESCAPES
    return '"' + "".join(escaped.get(byte, f"\\{byte:03o}") for byte in path) + '"'

"""Unified diffs, as OpenCode shows what it is about to change, turned into the old and the new text of each file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from legation.wire.acp.toolcall import Diff

_NONE: Final = "/dev/null"
_NO_NEWLINE: Final = "\\"


def diffs(text: str) -> tuple[Diff, ...]:
    """Old and new are what the hunks show of the file; without an old side the file is new."""
    return tuple(filter(None, (_diff(lines) for lines in _files(text.splitlines(keepends=True)))))


def _files(lines: list[str]) -> Iterator[list[str]]:
    """A file's part begins with `---`, which stands right before `+++`."""
    starts = [
        at
        for at in range(len(lines) - 1)
        if lines[at].startswith("--- ") and lines[at + 1].startswith("+++ ")
    ]
    for start, end in pairwise([*starts, len(lines)]):
        yield lines[start:end]


def _diff(lines: list[str]) -> Diff | None:
    before, after = (_name(line) for line in lines[:2])
    path = before if after == _NONE else after
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


def _name(line: str) -> str:
    """Behind it there may be a time, after a tab."""
    return line[4:].split("\t")[0].strip()


def _adds_only(line: str) -> bool:
    """`@@ -0,0 +1,3 @@`: there is no old file."""
    return line.startswith("@@ -0,0 ")

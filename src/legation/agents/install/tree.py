"""The files of a package, and one hash over them all: path, size, content and whether it is a program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

_BLOCK = 1024 * 1024


class FileMark(msgspec.Struct, frozen=True, array_like=True):
    """`path` is relative to the package, with slashes."""

    path: str
    size: int
    sha256: str
    program: bool

    def line(self) -> str:
        return f"{'x' if self.program else '-'} {self.sha256} {self.size} {self.path}\n"


def digest(marks: Iterable[FileMark]) -> str:
    whole = hashlib.sha256()
    for mark in sorted(marks, key=lambda each: each.path):
        whole.update(mark.line().encode())
    return whole.hexdigest()


def content(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole.update(block)
    return whole.hexdigest()

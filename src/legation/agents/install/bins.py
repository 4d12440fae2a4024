"""The programs that a package names in its package.json: npm makes them executable, and so do we."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from legation.agents.install.tree import FileMark

PROGRAM_MODE: Final = 0o555
_LISTING: Final = "package.json"
_MAX_LISTING: Final = 4 * 1024 * 1024  # bytes; a longer one names no programs


def make_programs(folder: Path, marks: tuple[FileMark, ...]) -> tuple[FileMark, ...]:
    """`marks` as they are afterwards. Only files of the package itself are touched."""
    named = _named(folder) if any(mark.path == _LISTING for mark in marks) else set()
    done = []
    for mark in marks:
        if mark.path in named and not mark.program:
            (folder / mark.path).chmod(PROGRAM_MODE)
            mark = msgspec.structs.replace(mark, program=True)
        done.append(mark)
    return tuple(done)


def _named(folder: Path) -> set[str]:
    listing = folder / _LISTING
    if listing.stat().st_size > _MAX_LISTING:
        return set()
    try:
        named = msgspec.json.decode(listing.read_bytes(), type=_Listing).bin
    except (msgspec.DecodeError, UnicodeDecodeError):
        return set()
    paths = [named] if isinstance(named, str) else named.values()
    return {PurePosixPath(path).as_posix() for path in paths if isinstance(path, str)}


class _Listing(msgspec.Struct):
    bin: str | dict[str, object] = msgspec.field(default_factory=dict)

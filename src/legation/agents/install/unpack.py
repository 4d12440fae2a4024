"""Unpack one npm tarball into a folder that is new and ours.

INV-1  Only regular files and folders come out of it, below the folder: a link, a device, an absolute path, a `..`
       or a name twice ends the unpacking, and the caller throws everything away.
INV-2  No more files and bytes come out than the lock says, and no more is decompressed than those can need.
INV-3  Nothing in it is run.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.agents.install.bins import PROGRAM_MODE, make_programs
from legation.agents.install.tree import FileMark
from legation.store.datafolder import make_folder

_BLOCK: Final = 1024 * 1024
# What a tar may need around its files: headers with long names, padding, folders, the two empty blocks, padding.
_AROUND_EACH: Final = 4096
_AROUND_ALL: Final = 1024 * 1024
_PROGRAM, _FILE = 0o555, 0o444  # nobody updates them in place: a version is a folder of its own


@dataclass(frozen=True, slots=True)
class Bounds:
    files: int
    size: int


class Malformed(Exception):
    """What is wrong with the tarball."""


class _Bounded:
    """Reads what gzip unpacks, up to a limit: a small file can unpack to any size."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self._source, self._left = source, limit

    def read(self, size: int = -1, /) -> bytes:
        if size < 0 or size > self._left + _BLOCK:
            raise Malformed("it unpacks to more than the lock allows")
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Malformed("it unpacks to more than the lock allows")
        return data


def unpack(tarball: Path, into: Path, bounds: Bounds) -> tuple[FileMark, ...]:
    """`into` is made; what was unpacked, by path. Raises `Malformed`. The first folder of every name is left out, as npm does."""
    limit = bounds.size + bounds.files * _AROUND_EACH + _AROUND_ALL
    make_folder(into.parent)
    into.mkdir(mode=0o700)
    try:
        with gzip.open(tarball) as plain, _tar(_Bounded(plain, limit)) as tar:
            return make_programs(into, _members(tar, into, bounds))
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Malformed(f"it is no whole tarball ({error})") from None


def _tar(source: _Bounded) -> tarfile.TarFile:
    """As a stream: it only ever reads, and never goes back."""
    return tarfile.open(fileobj=source, mode="r|")  # type: ignore[call-overload,no-any-return]


def _members(tar: tarfile.TarFile, into: Path, bounds: Bounds) -> tuple[FileMark, ...]:
    marks: list[FileMark] = []
    left = bounds.size
    for member in tar:
        path = _path(member)
        if member.isdir():
            if path:
                _folder(into, path)
            continue
        if not member.isreg() or not path:
            raise Malformed(f"{member.name!r} is neither file nor folder")
        left -= member.size
        if left < 0 or len(marks) == bounds.files:
            raise Malformed("it holds more than the lock allows")
        marks.append(_file(tar, member, into, path))
    return tuple(sorted(marks, key=lambda mark: mark.path))


def _path(member: tarfile.TarInfo) -> str:
    """Below the package's first folder."""
    parts = member.name.rstrip("/").split("/")
    fine = all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in parts)
    if not fine:
        raise Malformed(f"{member.name!r} is not a path below it")
    return "/".join(parts[1:])


def _folder(into: Path, path: str) -> None:
    try:
        make_folder(into / path)
    except (FileExistsError, NotADirectoryError):
        raise Malformed(f"{path!r} is both a file and a folder") from None


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, path: str) -> FileMark:
    program = bool(member.mode & 0o111)
    if "/" in path:
        _folder(into, path.rpartition("/")[0])
    source = tar.extractfile(member)
    assert source is not None
    try:
        handle = os.open(into / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise Malformed(f"{path!r} is in it twice") from None
    whole, size = hashlib.sha256(), 0
    with os.fdopen(handle, "wb") as file:
        while block := source.read(_BLOCK):
            whole.update(block)
            size += len(block)
            file.write(block)
        os.fchmod(file.fileno(), PROGRAM_MODE if program else _FILE)
    if size != member.size:
        raise Malformed(f"{path!r} is cut off")
    return FileMark(path, size, whole.hexdigest(), program)

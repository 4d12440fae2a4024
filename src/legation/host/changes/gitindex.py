"""Reads a git index as data, and writes a plain one.

A repository's index saves us hashing every file again, but an agent can write it. So git never gets to see
it: the entries that can be believed are taken over into a new index, and nothing else of it. No extension
(split index, fsmonitor, untracked cache, sparse folders), no flag that hides a change (assume-unchanged,
skip-worktree), no submodule, no half-done merge, no path that leads out of the work tree.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from legation.host.changes.repository import Algorithm

_HEADER: Final = struct.Struct(">4sII")
_FLAGS: Final = struct.Struct(">H")
_MODE_AND_SIZE: Final = struct.Struct(">24xI8xI")
_EXTENSION: Final = struct.Struct(">4sI")
_STATUS_BYTES: Final = 40
_EXTENDED: Final = 0x4000
_ASSUMED_OR_UNMERGED: Final = 0xB000
_LONGEST_NAME: Final = 0xFFF
_PREFIXED: Final = 4  # the version whose names share the start of the one before
_FILE_MODES: Final = frozenset({0o100644, 0o100755, 0o120000})


class IndexUnusable(Exception):
    """The index is corrupt, of an unknown version, or only half of a split one."""


class Entry(NamedTuple):
    """`status` is the file's as git packs it."""

    path: bytes
    oid: bytes
    status: bytes

    @property
    def size(self) -> int:
        return int(_MODE_AND_SIZE.unpack(self.status)[1])


class _Record(NamedTuple):
    entry: Entry
    flags: int
    end: int


def believable_entries(data: bytes, algorithm: Algorithm) -> list[Entry]:
    try:
        return [record.entry for record in _records(data, algorithm) if _is_believable(record)]
    except (struct.error, ValueError, IndexError) as error:
        raise IndexUnusable from error


def plain_index(entries: Iterable[Entry], algorithm: Algorithm) -> bytes:
    packed = [_packed(entry) for entry in sorted(entries)]
    body = b"".join([_HEADER.pack(b"DIRC", 2, len(packed)), *packed])
    return body + hashlib.new(algorithm, body).digest()


def is_plain_path(path: bytes) -> bool:
    """Whether git would take the path; it never takes anything called .git, in whatever case."""
    return not any(part in (b"", b".", b"..") or part.lower() == b".git" for part in path.split(b"/"))


def _is_believable(record: _Record) -> bool:
    mode = _MODE_AND_SIZE.unpack(record.entry.status)[0]
    return record.flags == 0 and mode in _FILE_MODES and is_plain_path(record.entry.path)


def _records(data: bytes, algorithm: Algorithm) -> Iterator[_Record]:
    oid_bytes = hashlib.new(algorithm).digest_size
    body = data[:-oid_bytes]
    _check_digest(body, data[-oid_bytes:], algorithm)
    magic, version, count = _HEADER.unpack_from(body)
    if magic != b"DIRC" or version not in (2, 3, _PREFIXED):
        raise IndexUnusable
    offset, path = _HEADER.size, b""
    for _ in range(count):
        record = _record(body, offset, oid_bytes, path if version == _PREFIXED else None)
        offset, path = record.end, record.entry.path
        yield record
    if b"link" in _extensions(body, offset):
        raise IndexUnusable


def _check_digest(body: bytes, digest: bytes, algorithm: Algorithm) -> None:
    # All zeros: git was told not to spend time on it.
    if digest.strip(b"\0") and hashlib.new(algorithm, body).digest() != digest:
        raise IndexUnusable


def _record(body: bytes, start: int, oid_bytes: int, previous: bytes | None) -> _Record:
    offset = start + _STATUS_BYTES + oid_bytes
    (flags,) = _FLAGS.unpack_from(body, offset)
    offset += _FLAGS.size
    hiding = flags & _ASSUMED_OR_UNMERGED
    if flags & _EXTENDED:
        hiding |= _FLAGS.unpack_from(body, offset)[0]
        offset += _FLAGS.size
    kept = b""
    if previous is not None:
        dropped, offset = _varint(body, offset)
        kept = previous[: len(previous) - dropped]
    name_end = body.index(b"\0", offset)
    status = body[start : start + _STATUS_BYTES]
    oid = body[start + _STATUS_BYTES : start + _STATUS_BYTES + oid_bytes]
    end = name_end + 1 if previous is not None else start + _padded(name_end - start)
    return _Record(Entry(kept + body[offset:name_end], oid, status), hiding, end)


def _varint(body: bytes, offset: int) -> tuple[int, int]:
    byte = body[offset]
    value = byte & 127
    while byte & 128:
        offset += 1
        byte = body[offset]
        value = ((value + 1) << 7) + (byte & 127)
    return value, offset + 1


def _padded(length: int) -> int:
    """One to eight zero bytes end a name, up to a multiple of eight."""
    return (length + 8) & ~7


def _extensions(body: bytes, offset: int) -> set[bytes]:
    names = set()
    while offset < len(body):
        name, length = _EXTENSION.unpack_from(body, offset)
        names.add(name)
        offset += _EXTENSION.size + length
    return names


def _packed(entry: Entry) -> bytes:
    head = entry.status + entry.oid + _FLAGS.pack(min(len(entry.path), _LONGEST_NAME)) + entry.path
    return head.ljust(_padded(len(head)), b"\0")

"""A snapshot of a folder in a git work tree: two indexes of our own, compared as trees.

The first index starts from what can be believed of the repository's and is brought up to date with the files; a copy of
it, brought up to date again, is the later side. What git should not read, for its size, because it cannot, or because it
is Legation's own, stands in the index as a stand-in: a small binary blob made of the file's status, so that a change
still shows.

A repository's index saves us hashing every file again, but an agent can write it. So git never gets to see
it: the entries that can be believed are taken over into a new index, and nothing else of it. No extension
(split index, fsmonitor, untracked cache, sparse folders), no flag that hides a change (assume-unchanged,
skip-worktree), no submodule, no half-done merge, no path that leads out of the work tree.

An ignored file is not watched, and neither is the inside of a nested repository.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from legation.host.changes.git import (
    INDEX_BYTES,
    OURS,
    Algorithm,
    FileChange,
    FolderChanges,
    Git,
    GitFailed,
    Repository,
    Scratch,
    Status,
    as_text,
    count_lines,
    read_regular,
    shown,
    told,
    trusted_path,
)
from legation.store.forbidden import ForbiddenPlaces, Looked

# How much of a diff is kept.
DIFF_BYTES: Final = 16 * 1024 * 1024
LARGE_BYTES: Final = 50 * 1024 * 1024
# What one comparison may copy into the temporary folder.
COPIED_BYTES: Final = 1024 * 1024 * 1024

_BEYOND: Final = f"compared by size and time only: files beyond {COPIED_BYTES >> 20} MB in all"
_STATUS: Final[dict[str, Status]] = {"A": "added", "D": "deleted"}
_NO_FILE: Final = "000000"
_HEADER: Final = struct.Struct(">4sII")
_FLAGS: Final = struct.Struct(">H")
_MODE_AND_SIZE: Final = struct.Struct(">24xI8xI")
_STATUS_BYTES: Final = 40
_EXTENDED: Final = 0x4000
_ASSUMED_OR_UNMERGED: Final = 0xB000
_LONGEST_NAME: Final = 0xFFF
_PREFIXED: Final = 4  # the version whose names share the start of the one before
_FILE_MODES: Final = frozenset({0o100644, 0o100755, 0o120000})
UNUSABLE: Final = (struct.error, ValueError, IndexError)


class _Raw(NamedTuple):
    """One changed path as `git diff-tree` lists it."""

    before_mode: str
    before_oid: str
    status: Status
    sections: int  # two of a file that became a link, or the reverse: it is removed and added again
    path: bytes

    @classmethod
    def read(cls, head: bytes, path: bytes) -> _Raw:
        before_mode, _, before_oid, _, letter = head.decode().lstrip(":").split()
        return cls(before_mode, before_oid, _STATUS.get(letter, "modified"), 1 + (letter == "T"), path)


class GitTree:
    @classmethod
    def take(cls, folder: Path, forbidden: ForbiddenPlaces) -> GitTree | None:
        """Return None where git cannot serve: there is none, no repository, or all of the folder is ignored."""
        repository = Repository.around(folder)
        program = shutil.which("git", path=trusted_path(repository.root)) if repository else None
        if repository is None or program is None:
            return None
        scratch = Scratch()
        try:
            tree = cls(Git(program, repository, scratch.path), repository, folder, scratch, forbidden)
            if tree._is_watched():
                return tree
        except (GitFailed, OSError):  # the plain copy may still manage
            pass
        scratch.close()
        return None

    def __init__(
        self, git: Git, repository: Repository, folder: Path, scratch: Scratch, forbidden: ForbiddenPlaces
    ) -> None:
        self._forbidden = forbidden
        self._git = git
        self._root = repository.root
        self._prefix = os.fsencode(folder.relative_to(self._root)) + b"/" if folder != self._root else b""
        self._pathspec = os.fsdecode(self._prefix).rstrip("/") or "."
        self._relative = (f"--relative={os.fsdecode(self._prefix)}",) if self._prefix else ()
        self.close = scratch.close
        self._scratch = scratch  # which goes with what has it
        self._before = scratch.path / "before"
        self._is_seeded = self._seed(repository)
        self._notes = self._update(self._before)

    def changes(self) -> FolderChanges:
        after, before = self._scratch.path / "after", self._scratch.path / "shown"
        shutil.copy2(self._before, after)  # with its time, which tells git what may have changed since
        shutil.copy2(self._before, before)
        notes = self._notes | self._update(after)
        later = self._tree(after)
        listing = ("diff-tree", "-r", "-z", "--raw", "--no-renames", *self._relative)
        pairs = _pairs(self._git.run(*listing, self._tree(before), later))
        raws = [_Raw.read(head, path) for head, path in pairs]
        notes |= self._fetch_originals(before, raws)
        files, diff, cut = self._patch(self._tree(before), later, raws)
        notes |= cut
        return FolderChanges(diff, files, told(notes))

    def _is_watched(self) -> bool:
        if self._is_seeded or not self._prefix:
            return True
        try:
            self._git.run("check-ignore", "-q", "--", f"./{self._pathspec}")
        except GitFailed:  # how it says no
            return True
        return False

    def _seed(self, repository: Repository) -> bool:
        found = read_regular(repository.index, INDEX_BYTES)
        entries: list[IndexEntry] = []
        if found:
            try:
                entries = self._unconverted(believable_entries(found[0], repository.algorithm))
            except (*UNUSABLE, GitFailed):
                entries = []  # then every file is hashed
        self._before.write_bytes(plain_index(entries, repository.algorithm))
        if found:
            # Git distrusts what is as new as its index; a newer time would make it trust too much.
            os.utime(self._before, ns=(found[1].st_mtime_ns, found[1].st_mtime_ns))
        return bool(entries)

    def _unconverted(self, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
        """Leave out files that are not, byte for byte, what the repository has: line ends, filters, LFS."""
        ours = [
            entry for entry in entries if entry.path.startswith(self._prefix) and entry.size <= LARGE_BYTES
        ]
        sizes = self._git.sizes({entry.oid.hex() for entry in ours})
        return [entry for entry in ours if sizes.get(entry.oid.hex()) == entry.size]

    def _update(self, index: Path) -> set[str]:
        """Brings the index up to date with the files; gives back what was left out."""
        gone, present = self._differing(index)
        files = _Sorting(self._forbidden.look())
        root = os.fsencode(self._root) + b"/"
        for path in present:
            files.add(path, root + path, shown(path.removeprefix(self._prefix).rstrip(b"/")))
        edits = [_edit("0", self._git.no_oid, path) for path in [*gone, *files.gone]]
        edits += [_edit(mode, self._git.write_blob(mark), path) for path, mode, mark in files.opaque]
        update = ("update-index", "--add", "--remove", "--replace", "-z")
        self._git.run(*update, "--index-info", index=index, stdin=b"".join(edits))
        readable = b"".join(path + b"\0" for path in files.readable)
        self._git.run(*update, "--stdin", index=index, stdin=readable)
        return files.notes

    def _differing(self, index: Path) -> tuple[list[bytes], list[bytes]]:
        """Paths of the index without their file, and files that are new or perhaps changed."""
        listing = ("diff-files", "-z", "--name-status"), ("ls-files", "-z", "--others", "--exclude-standard")
        known, others = (
            self._git.run("--literal-pathspecs", *each, "--", self._pathspec, index=index) for each in listing
        )
        pairs = _pairs(known)
        gone = [path for letter, path in pairs if letter == b"D"]
        return gone, [path for letter, path in pairs if letter != b"D"] + others.split(b"\0")[:-1]

    def _tree(self, index: Path) -> str:
        return self._git.run("write-tree", "--missing-ok", index=index).decode().strip()

    def _fetch_originals(self, before: Path, raws: list[_Raw]) -> set[str]:
        """Borrows earlier contents that only the repository has; a stand-in takes the place of a lost one."""
        wanted = [raw for raw in raws if raw.before_mode != _NO_FILE and not self._git.has(raw.before_oid)]
        if not wanted:
            return set()
        budget, chosen = COPIED_BYTES, []
        for oid, size in self._git.sizes({raw.before_oid for raw in wanted}).items():
            if size <= min(LARGE_BYTES, budget):
                budget -= size
                chosen.append(oid)
        self._git.borrow(chosen)
        lost = [raw for raw in wanted if not self._git.has(raw.before_oid)]
        marks = [self._git.write_blob(b"\0" + raw.before_oid.encode()) for raw in lost]
        pairs = zip(lost, marks, strict=True)
        edits = [_edit(raw.before_mode, mark, self._prefix + raw.path) for raw, mark in pairs]
        self._git.run("update-index", "-z", "--index-info", index=before, stdin=b"".join(edits))
        return {f"earlier content not to be had: {shown(raw.path)}" for raw in lost}

    def _patch(
        self, before: str, after: str, raws: list[_Raw]
    ) -> tuple[tuple[FileChange, ...], str, set[str]]:
        file = self._scratch.path / "patch"
        quoted = any(as_text(raw.path) is None for raw in raws)
        shape = ("-c", f"core.quotePath={str(quoted).lower()}")
        plain = ("-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        with file.open("wb") as output:
            self._git.run(*shape, "diff-tree", *plain, *self._relative, before, after, output=output)
        whole, is_cut = _sections(file)
        file.unlink()
        sections = iter(whole)
        seen = [_file(raw, list(islice(sections, raw.sections))) for raw in raws]
        notes = {f"diff cut at {DIFF_BYTES >> 20} MB: not every file's lines are in it"} if is_cut else set()
        return tuple(change for change, _ in seen), "".join(text for _, text in seen), notes


def _edit(mode: str, oid: str, path: bytes) -> bytes:
    return f"{mode} {oid}\t".encode() + path + b"\0"


def _pairs(output: bytes) -> list[tuple[bytes, bytes]]:
    fields = output.split(b"\0")[:-1]
    return list(zip(fields[::2], fields[1::2], strict=True))


def _sections(file: Path) -> tuple[list[bytes], bool]:
    """The patch by file, without the one that the limit cuts through."""
    with file.open("rb") as patch:
        data = patch.read(DIFF_BYTES)
        is_cut = bool(patch.read(1))
    # No line of a file's content can begin so: each has a sign before it.
    sections = re.split(rb"^(?=diff --git )", data, flags=re.MULTILINE)[1:]
    return (sections[:-1], True) if is_cut else (sections, False)


def _file(raw: _Raw, sections: list[bytes]) -> tuple[FileChange, str]:
    texts = [None if b"\nBinary files " in section else as_text(section) for section in sections]
    if not texts or None in texts:
        return FileChange(shown(raw.path), 0, 0, raw.status, binary=True), ""
    counts = [count_lines(section) for section in sections]
    added, removed = sum(count[0] for count in counts), sum(count[1] for count in counts)
    text = "".join(text for text in texts if text is not None)
    return FileChange(shown(raw.path), added, removed, raw.status, binary=False), text


class _Sorting:
    """Sorts the files of a work tree: what git may read, what is compared by its status, what is left out."""

    def __init__(self, forbidden: Looked) -> None:
        self._forbidden = forbidden
        self._ours = tuple(os.fsencode(each) + b"/" for each in forbidden.data)
        self._budget = COPIED_BYTES
        self.readable: list[bytes] = []
        self.opaque: list[tuple[bytes, str, bytes]] = []  # with mode and stand-in
        self.gone: list[bytes] = []
        self.notes: set[str] = set()

    def add(self, path: bytes, full: bytes, name: str) -> None:
        if full.startswith(self._ours):
            self.notes.add(OURS)
            return
        if path.endswith(b"/"):
            self.notes.add(f"not looked into: nested repository {name}")
            return
        try:
            status = os.lstat(full)
        except OSError:  # gone while we looked
            return
        is_link = stat.S_ISLNK(status.st_mode)
        if not (is_link or stat.S_ISREG(status.st_mode)):
            self.gone.append(path)  # a folder, pipe, socket or device stands in the place of a file
        elif not _is_plain(path) or (is_link and path.lower().endswith(b".gitmodules")):
            self.notes.add(f"not looked at: {name}, which git does not take")
        elif (reason := self._obstacle(full, status)) is not None:
            mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
            mark = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
            self.opaque.append((path, mode, b"\0%d %d %d %d" % mark))  # the zero byte makes it binary
            self.notes.update([reason] if reason else [])
        else:
            self._budget -= status.st_size
            self.readable.append(path)

    def _obstacle(self, full: bytes, status: os.stat_result) -> str | None:
        """Say why git should not read it: None when it may, and nothing to say of a file that is just large."""
        if self._forbidden.refuses(status):
            return OURS
        if status.st_size > LARGE_BYTES:
            return ""
        if status.st_size > self._budget:
            return _BEYOND
        if not os.access(full, os.R_OK, follow_symlinks=False):
            return "compared by size and time only: files that cannot be read"
        return None


class IndexEntry(NamedTuple):
    """`status` is the file's as git packs it."""

    path: bytes
    oid: bytes
    status: bytes

    @property
    def size(self) -> int:
        return int(_MODE_AND_SIZE.unpack(self.status)[1])


def plain_index(entries: Iterable[IndexEntry], algorithm: Algorithm) -> bytes:
    packed = [_packed(entry) for entry in sorted(entries)]
    body = b"".join([_HEADER.pack(b"DIRC", 2, len(packed)), *packed])
    return body + hashlib.new(algorithm, body).digest()


def _is_plain(path: bytes) -> bool:
    """Tell whether git would take the path; it never takes anything called .git, in whatever case."""
    return not any(part in (b"", b".", b"..") or part.lower() == b".git" for part in path.split(b"/"))


def believable_entries(data: bytes, algorithm: Algorithm) -> Iterator[IndexEntry]:
    """Read them; raises one of `UNUSABLE` for what is corrupt or of an unknown version. Of a split index there are those
    that its other half does not have."""
    oid_bytes = hashlib.new(algorithm).digest_size
    body, digest = data[:-oid_bytes], data[-oid_bytes:]
    # All zeros: git was told not to spend time on it.
    if digest.strip(b"\0") and hashlib.new(algorithm, body).digest() != digest:
        raise ValueError("its digest is another")
    magic, version, count = _HEADER.unpack_from(body)
    if magic != b"DIRC" or version not in (2, 3, _PREFIXED):
        raise ValueError("it is no index, or of an unknown version")
    offset, path = _HEADER.size, b""
    for _ in range(count):
        start, offset = offset, offset + _STATUS_BYTES + oid_bytes
        status, oid = body[start : start + _STATUS_BYTES], body[start + _STATUS_BYTES : offset]
        hiding, offset = _hiding_flags(body, offset)
        kept = b""
        if version == _PREFIXED:
            dropped, offset = _varint(body, offset)
            kept = path[: len(path) - dropped]
        name_end = body.index(b"\0", offset)
        path = kept + body[offset:name_end]
        offset = name_end + 1 if version == _PREFIXED else start + _padded(name_end - start)
        if not hiding and _MODE_AND_SIZE.unpack(status)[0] in _FILE_MODES and _is_plain(path):
            yield IndexEntry(path, oid, status)


def _hiding_flags(body: bytes, offset: int) -> tuple[int, int]:
    """Return those that hide a change, and where they end."""
    (flags,) = _FLAGS.unpack_from(body, offset)
    if not flags & _EXTENDED:
        return flags & _ASSUMED_OR_UNMERGED, offset + _FLAGS.size
    (more,) = _FLAGS.unpack_from(body, offset + _FLAGS.size)
    return flags & _ASSUMED_OR_UNMERGED | more, offset + 2 * _FLAGS.size


def _varint(body: bytes, offset: int) -> tuple[int, int]:
    byte = body[offset]
    value = byte & 127
    while byte & 128:
        offset += 1
        byte = body[offset]
        value = ((value + 1) << 7) + (byte & 127)
    return value, offset + 1


def _padded(length: int) -> int:
    """Pad a name with one to eight zero bytes, up to a multiple of eight."""
    return (length + 8) & ~7


def _packed(entry: IndexEntry) -> bytes:
    head = entry.status + entry.oid + _FLAGS.pack(min(len(entry.path), _LONGEST_NAME)) + entry.path
    return head.ljust(_padded(len(head)), b"\0")

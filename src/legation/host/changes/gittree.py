"""A snapshot of a folder in a git work tree: two indexes of our own, compared as trees.

The first index starts from what can be believed of the repository's (see gitindex.py) and is brought up to
date with the files; a copy of it, brought up to date again, is the later side. What git should not read, for
its size, because it cannot, or because it is Legation's own, stands in the index as a stand-in: a small binary blob made of the file's
status, so that a change still shows.

An ignored file is not watched, and neither is the inside of a nested repository.
"""

from __future__ import annotations

import os
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from legation.host.changes.git import Git, GitFailed
from legation.host.changes.gitindex import Entry, IndexUnusable, believable_entries, plain_index
from legation.host.changes.patch import Changes, FileChange, Status, as_text, count_lines, shown, told
from legation.host.changes.repository import INDEX_BYTES, Repository, find_git, find_repository, read_regular
from legation.host.changes.scratch import Scratch
from legation.host.changes.worktree import COPIED_BYTES, LARGE_BYTES, Sorting
from legation.store.forbidden import ForbiddenPlaces

# How much of a diff is kept.
DIFF_BYTES: Final = 16 * 1024 * 1024

_STATUS: Final[dict[str, Status]] = {"A": "added", "D": "deleted"}
_NO_FILE: Final = "000000"


class _Raw(NamedTuple):
    """One changed path as `git diff-tree` lists it."""

    before_mode: str
    before_oid: str
    letter: str
    path: bytes

    @property
    def status(self) -> Status:
        return _STATUS.get(self.letter, "modified")

    @property
    def sections(self) -> int:
        """A file that became a link, or the reverse, is removed and added again."""
        return 2 if self.letter == "T" else 1


class GitTree:
    @classmethod
    def take(cls, folder: Path, forbidden: ForbiddenPlaces) -> GitTree | None:
        """None where git cannot serve: there is none, no repository, or all of the folder is ignored."""
        repository = find_repository(folder)
        program = find_git(repository.root) if repository else None
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
        self._scratch = scratch
        self._place = scratch.path
        self._before = self._place / "before"
        self._is_seeded = self._seed(repository)
        self._notes = self._update(self._before)

    def close(self) -> None:
        self._scratch.close()

    def changes(self) -> Changes:
        after, before = self._place / "after", self._place / "shown"
        shutil.copy2(self._before, after)  # with its time, which tells git what may have changed since
        shutil.copy2(self._before, before)
        notes = self._notes | self._update(after)
        later = self._tree(after)
        raws = self._compare(self._tree(before), later)
        notes |= self._fetch_originals(before, raws)
        files, diff, cut = self._patch(self._tree(before), later, raws)
        notes |= cut
        return Changes(diff, files, told(notes))

    def _is_watched(self) -> bool:
        if self._is_seeded or not self._prefix:
            return True
        try:
            self._git.run("check-ignore", "-q", "--", f"./{self._pathspec}")
        except GitFailed:  # how it says no
            return True
        return False

    @property
    def _pathspec(self) -> str:
        return os.fsdecode(self._prefix).rstrip("/") or "."

    @property
    def _relative(self) -> list[str]:
        return [f"--relative={os.fsdecode(self._prefix)}"] if self._prefix else []

    def _seed(self, repository: Repository) -> bool:
        found = read_regular(repository.index, INDEX_BYTES)
        entries: list[Entry] = []
        if found:
            try:
                entries = self._unconverted(believable_entries(found[0], repository.algorithm))
            except (IndexUnusable, GitFailed):
                entries = []  # then every file is hashed
        self._before.write_bytes(plain_index(entries, repository.algorithm))
        if found:
            # Git distrusts what is as new as its index; a newer time would make it trust too much.
            os.utime(self._before, ns=(found[1].st_mtime_ns, found[1].st_mtime_ns))
        return bool(entries)

    def _unconverted(self, entries: list[Entry]) -> list[Entry]:
        """Without the files that are not, byte for byte, what the repository has: line ends, filters, LFS."""
        ours = [
            entry for entry in entries if entry.path.startswith(self._prefix) and entry.size <= LARGE_BYTES
        ]
        sizes = self._git.sizes({entry.oid.hex() for entry in ours})
        return [entry for entry in ours if sizes.get(entry.oid.hex()) == entry.size]

    def _update(self, index: Path) -> set[str]:
        """Brings the index up to date with the files; gives back what was left out."""
        gone, present = self._differing(index)
        files = Sorting(self._root, self._name, COPIED_BYTES, gone, self._forbidden.look())
        files.add(present)
        edits = [_edit("0", "0" * self._oid_length, path) for path in files.gone]
        edits += [_edit(mode, self._git.write_blob(text), path) for path, mode, text in files.opaque]
        update = ("update-index", "--add", "--remove", "--replace", "-z")
        self._git.run(*update, "--index-info", index=index, stdin=b"".join(edits))
        self._git.run(
            *update, "--stdin", index=index, stdin=b"".join(path + b"\0" for path in files.readable)
        )
        return files.notes

    @property
    def _oid_length(self) -> int:
        return len(self._git.write_blob(b""))

    def _differing(self, index: Path) -> tuple[list[bytes], list[bytes]]:
        """Paths of the index without their file, and files that are new or perhaps changed."""
        literal, where = ("--literal-pathspecs",), ("--", self._pathspec)
        known = self._git.run(*literal, "diff-files", "-z", "--name-status", *where, index=index).split(
            b"\0"
        )[:-1]
        pairs = list(zip(known[::2], known[1::2], strict=True))
        others = self._git.run(
            *literal, "ls-files", "-z", "--others", "--exclude-standard", *where, index=index
        )
        gone = [path for letter, path in pairs if letter == b"D"]
        return gone, [path for letter, path in pairs if letter != b"D"] + others.split(b"\0")[:-1]

    def _name(self, path: bytes) -> str:
        return shown(path.removeprefix(self._prefix).rstrip(b"/"))

    def _tree(self, index: Path) -> str:
        return self._git.run("write-tree", "--missing-ok", index=index).decode().strip()

    def _compare(self, before: str, after: str) -> list[_Raw]:
        output = self._git.run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", *self._relative, before, after
        )
        fields = output.split(b"\0")[:-1]
        return [_raw(head, path) for head, path in zip(fields[::2], fields[1::2], strict=True)]

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
        edits = [self._lost(raw) for raw in lost]
        self._git.run("update-index", "-z", "--index-info", index=before, stdin=b"".join(edits))
        return {f"earlier content not to be had: {shown(raw.path)}" for raw in lost}

    def _lost(self, raw: _Raw) -> bytes:
        mode = raw.before_mode
        return _edit(mode, self._git.write_blob(b"\0" + raw.before_oid.encode()), self._prefix + raw.path)

    def _patch(
        self, before: str, after: str, raws: list[_Raw]
    ) -> tuple[tuple[FileChange, ...], str, set[str]]:
        file = self._place / "patch"
        quoted = any(as_text(raw.path) is None for raw in raws)
        self._git.run_into(
            file,
            *("-c", f"core.quotePath={str(quoted).lower()}"),
            *("diff-tree", "-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"),
            *(*self._relative, before, after),
        )
        whole, is_cut = _sections(file)
        file.unlink()
        sections = iter(whole)
        seen = [_file(raw, list(islice(sections, raw.sections))) for raw in raws]
        notes = {f"diff cut at {DIFF_BYTES >> 20} MB: not every file's lines are in it"} if is_cut else set()
        return tuple(change for change, _ in seen), "".join(text for _, text in seen), notes


def _edit(mode: str, oid: str, path: bytes) -> bytes:
    return f"{mode} {oid}\t".encode() + path + b"\0"


def _raw(head: bytes, path: bytes) -> _Raw:
    before_mode, _, before_oid, _, letter = head.decode().lstrip(":").split()
    return _Raw(before_mode, before_oid, letter, path)


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

"""Finds the git repository around a folder by looking, without asking git.

Asking git would read the repository's configuration, which an agent can write, and would refuse a folder of
another user. Everything here is read as plain data: bounded, regular files only, no last link followed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Algorithm = Literal["sha1", "sha256"]

# Of a file of the repository's that is read whole; an index of this size has some five million entries.
INDEX_BYTES: Final = 512 * 1024 * 1024
TEXT_BYTES: Final = 1024 * 1024

_SHA256: Final = re.compile(rb"^\s*objectformat\s*=\s*\"?sha256\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repository:
    """`root` is the top of the work tree."""

    root: Path
    index: Path
    objects: Path
    exclude: Path
    algorithm: Algorithm


def find_repository(folder: Path) -> Repository | None:
    for root in (folder, *folder.parents):
        if os.path.lexists(root / ".git"):
            return _repository(root)
    return None


def find_git(root: Path) -> str | None:
    """The git on PATH, but never one inside the work tree: an agent could have put it there."""
    return shutil.which("git", path=trusted_path(root))


def trusted_path(root: Path) -> str:
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if _is_outside(entry, root))


def read_regular(path: Path, limit: int, *, follow: bool = False) -> tuple[bytes, os.stat_result] | None:
    """A regular file's content and status; None for what is missing, special, a link, or over the limit."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            return file.read(limit), status
    except OSError:
        return None


def _is_outside(entry: str, root: Path) -> bool:
    # A relative entry would be looked up in the work tree.
    return Path(entry).is_absolute() and not Path(entry).resolve().is_relative_to(root)


def _repository(root: Path) -> Repository | None:
    own = _git_folder(root)
    if own is None or not (own / "HEAD").is_file():
        return None
    shared = _named_folder(own / "commondir", own) or own
    if not (shared / "objects").is_dir() or not (shared / "refs").is_dir():
        return None
    return Repository(
        root=root,
        index=own / "index",
        objects=shared / "objects",
        exclude=shared / "info" / "exclude",
        algorithm=_algorithm(shared),
    )


def _git_folder(root: Path) -> Path | None:
    """`.git` itself, or where it points in a linked work tree or a submodule."""
    own = root / ".git"
    return own if own.is_dir() else _named_folder(own, root, b"gitdir:")


def _named_folder(file: Path, base: Path, label: bytes = b"") -> Path | None:
    found = read_regular(file, TEXT_BYTES)
    if found is None or not found[0].startswith(label) or b"\0" in found[0]:
        return None
    folder = base / os.fsdecode(found[0][len(label) :].strip())
    return folder if folder.is_dir() else None


def _algorithm(shared: Path) -> Algorithm:
    config = read_regular(shared / "config", TEXT_BYTES)
    return "sha256" if config and _SHA256.search(config[0]) else "sha1"

"""The folders whose agent configuration counts: hooks, allow rules, MCP servers and plug-ins that a repository brings.

Per workspace, in one small file of the data folder: folders are a machine's, not a database's.

INV-U1  A folder is trusted by its real path: one that a link out of a trusted folder leads to is not.
INV-U2  What is beneath a trusted folder is trusted. A folder in a repository is only trusted with that repository's
        root, for agents read the configuration there too.
INV-U3  Another folder in a trusted one's place is not trusted: the inode must be the one that was trusted. The device
        is not compared: on some file systems its number is another after each start of the machine.
INV-U4  Nothing of Legation's own data is trusted, nor what holds it: agents' homes and work folders lie there.
INV-U5  A file that cannot be understood trusts nothing: `ConfigInvalid` to whoever asks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from legation.clock import new_id
from legation.errors import ConfigInvalid, Forbidden, InvalidParams, NotFound, TooLarge
from legation.store import files

FOLDER: Final = "trust"  # of the data folder
VERSION: Final = 1
MOST: Final = 1000  # folders of one workspace
# Of a repository: without one of them git takes it for none, and looks further up.
_REPOSITORY: Final = ("HEAD", "objects", "refs")
_LARGEST: Final = 8 << 20  # bytes: so many, with the longest paths that there are

State = Literal["trusted", "replaced", "gone"]


class TrustedFolder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path` is real and absolute; `by` is who trusted it, `at` when, in ms."""

    id: str
    path: str
    inode: int
    by: str
    at: int

    @property
    def state(self) -> State:
        """`replaced`: another folder is in its place, and counts for nothing."""
        inode = _inode(self.path)
        if inode is None:
            return "gone"
        return "trusted" if inode == self.inode else "replaced"


class _TrustFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    folders: tuple[TrustedFolder, ...]


class TrustedFolders:
    """Reads the file whenever asked, so that what another process changed counts at once. Everything here blocks."""

    def __init__(self, data_dir: Path, workspace: str) -> None:
        self._data = os.path.realpath(data_dir)
        self._path = data_dir / FOLDER / f"{workspace}.json"

    def all(self) -> tuple[TrustedFolder, ...]:
        """By path."""
        try:
            content = files.read_private(self._path, _LARGEST)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        try:
            file = msgspec.json.decode(content, type=_TrustFile)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ConfigInvalid(
                f"cannot use {self._path}: it is no list of trusted folders; remove it, and trust them again"
            ) from None
        if file.version != VERSION:
            raise ConfigInvalid(
                f"cannot use {self._path}: its version is {file.version}, this Legation reads {VERSION}; use a newer one"
            )
        return file.folders

    def trusts(self, folder: str) -> bool:
        trusted = [each for each in self.all() if each.state == "trusted"]
        if not trusted:
            return False
        real = os.path.realpath(folder)
        if self._is_ours(real):
            return False
        around = repository_of(Path(real)) or real
        return any(_beneath(around, each.path) for each in trusted)

    def add(self, new: TrustedFolder) -> TrustedFolder:
        """Trust a folder that `checked` made. One that is trusted already stays as it is."""
        with files.sole_writer(self._path):
            others = []
            for each in self.all():
                if each.path != new.path:
                    others.append(each)
                elif each.inode == new.inode:
                    return each
            if len(others) >= MOST:
                raise TooLarge(f"cannot trust more than {MOST} folders; remove some, or trust one above them")
            self._write([*others, new])
        return new

    def checked(self, folder: str, *, by: str, now_ms: int) -> TrustedFolder:
        """The folder as it is now, under its real path, for `add`."""
        real = os.path.realpath(folder)
        try:
            real.encode()
        except UnicodeEncodeError:
            raise InvalidParams("cannot trust a folder whose path is not UTF-8 text; rename it") from None
        inode = _inode(real)
        if inode is None:
            raise NotFound(f"cannot trust {real}: there is no such folder; check the path")
        if self._is_ours(real) or _beneath(self._data, real):
            raise Forbidden(f"cannot trust {real}: Legation's own data is there; trust a project's folder")
        root = repository_of(Path(real))
        if root not in (None, Path(real)):
            raise InvalidParams(
                f"cannot trust {real} alone: agents also read the configuration of the repository that it is in; "
                f"trust {root}"
            )
        return TrustedFolder(id=new_id("trf", now_ms=now_ms), path=real, inode=inode, by=by, at=now_ms)

    def remove(self, id_: str) -> TrustedFolder:
        with files.sole_writer(self._path):
            folders = self.all()
            removed = next((each for each in folders if each.id == id_), None)
            if removed is None:
                raise NotFound("cannot find the trusted folder; list those that there are")
            self._write([each for each in folders if each is not removed])
            return removed

    def _write(self, folders: list[TrustedFolder]) -> None:
        file = _TrustFile(VERSION, tuple(sorted(folders, key=lambda each: each.path)))
        files.replace_private(self._path, msgspec.json.format(msgspec.json.encode(file)) + b"\n")

    def _is_ours(self, real: str) -> bool:
        return _beneath(real, self._data)


def repository_of(real: Path) -> Path | None:
    """The root of the repository that a folder is in. What only looks like one counts too, if there is no real one
    below it: agents do not agree on what is one."""
    root = None
    for each in (real, *real.parents):
        if is_repository_root(each):
            return each
        if os.path.lexists(each / ".git"):
            root = each
    return root


def is_repository_root(folder: Path) -> bool:
    git = folder / ".git"
    return git.is_file() or all((git / part).exists() for part in _REPOSITORY)


def _beneath(path: str | Path, folder: str) -> bool:
    """Or the folder itself. Both are real paths."""
    return Path(path).is_relative_to(folder)


def _inode(path: str) -> int | None:
    """The inode of a folder; None where there is none."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)

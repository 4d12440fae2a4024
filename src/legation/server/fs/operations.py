"""Operations on confined files: list, read, write, delete, move. They block: call them off the loop, one at a time.

Nothing is opened but folders and regular files. Links are removed and moved, never followed.

INV-F4  Whoever looks at a path that is written sees what was there before or all that was sent, never a part: on a full
        disk, a cut connection or two writers at once. What else has a hard link to the old file keeps the old file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from legation.errors import Conflict, Forbidden, InvalidParams, StorageFailed, TooLarge
from legation.server.fs.paths import ConfinedEntry, Confinement, shown, translate_errors, walk
from legation.store.datafolder import new_mode
from legation.store.files import CREATE, READ, open_below
from legation.store.forbidden import ForbiddenPlaces, Looked, identity
from legation.wire.api.fs import EntryType, FsEntry, FsStat

MOST_ENTRIES: Final = 100_000  # of one folder: the answer is one array, kept in memory
PIECE: Final = 256 * 1024  # bytes for each trip to a thread
DEEPEST: Final = 128  # folders in folders, each of which is held open while what is in it goes
BATCH: Final = 1000  # names read at a time
VAIN_PASSES: Final = 20  # over a folder in which somebody replaces all that we are about to delete

_REPLACED: Final = (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENOTEMPTY)
_NO_REPLACE: Final = 1  # RENAME_NOREPLACE of renameat2
_NOT_KNOWN: Final = (errno.ENOSYS, errno.EINVAL)  # of a kernel or file system without it


def entries(confinement: Confinement, path: str) -> list[FsEntry]:
    """List a folder in the order of names. What is Legation's own is left out."""
    with translate_errors("list", path), walk(confinement, path) as entry:
        if not stat.S_ISDIR(entry.look().st_mode):
            raise Conflict(f"cannot list {shown(path)}: it is not a folder; read the file")
        at = entry.open_folder()
        try:
            found = _children(at, printable(entry.path), entry.forbidden)
        finally:
            os.close(at)
    return sorted(found, key=lambda entry: entry.name)


def describe(confinement: Confinement, path: str) -> FsStat:
    """Describe a path. Links are followed where they lead to what the caller may reach."""
    with translate_errors("look at", path), walk(confinement, path) as entry:
        status = entry.look()
        return FsStat(
            path=printable(entry.path), entry_type=_kind(status), size=status.st_size, modified=_time(status)
        )


def folder(confinement: Confinement, path: str) -> Path:
    """Find the folder that a path names, without links: what a session may work in, or take skills from."""
    with translate_errors("use", path), walk(confinement, path) as entry:
        if not stat.S_ISDIR(entry.look().st_mode):
            raise Conflict(f"cannot use {shown(path)}: it is not a folder; name one")
        os.close(entry.open_folder())  # may it be entered at all
        return Path(entry.path)


def printable(path: str) -> str:
    """Make it what JSON can have: bytes that are not UTF-8 become U+FFFD, and such a name cannot be sent back."""
    return os.fsencode(path).decode("utf-8", "replace")


def _children(at: int, folder: str, forbidden: ForbiddenPlaces) -> list[FsEntry]:
    found: list[FsEntry] = []
    own = forbidden.look().identities
    with os.scandir(at) as there:
        for child in there:
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = child.stat(follow_symlinks=False)
                if (status.st_dev, status.st_ino) not in own:
                    found.append(_entry(folder, child.name, status))
            if len(found) > MOST_ENTRIES:
                raise TooLarge(
                    f"cannot list a folder of more than {MOST_ENTRIES} entries; list those inside it"
                )
    return found


def _entry(folder: str, name: str, status: os.stat_result) -> FsEntry:
    said = printable(name)
    return FsEntry(
        name=said,
        path=f"{folder.rstrip('/')}/{said}",
        entry_type=_kind(status),
        size=status.st_size,
        modified=_time(status),
    )


def _kind(status: os.stat_result) -> EntryType:
    return "directory" if stat.S_ISDIR(status.st_mode) else "file"


def _time(status: os.stat_result) -> str | None:
    """None for a time that no calendar has: a file may claim any."""
    with suppress(ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(status.st_mtime_ns // 1_000_000_000, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{status.st_mtime_ns // 1_000_000 % 1000:03}Z"
    return None


class RegularFile:
    """A file being read. `size` is what it had when it was opened: as much of it is read, and no more."""

    def __init__(self, confinement: Confinement, path: str) -> None:
        self._path = path
        self._fd = -1
        with translate_errors("read", path), walk(confinement, path) as entry:
            must_be_regular(entry.look(), path)  # before opening: to open a device is to use it
            self._fd = os.open(entry.name, READ | os.O_NOCTTY, dir_fd=entry.at)
            try:
                self._left = self.size = self._size(entry)
            except BaseException:
                self.close()
                raise

    def read(self) -> bytes:
        """Read the next piece: nothing at its end, and when it is closed."""
        if self._fd < 0 or not self._left:
            return b""
        with translate_errors("read", self._path):
            piece = os.read(self._fd, min(PIECE, self._left))
        if not piece:
            raise StorageFailed(
                f"cannot read the rest of {shown(self._path)}: it became shorter; read it again"
            )
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # whoever was cancelled while it was opened never had it

    def _size(self, entry: ConfinedEntry) -> int:
        status = entry.forbidden.check_open(self._fd)
        must_be_regular(status, self._path)
        return status.st_size


def must_be_regular(status: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Conflict(
            f"cannot use {shown(path)}: it is not a regular file but a folder, a pipe, a socket or a device; "
            "name a file"
        )


def new_name(ending: str) -> str:
    return f".legation-{secrets.token_hex(8)}.{ending}"


class AtomicFile:
    """A file being written, under a name of its own beside its place, which it takes when it is whole (INV-F4).

    `close` it in any case: where it was not placed, nothing is left of it."""

    def __init__(self, confinement: Confinement, path: str) -> None:
        self._confinement = confinement
        self._path = path
        self._name = new_name("part")
        self._at = self._fd = -1
        self.bytes_written = 0

    def start(self, mode: int = 0o666) -> None:
        """Begin it. `mode` is what a new file gets, less the umask; one that is replaced hands on its own."""
        with translate_errors("write", self._path), walk(self._confinement, self._path, make=True) as entry:
            there = _replaceable(entry, self._path)
            self._at = os.dup(entry.at)
            self._fd = os.open(self._name, CREATE, mode if there is None else 0o600, dir_fd=self._at)

    def write(self, block: bytes | memoryview) -> None:
        view = memoryview(block)
        with translate_errors("write", self._path):
            while view:
                count = os.write(self._fd, view)
                self.bytes_written += count
                view = view[count:]

    def place(self, *, durable: bool = True, modified: int | None = None) -> str:
        """Let it take its place; return the path, without links."""
        # The way is walked again: in the time of an upload its folder may have been moved to where nobody may write.
        with translate_errors("write", self._path), walk(self._confinement, self._path) as entry:
            if not os.path.samestat(os.fstat(entry.at), os.fstat(self._at)):
                raise Conflict(
                    f"cannot write {shown(self._path)}: its folder was replaced meanwhile; write it again"
                )
            there = _replaceable(entry, self._path)
            if there is not None:
                self._take_over(there)
            if modified is not None:
                os.utime(self._fd, (modified, modified))
            if durable:
                os.fsync(self._fd)
            os.rename(self._name, entry.name, src_dir_fd=entry.at, dst_dir_fd=entry.at)
            self._name = ""
            if durable:
                os.fsync(entry.at)
            return entry.path

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            with suppress(OSError):
                if self._name:
                    os.unlink(self._name, dir_fd=self._at)
        if self._at >= 0:
            os.close(self._at)
        self._at = self._fd = -1

    def _take_over(self, there: os.stat_result) -> None:
        with suppress(OSError):  # only root can give a file away
            os.fchown(self._fd, there.st_uid, there.st_gid)
        os.fchmod(self._fd, stat.S_IMODE(there.st_mode) & 0o777)  # no new program may run as another user


def _replaceable(entry: ConfinedEntry, path: str) -> os.stat_result | None:
    there = entry.look_if_there()
    if there is not None:
        must_be_regular(there, path)
    return there


def remove(confinement: Confinement, path: str, *, recursive: bool) -> str:
    """Delete a path, and return it without links. A folder with something in it goes only if `recursive`."""
    with translate_errors("delete", path), walk(confinement, path, follow=False) as entry:
        status = check_removable(confinement, entry)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(entry.name, dir_fd=entry.at)
        elif recursive:
            remove_tree(entry.at, entry.name, status.st_dev, confinement.forbidden.look())
        else:
            os.rmdir(entry.name, dir_fd=entry.at)
        return entry.path


def check_removable(confinement: Confinement, entry: ConfinedEntry) -> os.stat_result:
    """Refuse what may not be moved or deleted at all; return what it is."""
    if confinement.is_folder_itself(entry.parts):
        raise Forbidden(
            f"cannot move or delete {shown(entry.path)}: it is an allowed folder itself; name what is in it"
        )
    status = entry.look()
    if stat.S_ISDIR(status.st_mode):
        confinement.forbidden.check_tree(status)
    else:
        confinement.forbidden.check_above(entry.parts)  # it may be a link on the way to one of ours
    return status


def remove_tree(at: int, name: str, device: int, forbidden: Looked, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise Conflict(
            f"cannot delete folders that are nested more than {DEEPEST} deep; delete the innermost first"
        )
    below = open_below(at, name)
    try:
        status = os.fstat(below)
        forbidden.check(status)
        if status.st_dev != device:
            raise OSError(errno.EXDEV, "another file system is mounted in it")
        _empty(below, device, forbidden, depth)
    finally:
        os.close(below)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=at)


def _empty(at: int, device: int, forbidden: Looked, depth: int) -> None:
    vain = 0
    while (names := _some_names(at)) and vain < VAIN_PASSES:
        gone = [_remove_one(at, name, is_folder, device, forbidden, depth) for name, is_folder in names]
        vain = 0 if any(gone) else vain + 1


def _remove_one(at: int, name: str, is_folder: bool, device: int, forbidden: Looked, depth: int) -> bool:
    """Remove one; False if it was replaced since it was listed, a folder by a link or the other way: then look again."""
    try:
        if is_folder:
            remove_tree(at, name, device, forbidden, depth + 1)
        else:
            os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _REPLACED:
            raise
        return False
    return True


def _some_names(at: int) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    with os.scandir(at) as entries:
        for entry in entries:
            found.append((entry.name, entry.is_dir(follow_symlinks=False)))
            if len(found) == BATCH:
                break
    return found


def make_folder(confinement: Confinement, path: str) -> str:
    """Make a folder with those above it. One that is there already is fine."""
    with translate_errors("make", path), walk(confinement, path, make=True) as entry:
        confinement.forbidden.check_new_folder(entry.parts)
        with suppress(FileExistsError):
            os.mkdir(entry.name, new_mode(entry.at), dir_fd=entry.at)
        if not stat.S_ISDIR(entry.look().st_mode):
            raise Conflict(f"cannot make {shown(path)}: a file stands there; choose another name")
        return entry.path


def move(confinement: Confinement, source: str, target: str, *, overwrite: bool) -> tuple[str, str]:
    """Move; return both paths, without links on the way. A link is moved itself, not what it leads to."""
    with translate_errors("move", source), walk(confinement, source, follow=False) as here:
        moved = check_removable(confinement, here)
        with translate_errors("move to", target), walk(confinement, target, follow=False, make=True) as there:
            confinement.forbidden.check_above(there.parts)
            if stat.S_ISDIR(moved.st_mode):
                confinement.forbidden.check_new_folder(there.parts)
            if _inside(here, there) or _inside(there, here):
                raise InvalidParams(
                    "cannot move a folder into itself or onto one above it; choose another place"
                )
            if overwrite:
                _replace(confinement, here, there, moved)
            elif not _rename_to_nothing(here, there):
                raise Conflict(
                    f"cannot move to {shown(target)}: something stands there; choose another name, or send overwrite"
                )
            return here.path, there.path


def _inside(one: ConfinedEntry, other: ConfinedEntry) -> bool:
    return len(one.parts) < len(other.parts) and other.parts[: len(one.parts)] == one.parts


def _rename_to_nothing(here: ConfinedEntry, there: ConfinedEntry) -> bool:
    """Rename; False if something stands there."""
    if (rename := _renameat2()) is not None:
        failed = rename(here.at, os.fsencode(here.name), there.at, os.fsencode(there.name), _NO_REPLACE)
        number = ctypes.get_errno() if failed else 0
        if number in (0, errno.EEXIST):
            return not number
        if number not in _NOT_KNOWN:
            raise OSError(number, os.strerror(number))
    if there.look_if_there() is not None:
        return False
    os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)
    return True


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    """Find the one call that never replaces anything; Python has no name for it."""
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _replace(
    confinement: Confinement, here: ConfinedEntry, there: ConfinedEntry, moved: os.stat_result
) -> None:
    """Replace a file in one step. A folder is put aside first, and deleted when all went well."""
    old = there.look_if_there()
    if old is not None:
        check_removable(confinement, there)
        if stat.S_ISDIR(old.st_mode) or stat.S_ISDIR(moved.st_mode):
            if identity(old) != identity(moved):
                _swap(confinement, here, there, old)
            return
    os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)


def _swap(confinement: Confinement, here: ConfinedEntry, there: ConfinedEntry, old: os.stat_result) -> None:
    aside = new_name("old")
    os.rename(there.name, aside, src_dir_fd=there.at, dst_dir_fd=there.at)
    try:
        os.rename(here.name, there.name, src_dir_fd=here.at, dst_dir_fd=there.at)
    except OSError:
        os.rename(aside, there.name, src_dir_fd=there.at, dst_dir_fd=there.at)
        raise
    if stat.S_ISDIR(old.st_mode):
        remove_tree(there.at, aside, old.st_dev, confinement.forbidden.look())
    else:
        os.unlink(aside, dir_fd=there.at)

"""`keys.json`: the keys of an installation that was given none, readable by its owner alone."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from legation.errors import ConfigInvalid, StorageFailed
from legation.secret import Secret
from legation.store.keys import BadKey, Key, KeyRing, Keys, new_key_text, read_key, ring_of
from legation.store.linefile import sync_folder, write_all

VERSION: Final = 1
# Another process makes or rotates the file: the time of a few small writes on a slow disk.
TURN_LIMIT: Final = 10.0
_TURN_PAUSE: Final = 0.01
_LARGEST: Final = 64 * 1024  # bytes; a ring of a thousand keys

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up
_MAKE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    vault: list[str]  # the current one first
    pepper: str
    cookie: str


def open_file(path: Path) -> Keys:
    """The keys in the file; it is made if there is none."""
    try:
        return _keys(path, _read(path))
    except FileNotFoundError:
        with _alone(path):
            try:
                return _keys(path, _read(path))  # another was faster
            except FileNotFoundError:
                file = _File(VERSION, [new_key_text()], new_key_text(), new_key_text())
                _write(path, file)
                return _keys(path, file)


def rotate_file(path: Path) -> Key:
    """Puts a new current vault key before the others; seal again what the older ones sealed, then drop them."""
    with _alone(path):
        file = _existing(path)
        file = msgspec.structs.replace(file, vault=[new_key_text(), *file.vault])
        _write(path, file)
        return _keys(path, file).vault.current


def drop_older(path: Path) -> tuple[str, ...]:
    """The ids of the keys that are gone now; what is still sealed with one of them can never be opened."""
    with _alone(path):
        file = _existing(path)
        older = _keys(path, file).vault.older
        if older:
            _write(path, msgspec.structs.replace(file, vault=file.vault[:1]))
        return tuple(key.id for key in older)


def _existing(path: Path) -> _File:
    try:
        file = _read(path)
    except FileNotFoundError:
        raise ConfigInvalid(
            f"cannot rotate {path}: it does not exist; keys from settings are rotated by changing the settings"
        ) from None
    _keys(path, file)
    return file


def _keys(path: Path, file: _File) -> Keys:
    place = "vault"
    try:
        vault: KeyRing = ring_of(file.vault)
        place = "pepper"
        pepper: Secret = read_key(file.pepper, "token-pepper")
        place = "cookie"
        cookie: Secret = read_key(file.cookie, "cookie-key")
    except BadKey as fault:
        raise ConfigInvalid(
            f"cannot use {path}: {place} {fault}, or restore the file from a backup"
        ) from None
    return Keys.of(vault, pepper, cookie)


def _read(path: Path) -> _File:
    text = _text(path)
    try:
        file = msgspec.json.decode(text, type=_File)
    except msgspec.DecodeError:  # its text stays here: it is made from the file
        raise ConfigInvalid(
            f"cannot use {path}: it is not a file of keys; restore it from a backup"
        ) from None
    if file.version != VERSION:
        raise ConfigInvalid(
            f"cannot use {path}: its version is {file.version}, this Legation reads {VERSION}; use a newer one"
        )
    return file


def _text(path: Path) -> bytes:
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "it is a link" if path.is_symlink() else error.strerror
        raise ConfigInvalid(
            f"cannot use {path}: {reason}; make it a file that only its owner can read"
        ) from error
    try:
        _check(path, os.fstat(fd))
        return os.read(fd, _LARGEST)
    finally:
        os.close(fd)


def _check(path: Path, status: os.stat_result) -> None:
    """Of the open file, not of the path: that may be another one by now."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigInvalid(f"cannot use {path}: it is not a file; remove it, or give the keys as settings")
    if status.st_uid != os.geteuid():
        raise ConfigInvalid(
            f"cannot use {path}: it belongs to user {status.st_uid}, not to {os.geteuid()}; "
            "run Legation as its owner, or give it to this user with chown"
        )
    if status.st_mode & 0o077:
        raise ConfigInvalid(
            f"cannot use {path}: others can read or change it (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run `chmod 600 {path}`, and rotate the keys if somebody did"
        )
    if status.st_size > _LARGEST:
        raise ConfigInvalid(f"cannot use {path}: it is too long for a file of keys; restore it from a backup")


def _write(path: Path, file: _File) -> None:
    """Only while alone: a file of the temporary name is what a crash left."""
    temporary = path.with_name(path.name + ".new")
    with _told_as_storage(path):
        with suppress(FileNotFoundError):
            temporary.unlink()
        fd = os.open(temporary, _MAKE, 0o600)
        try:
            os.fchmod(fd, 0o600)  # whatever the umask took or a folder's default gave
            write_all(fd, msgspec.json.format(msgspec.json.encode(file)) + b"\n", 0)
            os.fsync(fd)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)
        sync_folder(path.parent)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time makes or changes the file; the lock is on the folder and dies with its process."""
    with _told_as_storage(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take_turn(fd, path)
        yield
    finally:
        os.close(fd)


def _take_turn(fd: int, path: Path) -> None:
    deadline = time.monotonic() + TURN_LIMIT
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageFailed(
                    f"cannot change {path}: another process is doing so; try again when it is done"
                ) from None
            time.sleep(_TURN_PAUSE)


@contextmanager
def _told_as_storage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageFailed(
            f"cannot write {path}: {error.strerror}; check the folder and its disk"
        ) from error

"""`keys.json`: the keys of an installation that was given none, readable by its owner alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import msgspec

from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.store import ownfile
from legation.store.keys import BadKey, Key, KeyRing, Keys, new_key_text, read_key, ring_of

VERSION: Final = 1
_LARGEST: Final = 64 * 1024  # bytes; a ring of a thousand keys

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not hold us up


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
        with ownfile.alone(path):
            try:
                return _keys(path, _read(path))  # another was faster
            except FileNotFoundError:
                file = _File(VERSION, [new_key_text()], new_key_text(), new_key_text())
                _write(path, file)
                return _keys(path, file)


def rotate_file(path: Path) -> Key:
    """Puts a new current vault key before the others; seal again what the older ones sealed, then drop them."""
    with ownfile.alone(path):
        file = _existing(path)
        file = msgspec.structs.replace(file, vault=[new_key_text(), *file.vault])
        _write(path, file)
        return _keys(path, file).vault.current


def renew_file(path: Path) -> None:
    """As `rotate_file`, with a new cookie key: every sign-in and every signed link ends. The pepper stays, for with another
    no token would be known; by itself it opens nothing."""
    with ownfile.alone(path):
        file = _existing(path)
        _write(
            path, msgspec.structs.replace(file, vault=[new_key_text(), *file.vault], cookie=new_key_text())
        )


def drop_older(path: Path) -> tuple[str, ...]:
    """The ids of the keys that are gone now; what is still sealed with one of them can never be opened."""
    with ownfile.alone(path):
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
    """Only while alone."""
    ownfile.replace(path, msgspec.json.format(msgspec.json.encode(file)) + b"\n")

"""A copy of a data folder as one tar: the databases, the blobs, recorded sessions, what the owner wrote (agents, policies,
tools), wherever it is, and, if asked, the keys.

INV-A1  Each database in it is one consistent state, taken while others write.
INV-A2  The manifest, with a digest of every file, comes last: a copy that broke off has none and is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from legation.errors import StorageFailed
from legation.store.database import migrations
from legation.store.datafolder import BLOBS, CONFIG, COPIES, DATABASE, EVENTS, KEYS, SESSIONS

FORMAT: Final = 2
FORMATS: Final = (1, 2)  # the first had nothing that the owner wrote
MANIFEST: Final = "manifest.json"
DATABASES: Final = (DATABASE, EVENTS)
FOLDERS: Final = (BLOBS, SESSIONS)
Written: TypeAlias = tuple[str, Path]
"""A file that the owner wrote: its name in the copy, below `config/`, and where it is."""
_PIECE: Final = 256 * 1024


class File(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    format: int
    made_at: int
    legation: str
    schema: int
    files: dict[str, File]
    places: dict[str, str] = {}  # of those in `config/` where they were, relative if in the data folder


async def archive(
    folder: Path, *, with_keys: bool, made_at: int, legation: str, written: Sequence[Written] = ()
) -> AsyncGenerator[bytes]:
    """The tar, piece by piece; a thread makes it and waits for whoever reads."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    outcome: list[BaseException] = []

    def make() -> None:
        try:
            with os.fdopen(writing, "wb") as out:
                _write(folder, out, with_keys=with_keys, made_at=made_at, legation=legation, written=written)
        except BrokenPipeError:
            pass  # the reader went away
        except (OSError, sqlite3.Error, tarfile.TarError) as error:
            outcome.append(error)

    maker = threading.Thread(target=make, name="legation-backup", daemon=True)
    maker.start()
    try:
        while piece := await _read(reading):
            yield piece
    finally:
        os.close(reading)  # ends the maker, too
        await asyncio.shield(asyncio.to_thread(maker.join))
    if outcome:
        raise StorageFailed(f"cannot back up {folder}: {outcome[0]}; free some space there") from outcome[0]


async def _read(descriptor: int) -> bytes:
    """The next piece; empty at the end. The descriptor stays the caller's: no transport closes it."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, _PIECE)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)


def _write(
    folder: Path, out: BinaryIO, *, with_keys: bool, made_at: int, legation: str, written: Sequence[Written]
) -> None:
    files: dict[str, File] = {}
    places: dict[str, str] = {}
    copies = Path(tempfile.mkdtemp(prefix=COPIES, dir=folder))
    try:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name, path in _members(folder, copies, with_keys=with_keys):
                if added := _add(tar, name, path, made_at):
                    files[name] = added
            for name, path in written:
                member = f"{CONFIG}/{name}"
                # The owner named it, by a link as well as not.
                if added := _add(tar, member, Path(os.path.realpath(path)), made_at):
                    files[member], places[member] = added, _place(path, folder)
            manifest = Manifest(FORMAT, made_at, legation, migrations.newest(), files, places)
            text = msgspec.json.encode(manifest)
            tar.addfile(_info(MANIFEST, len(text), made_at), io.BytesIO(text))
    finally:
        shutil.rmtree(copies, ignore_errors=True)


def _place(path: Path, folder: Path) -> str:
    path, folder = Path(os.path.abspath(path)), Path(os.path.abspath(folder))  # noqa: PTH100 - links are kept
    place = path.relative_to(folder) if path.is_relative_to(folder) else path
    return str(place).encode(errors="replace").decode()


def forget_broken_backups(folder: Path) -> None:
    """What a killed server left of one: copies of what may have been destroyed since. Only by the folder's owner."""
    for copies in folder.glob(f"{COPIES}*"):
        shutil.rmtree(copies, ignore_errors=True)


def _members(folder: Path, copies: Path, *, with_keys: bool) -> Iterator[tuple[str, Path]]:
    keys = _text(folder / KEYS) if with_keys else None
    for name in DATABASES:
        if (folder / name).exists():
            if with_keys and name == DATABASE:
                keys = _copy_with_keys(folder, copies / name)
            else:
                copy_database(folder / name, copies / name)
            yield name, copies / name
            (copies / name).unlink()
    for top in FOLDERS:
        for place, _, names in os.walk(folder / top):
            for name in sorted(names):
                path = Path(place, name)
                if not name.endswith(".lock"):
                    yield path.relative_to(folder).as_posix(), path
    if keys is not None:
        fd = os.open(copies / KEYS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(keys)
        yield KEYS, copies / KEYS


def _copy_with_keys(folder: Path, target: Path) -> bytes | None:
    """The keys that open this very copy: they were there before it was made, and still are."""
    keys = _text(folder / KEYS)
    while True:
        copy_database(folder / DATABASE, target)
        now = _text(folder / KEYS)
        if now == keys:
            return keys
        keys = now  # rotated meanwhile
        target.unlink()


def _text(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def copy_database(source: Path, target: Path) -> None:
    """One state of it, compact, without what was deleted; others may write meanwhile."""
    target.touch(mode=0o600)
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("vacuum into ?", (str(target),))


def _add(tar: tarfile.TarFile, name: str, path: Path, made_at: int) -> File | None:
    """None for what is gone meanwhile, or is no plain file: a link planted there must not be followed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        size = status.st_size  # what is appended from now on is not in the copy
        reader = _Digesting(file, size)
        tar.addfile(_info(name, size, made_at), reader)
        return File(size, reader.hexdigest())


def _info(name: str, size: int, made_at: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, made_at // 1000
    return info


class _Digesting(io.RawIOBase):
    """Reads at most `size` bytes and digests them on the way."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        self._digest.update(piece)
        return piece

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

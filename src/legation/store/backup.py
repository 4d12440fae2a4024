"""Backups: a data folder as one tar, and a data folder made from such a tar.

A copy has the databases, the blobs, recorded sessions, what the owner wrote (agents, policies, tools), wherever it is,
and, if asked, the keys.

INV-A1  Each database in it is one consistent state, taken while others write.
INV-A2  The manifest, with a digest of every file, comes last: a copy that broke off has none and is refused.
INV-A3  What was there is never written into: it moves into the new folder as a whole, under `replaced/`, before that
        takes its place. So nothing of it ever lies where others could be served it, and a restore that is cut off has
        either not begun to move anything, or left one folder in which all of it is.
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
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO, Final, TypeAlias

import msgspec

from legation.errors import Conflict, InvalidParams, StorageFailed
from legation.store.database import migrations
from legation.store.datafolder import (
    BLOBS,
    CONFIG,
    COPIES,
    DATABASE,
    EVENTS,
    KEYS,
    PORT,
    REPLACED,
    SESSIONS,
    cut_off,
    old_in,
    restore_prefix,
)
from legation.store.files import READ, FolderLock, sync_folder
from legation.tasks import in_thread

if TYPE_CHECKING:
    from legation.secret import Secret
    from legation.store.secrets.sealer import Keys


FORMAT: Final = 2
FORMATS: Final = (1, 2)  # the first had nothing that the owner wrote
MANIFEST: Final = "manifest.json"
DATABASES: Final = (DATABASE, EVENTS)
FOLDERS: Final = (BLOBS, SESSIONS)
Written: TypeAlias = tuple[str, Path]
"""A file that the owner wrote: its name in the copy, below `config/`, and where it is."""
_PIECE: Final = 256 * 1024
_READ_PIECE: Final = 1024 * 1024
_DEEPEST: Final = 32  # folders; the keys of blobs have fewer parts
_LONGEST_MANIFEST: Final = 256 * 1024 * 1024  # bytes: about a million files
_KEYS_USED: Final = "select key_id from vault_bundle union select key_id from content_key"
_OURS: Final = (*DATABASES, *FOLDERS, KEYS, PORT, REPLACED, MANIFEST)
_NOT_A_COPY: Final = "is not a whole backup of Legation; make it again, or choose another file"

Progress = Callable[[int], None]
"""Hears how many bytes of the copy were read."""


class BackupFile(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    format: int
    made_at: int
    legation: str
    schema: int
    files: dict[str, BackupFile]
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
        await in_thread(maker.join)
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
    files: dict[str, BackupFile] = {}
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


def _add(tar: tarfile.TarFile, name: str, path: Path, made_at: int) -> BackupFile | None:
    """None for what is gone meanwhile, or is no plain file: a link planted there must not be followed."""
    try:
        fd = os.open(path, READ)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        size = status.st_size  # what is appended from now on is not in the copy
        reader = _Digesting(file, size)
        tar.addfile(_info(name, size, made_at), reader)
        return BackupFile(size, reader.hexdigest())


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


class OutsideFile(msgspec.Struct, frozen=True):
    """A file that the owner keeps outside of the data folder: `was` there, and what the backup has of it `is` here. Nothing
    outside is written: what is there now may be newer, and somebody else's."""

    was: Path
    now: Path

    @property
    def is_the_same(self) -> bool:
        try:
            there, here = self.was.stat(), self.now.stat()
            # The path is the backup's word: neither a pipe nor a device is read.
            alike = stat.S_ISREG(there.st_mode) and there.st_size == here.st_size
            return alike and self.was.read_bytes() == self.now.read_bytes()
        except (OSError, ValueError):
            return False


class Restored(msgspec.Struct, frozen=True):
    """`moved_aside` is where the old data are: in the new folder."""

    files: int
    made_at: int
    with_keys: bool
    moved_aside: Path | None
    elsewhere: tuple[OutsideFile, ...] = ()


def restore(
    copy: Path,
    folder: Path,
    *,
    replace: bool,
    now_ms: int,
    known_keys: Collection[str] | None = None,
    passphrase: Secret | None = None,
    new_keys: bool = False,
    progress: Progress = lambda _: None,
) -> Restored:
    """`known_keys` are the ids of the vault keys that will be there; what they cannot open is refused. None: unknown,
    or the copy brings its own. `new_keys`: what is sealed is wrapped under a new one, and all sign-ins end."""
    folder = Path(os.path.realpath(folder))  # a link stays, and what it leads to is replaced
    undo_cut_off(folder)
    with _owned(folder):
        _must_be_free(folder, replace=replace)
        there = folder.exists()
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f"{restore_prefix(folder)}*"):
            shutil.rmtree(left, ignore_errors=True)  # of one that was killed
        fresh = Path(tempfile.mkdtemp(prefix=restore_prefix(folder), dir=folder.parent))
        try:
            manifest = _unpack(copy, fresh, passphrase, progress)
            outside = _put_back(manifest, fresh)
            _check_databases(copy, fresh)
            if KEYS not in manifest.files:
                _check_keys(copy, fresh, known_keys)
            for kept in (KEYS, PORT):  # they belong to the place, not to the copy
                if kept not in manifest.files and (folder / kept).exists():
                    shutil.copy2(folder / kept, fresh / kept)
            if new_keys:
                _renew_keys(copy, fresh, now_ms)
            aside = _swap(fresh, folder, now_ms if there else None)
        except BaseException:
            if old_in(fresh) is None:
                shutil.rmtree(fresh, ignore_errors=True)
            raise
    elsewhere = tuple(OutsideFile(was, folder / name) for name, was in outside.items())
    return Restored(len(manifest.files), manifest.made_at, (folder / KEYS).exists(), aside, elsewhere)


@contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """No server starts on a folder that is there. One that is not is not made: if a server makes it, that stays."""
    with ExitStack() as stack:
        for name in DATABASES if folder.exists() else ():
            lock = FolderLock(folder / f"{name}.lock")
            try:
                lock.acquire()
            except Conflict:
                raise Conflict(
                    f"cannot restore into {folder}: a server runs on it; end it with `legation stop`"
                ) from None
            stack.callback(lock.release)
        yield


def undo_cut_off(folder: Path) -> None:
    """Put back what a restore was about to replace when it was killed."""
    folder = Path(os.path.realpath(folder))
    if (old := cut_off(folder)) is not None:
        old.rename(folder)


def _must_be_free(folder: Path, *, replace: bool) -> None:
    holds = [name for name in (*DATABASES, *FOLDERS) if (folder / name).exists()]
    if holds and not replace:
        raise Conflict(
            f"cannot restore into {folder}: it holds {', '.join(holds)}; --replace moves all of it aside first"
        )


def _put_back(manifest: Manifest, fresh: Path) -> dict[str, Path]:
    """Put what the owner wrote into the data folder to its place there; return where the rest was, by its name here."""
    outside: dict[str, Path] = {}
    for name, place in manifest.places.items():
        parts, target = PurePosixPath(place).parts, fresh / place
        if name not in manifest.files or not parts:
            continue
        if place.startswith("/"):
            outside[name] = Path(place)
        elif ".." not in parts and parts[0] not in (*_OURS, CONFIG) and not target.exists():
            for parent in reversed(target.parents):
                parent.mkdir(mode=0o700, exist_ok=True)
            (fresh / name).rename(target)
    for folder, _, _ in os.walk(fresh / CONFIG, topdown=False):
        with suppress(OSError):  # something is left in it
            os.rmdir(folder)  # noqa: PTH106
    return outside


def _unpack(copy: Path, fresh: Path, passphrase: Secret | None, progress: Progress) -> Manifest:
    found: dict[str, BackupFile] = {}
    manifest: Manifest | None = None
    try:
        with copy.open("rb") as file:
            content = _content(copy, file, passphrase, progress)
            with tarfile.open(fileobj=content, mode="r|") as tar:
                for member in tar:
                    if manifest is not None or not _is_ours(member):
                        raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}")
                    source = tar.extractfile(member)
                    assert source is not None  # a regular file
                    if member.name == MANIFEST:
                        manifest = msgspec.json.decode(source.read(), type=Manifest)
                    else:
                        found[member.name] = _store(source, fresh / member.name)
            while content.read(_READ_PIECE):  # a sealed one is genuine only to its end
                pass
    except (tarfile.TarError, EOFError, msgspec.MsgspecError) as error:
        raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}") from error
    except OSError as error:
        raise StorageFailed(
            f"cannot restore {copy}: {error.strerror or error}; check the file and the disk"
        ) from error
    if manifest is None or manifest.format not in FORMATS or manifest.files != found:
        raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}")
    return manifest


def _content(copy: Path, file: IO[bytes], passphrase: Secret | None, progress: Progress) -> io.RawIOBase:
    """The tar, opened if it is sealed. It may come through a pipe, and is read once."""
    # Ciphers, which take long to load: only a restore needs them.
    from legation.store.secrets.passphrase import MAGIC, Unsealing, is_sealed

    beginning = file.read(len(MAGIC))
    source = _Counting(beginning, file, progress)
    if not is_sealed(beginning):
        if passphrase is not None:
            raise InvalidParams(
                f"cannot restore {copy}: it is not sealed with a passphrase; leave --passphrase-file out"
            )
        return source
    if passphrase is None:
        raise InvalidParams(
            f"cannot restore {copy}: it is sealed with a passphrase; give it with --passphrase-file"
        )
    return Unsealing(source, passphrase, str(copy))


class _Counting(io.RawIOBase):
    """A file whose first bytes were read already."""

    def __init__(self, beginning: bytes, file: IO[bytes], progress: Progress) -> None:
        self._beginning, self._file, self._progress = beginning, file, progress
        self._count = 0

    def read(self, size: int = _READ_PIECE, /) -> bytes:
        piece, self._beginning = self._beginning[:size], self._beginning[size:]
        piece += self._file.read(size - len(piece))
        self._count += len(piece)
        self._progress(self._count)
        return piece


def _is_ours(member: tarfile.TarInfo) -> bool:
    parts = PurePosixPath(member.name).parts
    plain = (
        member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        and not member.issparse()  # a few bytes would become as many as they say
        and len(parts) <= _DEEPEST
        and ".." not in parts
        and not {"\\", "\0"} & set(member.name)
        and not member.name.startswith("/")
        and (member.name != MANIFEST or member.size <= _LONGEST_MANIFEST)
    )
    return plain and (
        member.name in (*DATABASES, KEYS, MANIFEST) or (len(parts) > 1 and parts[0] in (*FOLDERS, CONFIG))
    )


def _store(source: IO[bytes], target: Path) -> BackupFile:
    for parent in reversed(target.parents):  # `parents=True` would not keep the mode
        parent.mkdir(mode=0o700, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        while piece := source.read(_READ_PIECE):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(fd)
    return BackupFile(size, digest.hexdigest())


def _check_databases(copy: Path, fresh: Path) -> None:
    for name in DATABASES:
        if not (fresh / name).exists():
            continue
        try:
            with closing(sqlite3.connect(fresh / name)) as connection:
                (verdict,) = connection.execute("pragma integrity_check").fetchone()
                schema = _schema(connection) if name == DATABASE else 0
        except sqlite3.Error as error:
            raise InvalidParams(f"cannot restore {copy}: its {name} is damaged ({error})") from error
        if verdict != "ok":
            raise InvalidParams(f"cannot restore {copy}: its {name} is damaged; choose another backup")
        if schema > migrations.newest():
            raise StorageFailed(f"cannot restore {copy}: it is of a newer Legation; update this one first")


def _check_keys(copy: Path, fresh: Path, known_keys: Collection[str] | None) -> None:
    """Refuse a copy that is sealed with keys that are not here. Where nothing is sealed, the key of today will do:
    the note of the key of then is taken out."""
    if not (fresh / DATABASE).exists():
        return
    with closing(sqlite3.connect(fresh / DATABASE)) as connection:
        if not _schema(connection):
            return
        used = {row[0] for row in connection.execute(_KEYS_USED)}
        if not used:
            connection.execute("delete from key_check where name = 'vault'")
            connection.commit()
    if known_keys is not None and (missing := used - {*known_keys}):
        raise Conflict(
            f"cannot restore {copy}: what it holds is sealed with key {', '.join(sorted(missing))}, which is not here; "
            f"put back the {KEYS} (or LEGATION_VAULT_KEY) of that time first"
        )


def _schema(connection: sqlite3.Connection) -> int:
    return int(connection.execute("select coalesce(max(number), 0) from migration").fetchone()[0])


def _renew_keys(copy: Path, fresh: Path, now_ms: int) -> None:
    """Before it takes its place: whoever is cut off has the keys of then, or the new ones and all that they open."""
    from legation.store.secrets.sealer import drop_older_keys, open_key_file, renew_key_file

    if not (fresh / KEYS).exists():
        raise Conflict(
            f"cannot make new keys for {copy}: those that it is sealed with are not here; put back their {KEYS} first"
        )
    renew_key_file(fresh / KEYS)
    if (fresh / DATABASE).exists():
        asyncio.run(_rewrap(fresh, open_key_file(fresh / KEYS), now_ms))
    drop_older_keys(fresh / KEYS)


async def _rewrap(fresh: Path, keys: Keys, now_ms: int) -> None:
    from legation.store.database.sqlite import SqliteDatabase
    from legation.store.secrets.sealer import Sealer
    from legation.store.secrets.vault import Rewrapper, check_keys

    async with SqliteDatabase(fresh / DATABASE) as database:
        await database.migrate()
        await check_keys(database, keys, now_ms)
        await Rewrapper(database, Sealer(keys.vault)).run(lambda _: None)


def _swap(fresh: Path, folder: Path, now_ms: int | None) -> Path | None:
    old = fresh / REPLACED / str(now_ms)
    try:
        if now_ms is not None:
            old.parent.mkdir(mode=0o700)
            folder.rename(old)
        fresh.rename(folder)
    except BaseException as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        if not isinstance(error, OSError):
            raise
        raise StorageFailed(
            f"cannot move the restored data to {folder}: {error.strerror}; is it a mount? choose another --data-dir"
        ) from error
    sync_folder(folder.parent)
    return None if now_ms is None else _tidied(folder / REPLACED / str(now_ms))


def _tidied(old: Path) -> Path | None:
    """Put what earlier restores replaced beside it; delete a folder in which nothing was."""
    with suppress(OSError):
        for older in sorted((old / REPLACED).iterdir()):
            older.rename(old.with_name(older.name))
        (old / REPLACED).rmdir()
    if any(entry.suffix != ".lock" for entry in old.iterdir()):
        return old
    shutil.rmtree(old)
    with suppress(OSError):  # it has those of earlier restores
        old.parent.rmdir()
    return None

"""Makes a data folder from a copy. The old one is moved aside, never written into; nothing is kept by halves."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec

from legation.errors import Conflict, InvalidParams, StorageFailed
from legation.store.archive import DATABASES, FOLDERS, FORMAT, MANIFEST, File, Manifest
from legation.store.database import migrations
from legation.store.datafolder import DATABASE, KEYS, PORT
from legation.store.lock import FolderLock

_PIECE: Final = 1024 * 1024
_DEEPEST: Final = 32  # folders; the keys of blobs have fewer parts
_LONGEST_MANIFEST: Final = 256 * 1024 * 1024  # bytes: about a million files
_KEYS_USED: Final = "select key_id from vault_bundle union select key_id from content_key"
_NOT_A_COPY: Final = "is not a whole backup of Legation; make it again, or choose another file"


@dataclass(frozen=True, slots=True)
class Restored:
    files: int
    made_at: int
    with_keys: bool
    moved_aside: Path | None


def restore(
    copy: Path, folder: Path, *, replace: bool, now_ms: int, known_keys: Collection[str] | None = None
) -> Restored:
    """`known_keys` are the ids of the vault keys that will be there; what they cannot open is refused. None: unknown,
    or the copy brings its own."""
    with _owned(folder):
        return _restore(copy, folder, replace=replace, now_ms=now_ms, known_keys=known_keys)


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


def _restore(
    copy: Path, folder: Path, *, replace: bool, now_ms: int, known_keys: Collection[str] | None
) -> Restored:
    _must_be_free(folder, replace=replace)
    there = folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}-restore-*"):
        shutil.rmtree(left, ignore_errors=True)  # of one that was killed
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-restore-", dir=folder.parent))
    try:
        manifest = _unpack(copy, fresh)
        _check_databases(copy, fresh)
        if KEYS not in manifest.files:
            _check_keys(copy, fresh, known_keys)
        for kept in (KEYS, PORT):  # they belong to the place, not to the copy
            if kept not in manifest.files and (folder / kept).exists():
                shutil.copy2(folder / kept, fresh / kept)
        aside = _swap(fresh, folder, now_ms if there else None)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return Restored(len(manifest.files), manifest.made_at, (folder / KEYS).exists(), aside)


def _must_be_free(folder: Path, *, replace: bool) -> None:
    holds = [name for name in (*DATABASES, *FOLDERS) if (folder / name).exists()]
    if holds and not replace:
        raise Conflict(
            f"cannot restore into {folder}: it holds {', '.join(holds)}; --replace moves all of it aside first"
        )


def _unpack(copy: Path, fresh: Path) -> Manifest:
    found: dict[str, File] = {}
    manifest: Manifest | None = None
    try:
        with tarfile.open(copy, mode="r|") as tar:
            for member in tar:
                if manifest is not None or not _is_ours(member):
                    raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}")
                source = tar.extractfile(member)
                assert source is not None  # a regular file
                if member.name == MANIFEST:
                    manifest = msgspec.json.decode(source.read(), type=Manifest)
                else:
                    found[member.name] = _store(source, fresh / member.name)
    except (tarfile.TarError, EOFError, msgspec.MsgspecError) as error:
        raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}") from error
    except OSError as error:
        raise StorageFailed(
            f"cannot restore {copy}: {error.strerror or error}; check the file and the disk"
        ) from error
    if manifest is None or manifest.format != FORMAT or manifest.files != found:
        raise InvalidParams(f"cannot restore {copy}: it {_NOT_A_COPY}")
    return manifest


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
    return plain and (member.name in (*DATABASES, KEYS, MANIFEST) or (len(parts) > 1 and parts[0] in FOLDERS))


def _store(source: IO[bytes], target: Path) -> File:
    for parent in reversed(target.parents):  # `parents=True` would not keep the mode
        parent.mkdir(mode=0o700, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        while piece := source.read(_PIECE):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(fd)
    return File(size, digest.hexdigest())


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
    """Where nothing is sealed, the key of today will do: the note of the key of then is taken out."""
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


def _swap(fresh: Path, folder: Path, now_ms: int | None) -> Path | None:
    aside: Path | None = None
    try:
        if now_ms is not None:
            aside = folder.with_name(f"{folder.name}.before-restore-{now_ms}")
            folder.rename(aside)
        fresh.rename(folder)
    except OSError as error:
        if aside is not None and not folder.exists():
            aside.rename(folder)
        raise StorageFailed(
            f"cannot move the restored data to {folder}: {error.strerror}; is it a mount? choose another --data-dir"
        ) from error
    if aside is not None and all(entry.suffix == ".lock" for entry in aside.iterdir()):
        shutil.rmtree(aside)
        return None
    return aside

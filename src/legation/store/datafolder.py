"""Names in the data folder, and the folders there: all of it is its owner's alone. `server.json` is named in
`wire/api/server.py`."""

import hashlib
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

DATABASE: Final = "legation.db"
EVENTS: Final = "events.db"
KEYS: Final = "keys.json"
PORT: Final = "port"
BLOBS: Final = "blobs"
SESSIONS: Final = "sessions"  # of `legation exec`
LOGS: Final = "logs"
CONFIG: Final = "config"  # what a backup had of files that the owner keeps elsewhere; nothing reads it
SERVER: Final = "server-id"  # which server this is among those of one database: not part of a backup
WORK: Final = "work"  # folders of sessions that were given none, by workspace and id
SERVERS: Final = (
    "servers"  # data of further servers that programs started while the usual folder was another's
)
DISCARDED: Final = "discarded"  # folders that are being removed
SIZES: Final = "sizes.json"  # how large everything was, hour by hour
COPIES: Final = ".backup-"  # folders of databases that are on their way into an archive
REPLACED: Final = "replaced"  # what was there before a restore, by the time of that; with the keys of then


_OWN: Final = 0o700
# How far down the folders are of Legation's own making; below that they are an agent's, or somebody's work.
_DEPTHS: Final = {"agents": 4, "processes": 3, "work": 3}


_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
DIGEST: Final = "="  # begins the name of a folder that is a digest


def folder_name(session_id: str) -> str:
    """Name a session's own folder in `WORK`: by its id, or by a digest of one that is no name of a file everywhere."""
    if _FILE_NAME.fullmatch(session_id):
        return session_id
    return f"{DIGEST}{hashlib.sha256(session_id.encode()).hexdigest()}"


def make_folder(path: Path) -> None:
    """Make it, and whatever is missing above it, all of it its owner's alone: `mkdir` gives its mode to the last only."""
    missing = [path]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(mode=_OWN, exist_ok=True)


def new_mode(above: int | Path) -> int:
    """The mode of a folder that is made in this one for an agent or a caller: as usual, but its owner's alone where
    that is, as in the data folder, whatever the umask."""
    return 0o777 if stat.S_IMODE(os.stat(above).st_mode) & 0o077 else _OWN  # noqa: PTH116 - of a descriptor, too


def close_folders(data_dir: Path) -> None:
    """Take from everybody else what an earlier release left open to them. Blocks."""
    with suppress(OSError):
        for name in os.listdir(data_dir):  # noqa: PTH208
            _close(data_dir / name, _DEPTHS.get(name, 1))


def _close(path: Path, depth: int) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # no folder, or a link: nothing of ours
        return
    try:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(fd, _OWN)
        below = os.listdir(fd) if depth > 1 else []  # noqa: PTH208
    finally:
        os.close(fd)
    for name in below:
        _close(path / name, depth - 1)


def restore_prefix(folder: Path) -> str:
    """The beginning of names of new data folders that are on their way into the place of `folder`."""
    return f".{folder.name}-restore-"


def is_left_beside(name: str, folder: Path) -> bool:
    """Whether a restore into `folder` made what has this name beside it. Earlier releases moved the old data there."""
    return name.startswith((restore_prefix(folder), f"{folder.name}.before-restore-"))


def left_beside(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder.parent)  # noqa: PTH208 - a Path for each of a home's entries takes too long
    except OSError:
        return []
    return [folder.with_name(name) for name in sorted(names) if is_left_beside(name, folder)]


def old_in(fresh: Path) -> Path | None:
    """The data folder that a new one is about to replace, which moves into it first."""
    with suppress(OSError):
        return next(iter(sorted((fresh / REPLACED).iterdir())), None)
    return None


def cut_off(folder: Path) -> Path | None:
    """The old data of a restore into `folder` that was killed between its two moves."""
    folder = Path(os.path.realpath(folder))
    if folder.exists():
        return None
    left = left_beside(folder)
    fresh = [each for each in left if each.name.startswith(restore_prefix(folder))]
    # Earlier releases moved the old data beside it.
    beside = [each for each in left if fresh and each not in fresh]
    return next((old for each in fresh if (old := old_in(each))), beside[-1] if beside else None)


def forget_broken_backups(folder: Path) -> None:
    """Delete what a killed server left of a backup: copies of what may be destroyed by now. Only for the folder's owner."""
    for copies in folder.glob(f"{COPIES}*"):
        shutil.rmtree(copies, ignore_errors=True)

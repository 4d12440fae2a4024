"""The server of this machine, by the file that `legation up` leaves in its data folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from legation import settings
from legation.errors import StorageFailed, Unavailable
from legation.wire.api.server import OWNER_LOCK, SERVER_FILE, ServerFile


def data_folder(data_dir: Path | None = None) -> Path:
    """The one that is named, else that of the settings; absolute, for whoever looks there again later."""
    if data_dir is None:
        data_dir = settings.load({}, os.environ).data_dir
    return data_dir.expanduser().absolute()


def find(folder: Path) -> ServerFile:
    """The server that runs on a data folder now. Each has a token of its own: after a restart, look again."""
    path = folder / SERVER_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ServerFile)
    except FileNotFoundError:
        raise Unavailable(
            f"cannot find a running Legation in {folder}: start one with `legation up`"
        ) from None
    except OSError as error:
        raise StorageFailed(
            f"cannot read {path}: {error.strerror}; run as the user who started it"
        ) from error
    except ValueError:  # not chained: the decoder's words may hold a piece of the token
        raise Unavailable(f"cannot read {path}: it is damaged; restart with `legation up`") from None
    owner = _owner(folder)
    if owner is None:
        raise Unavailable(
            f"cannot reach the Legation of {folder}: its process {found.pid} is gone; start it with `legation up`"
        )
    if owner not in ("", str(found.pid)):  # what is written there is of one that was killed
        raise Unavailable(f"cannot reach the Legation of {folder} yet: process {owner} starts; try again")
    return found


def _owner(folder: Path) -> str | None:
    """The pid of the server there, empty where that could not be written; None: none runs.

    A pid may have been given to somebody else; the lock that a server holds ends with it."""
    import fcntl

    try:
        fd = os.open(folder / OWNER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, 32).decode(errors="replace").strip()
    finally:
        os.close(fd)
    return None

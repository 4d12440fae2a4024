"""The server of this machine, by the file that `legation up` leaves in its data folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from legation import settings
from legation.errors import StorageFailed, Unavailable
from legation.wire.api.server import OWNER_LOCK, SERVER_FILE, ServerFile


def find(data_dir: Path | None = None) -> ServerFile:
    folder = settings.load({"data_dir": data_dir}, os.environ).data_dir
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
    if not _runs(folder):
        raise Unavailable(
            f"cannot reach the Legation of {folder}: its process {found.pid} is gone; start it with `legation up`"
        )
    return found


def _runs(folder: Path) -> bool:
    """A pid may have been given to somebody else; the lock that a server holds ends with it."""
    import fcntl

    try:
        fd = os.open(folder / OWNER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False

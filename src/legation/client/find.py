"""The server of this machine, by the file that `legation up` leaves in its data folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from legation import settings
from legation.errors import StorageFailed, Unavailable
from legation.wire.api.server import SERVER_FILE, ServerFile


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
    if not _runs(found.pid):
        raise Unavailable(
            f"cannot reach the Legation of {folder}: its process {found.pid} is gone; start it with `legation up`"
        )
    return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return pid > 0

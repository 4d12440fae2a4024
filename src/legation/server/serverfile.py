"""`server.json`: how the CLI of this machine finds its server. There while the server is, for its owner alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from legation.errors import StorageFailed
from legation.wire.api.server import ServerFile

NAME = "server.json"


@contextmanager
def server_file(folder: Path, content: ServerFile) -> Iterator[None]:
    path, draft = folder / NAME, folder / f".{NAME}-{os.getpid()}"
    try:
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(content))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageFailed(f"cannot write {path}: {error.strerror}; free some space") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()

"""`server.json`: how the CLI of this machine finds its server. There while the server is, for its owner alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from legation.errors import StorageFailed
from legation.store.linefile import write_atomically
from legation.wire.api.server import SERVER_FILE, ServerFile


@contextmanager
def server_file(folder: Path, content: ServerFile) -> Iterator[None]:
    path = folder / SERVER_FILE
    try:
        write_atomically(path, msgspec.json.encode(content))
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror}; free some space") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()

"""Every kind of blob storage that must behave the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.store.s3_server import needs_rclone, s3_server

from legation.clock import Clock, SystemClock
from legation.secret import Secret
from legation.store.blobs.base import Blobs, LinkSigner
from legation.store.blobs.folder import FolderBlobs
from legation.store.blobs.s3 import S3Blobs
from legation.store.secrets.sealer import new_key_text

KINDS = ["folder", pytest.param("s3", marks=[needs_rclone, pytest.mark.heavy])]


def signer(clock: Clock | None = None) -> LinkSigner:
    return LinkSigner(Secret(new_key_text()), "http://127.0.0.1:1", clock or SystemClock())


@contextmanager
def blob_store(kind: str, folder: Path) -> Iterator[Callable[[], Blobs]]:
    """Opens the same storage again and again."""
    if kind == "folder":
        yield lambda: FolderBlobs(folder / "blobs", signer())
        return
    with s3_server(folder) as server:
        yield lambda: S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)

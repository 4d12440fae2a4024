"""Private object storage: the seam, its keys and its values. A folder and an S3 bucket stand behind it.

INV-B1  A key begins with its workspace and is made of plain segments: no key leads out of its workspace.
INV-B2  A blob is there whole or not at all; what was acknowledged is durable.
INV-B3  A prefix is whole segments: `ws/a` holds `ws/a/b`, and not `ws/ab` nor `ws/a` itself.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from legation.errors import ConfigInvalid, InvalidParams, TooLarge
from legation.settings import variable

if TYPE_CHECKING:
    from legation.secret import Secret
    from legation.store.blobs.links import LinkSigner

KEY_LIMIT: Final = 512
_SEGMENT_LIMIT: Final = 255  # what a file system takes as a name
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?:/[A-Za-z0-9._=-]+)*")

Content = bytes | memoryview | AsyncIterable[bytes]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    size: int
    modified_ms: int
    sha256: str | None = None  # known to `put`, which read it all


class Reading(Protocol):
    """An open blob: that it exists is known, and a later `put` does not change what it gives."""

    @property
    def info(self) -> BlobInfo: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None:
        """Needed only by who stops before the end; `contextlib.aclosing` does it."""


class Blobs(Protocol):
    async def check(self) -> None:
        """Raises when it cannot be used: for readiness and doctor."""

    async def put(
        self, key: str, data: Content, *, content_type: str | None = None, if_absent: bool = False
    ) -> BlobInfo:
        """`if_absent`: Conflict when there is one already, and that one stays."""

    async def get(self, key: str) -> Reading: ...
    async def read(self, key: str, limit: int) -> bytes:
        """All of it; TooLarge when that is more than `limit` bytes."""

    async def head(self, key: str) -> BlobInfo: ...
    async def delete(self, key: str) -> None:
        """Whether there was one or not: that it is gone is all that counts."""

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """In the order of their keys."""

    async def delete_prefix(self, prefix: str) -> int:
        """How many were deleted."""

    async def link(
        self, key: str, *, expires_in: int, filename: str | None = None, content_type: str | None = None
    ) -> str:
        """An address that gives the blob to whoever has it, as a download, for so many seconds. Whether there
        is such a blob is not looked at."""


def workspace_key(workspace: str, *parts: str) -> str:
    if any("/" in part for part in (workspace, *parts)):
        raise InvalidParams("cannot make a blob key of these parts: none of them may hold a slash")
    return check_key("/".join((workspace, *parts)))


def check_key(key: str) -> str:
    segments = key.split("/")
    if (
        len(key) > KEY_LIMIT
        or len(segments) < 2
        or not _KEY.fullmatch(key)
        or not all(_is_name(segment) for segment in segments)
    ):
        raise InvalidParams(
            "cannot use that blob key: it must be <workspace>/<segment>/..., of letters, digits, '.', '_', '=' "
            f"and '-', with no '..', at most {KEY_LIMIT} long"
        )
    return key


def check_prefix(prefix: str) -> str:
    """A workspace alone will do; nothing never does."""
    check_key(prefix if "/" in prefix else f"{prefix}/any")
    return prefix


def _is_name(segment: str) -> bool:
    return segment not in (".", "..") and len(segment) <= _SEGMENT_LIMIT


async def read_all(reading: Reading, limit: int) -> bytes:
    async with aclosing(reading):
        if reading.info.size > limit:
            raise TooLarge(f"cannot read blob {reading.info.key} at once: it is larger than {limit} bytes")
        parts = [part async for part in reading]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def open_blobs(
    setting: str | None,
    data_dir: Path,
    links: LinkSigner,
    *,
    access_key: Secret | None = None,
    secret_key: Secret | None = None,
) -> Blobs:
    """`setting`: None for a folder in the data folder, an absolute path, or `s3://bucket/prefix?...`."""
    if setting is not None and setting.startswith("s3://"):
        from legation.store.blobs.s3 import S3Blobs

        return S3Blobs(setting, access_key=access_key, secret_key=secret_key)
    from legation.store.blobs.folder import FolderBlobs

    if setting is not None and not Path(setting).is_absolute():
        raise ConfigInvalid(
            f"cannot keep blobs there: correct {variable('blobs')}: write an absolute path, or s3://bucket/prefix"
        )
    return FolderBlobs(Path(setting) if setting else data_dir / "blobs", links)

"""Files over HTTP, in the shapes of sandbox-agent: the same members for its 0.1 and its 0.4 SDK."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from legation.wire.api.shape import RequestBody, ResponseBody

EntryType = Literal["file", "directory"]
# Longer than the longest that Linux takes: what is too long for a disk, the disk says.
FilePath = Annotated[
    str,
    Meta(
        max_length=8192,
        pattern=r"^(?!([\s\S]*/)?\.\.(?![^/]))[^\u0000]*$",
        description="a path without `..` and NUL, absolute or from the first folder on",
    ),
]


class FsEntry(ResponseBody):
    """What stands in a folder. Whatever is no folder is a `file`, a link too; `path` is absolute."""

    name: str
    path: str
    entry_type: EntryType
    size: int
    modified: str | None


class FsStat(ResponseBody):
    path: str
    entry_type: EntryType
    size: int
    modified: str | None


class FsWritten(ResponseBody):
    path: str
    bytes_written: int


class FsDone(ResponseBody):
    path: str


class FsMove(RequestBody):
    """`overwrite` also replaces a folder, with all that is in it."""

    from_: FilePath = msgspec.field(name="from")
    to: FilePath
    overwrite: bool | None = None


class FsMoved(ResponseBody):
    from_: str = msgspec.field(name="from")
    to: str


class FsUploaded(ResponseBody):
    """`paths` are the first 1,024 of what was written; `truncated`: there were more."""

    paths: list[str]
    truncated: bool

"""Trusted folders, as the HTTP API takes and shows them. Times are milliseconds since the epoch."""

from typing import Annotated, Literal

from msgspec import Meta

from legation.wire.api.shape import Answer, Request

FolderState = Literal["trusted", "replaced", "gone"]


class NewTrust(Request):
    """`folder` is a folder of the server's machine."""

    folder: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\u0000]*$")]


class TrustView(Answer):
    """`folder` is its real path. `replaced`: another folder is in its place, and counts for nothing; `gone`: none is."""

    id: str
    folder: str
    state: FolderState
    trusted_by: str
    created_at: int
    trusted_by_name: str | None = None  # of a person

"""Private object storage: its interface, its keys and values, and signed links to what it holds. A folder and an S3 bucket
stand behind it.

INV-B1  A key begins with its workspace and is made of plain segments: no key leads out of its workspace.
INV-B2  A blob is there whole or not at all; what was acknowledged is durable.
INV-B3  A prefix is whole segments: `ws/a` holds `ws/a/b`, and not `ws/ab` nor `ws/a` itself.
INV-L1  Method, key, expiry, file name and content type of a link are signed, each with its length before it: one with
        any of them changed is refused.
INV-L2  What a link gives is always a download, never shown as a page of ours.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from legation.clock import Clock
from legation.errors import ConfigInvalid, Forbidden, InvalidParams, TooLarge
from legation.secret import Secret
from legation.settings import variable
from legation.store.secrets.sealer import key_bytes

KEY_LIMIT: Final = 512
_SEGMENT_LIMIT: Final = 255  # what a file system takes as a name
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?:/[A-Za-z0-9._=-]+)*")

LINK_PATH: Final = "/v1/blobs"
LONGEST_LINK: Final = 7 * 86400  # seconds; what S3 allows, so that both allow the same

_FILENAME_LIMIT: Final = 200
_FIELDS: Final = ("key", "expires", "filename", "type", "signature")
_TYPE: Final = re.compile(
    r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,63}(?:; ?charset=[a-z0-9-]{1,20})?"
)
_ANY_TYPE: Final = "application/octet-stream"

Content = bytes | memoryview | AsyncIterable[bytes]


class BlobInfo(msgspec.Struct, frozen=True):
    key: str
    size: int
    modified_ms: int
    sha256: str | None = None  # known to `put`, which read it all


class BlobReader(Protocol):
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

    async def get(self, key: str) -> BlobReader: ...
    async def read(self, key: str, limit: int) -> bytes:
        """All of it; TooLarge when that is more than `limit` bytes."""

    async def head(self, key: str) -> BlobInfo: ...
    async def delete(self, key: str) -> None:
        """Whether there was one or not: that it is gone is all that counts."""

    def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        """In the order of their keys."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete what is beneath; return how many that were."""

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


async def read_all(reading: BlobReader, limit: int) -> bytes:
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


class LinkTarget(msgspec.Struct, frozen=True):
    key: str
    expires_at: int  # seconds since the epoch
    filename: str | None
    content_type: str | None

    def headers(self) -> Mapping[str, str]:
        return {
            "content-type": self.content_type or _ANY_TYPE,
            "content-disposition": disposition(self.filename or self.key.rsplit("/", 1)[-1]),
            "x-content-type-options": "nosniff",
            "content-security-policy": "default-src 'none'; sandbox",
            "referrer-policy": "no-referrer",  # the address is the credential
            "cache-control": "private, no-store",
        }


class LinkSigner:
    """Links to blobs in a folder: whoever has one may download that one blob until it expires."""

    def __init__(self, secret: Secret, base_url: str, clock: Clock) -> None:
        """`secret` is `Keys.links`; `base_url` is where browsers find this server."""
        if not base_url.startswith(("http://", "https://")):
            raise ConfigInvalid(
                "cannot make links to blobs: the server's address must begin with http:// or https://"
            )
        self._secret = secret
        self._base = base_url.rstrip("/")
        self._clock = clock

    def link(
        self, key: str, *, expires_in: int, filename: str | None = None, content_type: str | None = None
    ) -> str:
        check_link(key, expires_in, filename, content_type)
        target = LinkTarget(key, self._clock.now_ms() // 1000 + expires_in, filename, content_type)
        fields = {"key": key, "expires": str(target.expires_at), "filename": filename, "type": content_type}
        given = {name: value for name, value in fields.items() if value is not None}
        return f"{self._base}{LINK_PATH}?{urlencode({**given, 'signature': self._sign(target)}, quote_via=quote)}"

    def verify(self, query: str) -> LinkTarget:
        """`query` as it was sent. For GET, and HEAD, which gives less."""
        try:
            target, signature = _read(query)
            # As bytes: a signature that is not ASCII is wrong, and no TypeError.
            genuine = hmac.compare_digest(signature.encode(), self._sign(target).encode())
        except (ValueError, InvalidParams):  # half characters among them
            genuine = False
        if not genuine:
            raise _altered()
        if self._clock.now_ms() >= target.expires_at * 1000:
            raise Forbidden("cannot open this link: it has expired; ask for a new one", {"reason": "expired"})
        return target

    def _sign(self, target: LinkTarget) -> str:
        fields = ("GET", target.key, str(target.expires_at), target.filename, target.content_type)
        message = b"legation/link/1" + b"".join(_with_length(field) for field in fields)
        return (
            base64.urlsafe_b64encode(hmac.digest(key_bytes(self._secret), message, "sha256"))
            .rstrip(b"=")
            .decode()
        )


def check_link(key: str, expires_in: int, filename: str | None, content_type: str | None) -> None:
    check_key(key)
    if not 1 <= expires_in <= LONGEST_LINK:
        raise InvalidParams(
            f"cannot make a link for so long: let it expire within 1 to {LONGEST_LINK} seconds"
        )
    if filename is not None and not (0 < len(filename) <= _FILENAME_LIMIT and _is_plain(filename)):
        raise InvalidParams(
            f"cannot make a link with that file name: use 1 to {_FILENAME_LIMIT} printable characters, no slash"
        )
    if content_type is not None and not _TYPE.fullmatch(content_type):
        raise InvalidParams(
            "cannot make a link with that content type: write it as type/subtype, in small letters"
        )


def disposition(filename: str) -> str:
    """RFC 6266: a plain name for old readers, and the exact one."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", filename)
    exact = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='')}"
    return f'attachment; filename="{plain}"{exact}'


def _is_plain(filename: str) -> bool:
    """No controls, no direction marks that make `exe.txt` of `txt.exe`, no half characters."""
    return filename.isprintable() and not set(filename) & {"/", "\\"} and filename.strip(" .") != ""


def _read(query: str) -> tuple[LinkTarget, str]:
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=8)
    fields = dict(pairs)
    if len(fields) != len(pairs) or not fields.keys() <= set(_FIELDS):
        raise ValueError
    expires = fields.get("expires", "")
    if not re.fullmatch(r"[1-9][0-9]{0,11}", expires):  # one spelling
        raise ValueError
    key = check_key(fields.get("key", ""))
    target = LinkTarget(key, int(expires), fields.get("filename"), fields.get("type"))
    return target, fields.get("signature", "")


def _with_length(field: str | None) -> bytes:
    """None is not the empty text."""
    if field is None:
        return b"\xff" * 4
    encoded = field.encode()
    return len(encoded).to_bytes(4) + encoded


def _altered() -> Forbidden:
    return Forbidden(
        "cannot open this link: it is not as it was given out; copy the whole of it, or ask for a new one",
        {"reason": "altered"},
    )

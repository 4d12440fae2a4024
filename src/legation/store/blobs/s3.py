"""Blobs in an S3 bucket, through `obstore`: `s3://bucket/prefix?endpoint=https://...&region=...`.

Credentials come from settings, else from what `obstore` finds by itself: AWS_* variables, a role of the machine.
INV-B5  A link is a download here too: every object is stored as an attachment, and where the secret key is
        known every link says so again, with the file's name.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from legation.clock import SystemClock
from legation.errors import (
    ConfigInvalid,
    Conflict,
    InvalidParams,
    LegationError,
    NotFound,
    StorageFailed,
    TooLarge,
)
from legation.secret import Secret
from legation.settings import variable
from legation.store.blobs.base import (
    BlobInfo,
    Content,
    check_key,
    check_link,
    check_prefix,
    disposition,
    read_all,
)

if TYPE_CHECKING:
    from obstore import BytesStream, GetResult, ObjectMeta
    from obstore.store import S3Store

CONNECT_LIMIT: Final = timedelta(seconds=5)  # the network's time
SILENCE_LIMIT: Final = timedelta(seconds=30)  # the server's time between two bytes
REQUEST_LIMIT: Final = timedelta(hours=1)  # a slow reader's time for one blob
RETRY_LIMIT: Final = timedelta(seconds=30)  # the server's time to come back
RETRIES: Final = 5
PART: Final = 8 * 1024 * 1024  # bytes; S3 takes 10,000 of them: 80 GB
PARTS_AT_ONCE: Final = 4  # so many are in memory
IF_ABSENT_LIMIT: Final = 64 * 1024 * 1024  # bytes; S3 has the condition only where all is sent at once

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORM: Final = f"correct {variable('blobs')}: s3://bucket/prefix?endpoint=https://host&region=name"
_READ_AT_LEAST: Final = 256 * 1024
_DELETED_AT_ONCE: Final = 1000  # S3's own limit
_ATTACHMENT: Final = {"Content-Disposition": "attachment"}


class S3Blobs:
    def __init__(
        self, url: str, *, access_key: Secret | None = None, secret_key: Secret | None = None
    ) -> None:
        self._store: S3Store = _open_bucket(url, access_key, secret_key)
        self._secret_key = secret_key or _from_environment()
        self._heeds_conditions: bool | None = None
        self._probing = asyncio.Lock()

    async def check(self) -> None:
        probe = _probe()
        with _told("use the bucket"):
            await self._store.put_async(probe, b"", use_multipart=False)
            await self._store.delete_async(probe)

    async def put(
        self, key: str, data: Content, *, content_type: str | None = None, if_absent: bool = False
    ) -> BlobInfo:
        attributes = {**_ATTACHMENT, **({"Content-Type": content_type} if content_type else {})}
        counted = _Counted(check_key(key), data)
        try:
            if if_absent:
                await self._put_if_absent(counted, attributes)
            else:
                await self._put(counted, attributes)
        except LegationError:
            if counted.fault is not None:  # the caller's own stream broke, and not the bucket
                raise counted.fault from None
            raise
        return counted.info()

    async def get(self, key: str) -> S3Reading:
        with _told(f"read blob {check_key(key)}", key):
            return S3Reading(key, await self._store.get_async(key))

    async def read(self, key: str, limit: int) -> bytes:
        return await read_all(await self.get(key), limit)

    async def head(self, key: str) -> BlobInfo:
        with _told(f"read blob {check_key(key)}", key):
            return _info(await self._store.head_async(key))

    async def delete(self, key: str) -> None:
        with _told(f"delete blob {check_key(key)}"):
            await self._store.delete_async(key)

    async def list(self, prefix: str) -> AsyncIterator[BlobInfo]:
        with _told(f"list the blobs in {check_prefix(prefix)}"):
            async for page in self._store.list(prefix, chunk_size=_DELETED_AT_ONCE):
                for found in page:
                    yield _info(found)

    async def delete_prefix(self, prefix: str) -> int:
        keys = [found.key async for found in self.list(prefix)]
        with _told(f"delete the blobs in {prefix}"):
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                await self._store.delete_async(keys[start : start + _DELETED_AT_ONCE])
        return len(keys)

    async def link(
        self, key: str, *, expires_in: int, filename: str | None = None, content_type: str | None = None
    ) -> str:
        import obstore

        check_link(key, expires_in, filename, content_type)
        with _told(f"make a link to blob {key}"):
            url = await obstore.sign_async(self._store, "GET", key, timedelta(seconds=expires_in))
        if self._secret_key is None:  # a role of the machine: what was stored must do
            return url
        answer = {"content-disposition": disposition(filename or key.rsplit("/", 1)[-1])}
        if content_type is not None:
            answer["content-type"] = content_type
        return _with_answer(url, answer, self._secret_key)

    async def _put(self, counted: _Counted, attributes: dict[str, str]) -> None:
        with _told(f"store blob {counted.key}"):
            await self._store.put_async(
                counted.key,
                counted.pieces() if counted.whole is None else counted.whole,
                attributes=attributes,
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )

    async def _put_if_absent(self, counted: _Counted, attributes: dict[str, str]) -> None:
        """Store it if there is none. Where the server ignores the condition, two at the same moment can both succeed."""
        from obstore.exceptions import AlreadyExistsError

        key = counted.key
        body = await counted.gathered(IF_ABSENT_LIMIT)
        taken = Conflict(f"cannot store blob {key}: there is one, and it stays; choose another key")
        if not await self._conditions_count() and await self._exists(key):
            raise taken
        with _told(f"store blob {key}"):
            try:
                await self._store.put_async(key, body, attributes=attributes, mode="create")
            except AlreadyExistsError:
                raise taken from None

    async def _conditions_count(self) -> bool:
        """Some servers take `If-None-Match: *` and overwrite all the same: tried once, on an object of ours."""
        async with self._probing:
            if self._heeds_conditions is None:
                self._heeds_conditions = await self._try_conditions()
        return self._heeds_conditions

    async def _try_conditions(self) -> bool:
        from obstore.exceptions import AlreadyExistsError

        probe = _probe()
        with _told("try a conditional write"):
            await self._store.put_async(probe, b"", mode="create")
            try:
                await self._store.put_async(probe, b"", mode="create")
            except AlreadyExistsError:
                return True
            finally:
                await self._store.delete_async(probe)
        return False

    async def _exists(self, key: str) -> bool:
        try:
            await self.head(key)
        except NotFound:
            return False
        return True


class _Counted:
    """Content that is being stored: its size and digest are known when it has passed."""

    def __init__(self, key: str, data: Content) -> None:
        self.key = key
        self.whole = data if isinstance(data, bytes | memoryview) else None
        self.fault: Exception | None = None
        self._data = data
        self._size = 0
        self._digest = hashlib.sha256()
        if self.whole is not None:
            self._count(self.whole)

    async def pieces(self) -> AsyncIterator[bytes]:
        assert not isinstance(self._data, bytes | memoryview)
        try:
            async for piece in self._data:
                self._count(piece)
                yield piece
        except Exception as fault:
            self.fault = fault
            raise

    async def gathered(self, limit: int) -> bytes | memoryview:
        if self.whole is not None:
            return self.whole
        parts: list[bytes] = []
        async for piece in self.pieces():
            parts.append(piece)
            if self._size > limit:
                raise TooLarge(f"cannot store blob {self.key} only if absent: it is over {limit} bytes")
        return b"".join(parts)

    def info(self) -> BlobInfo:
        return BlobInfo(self.key, self._size, SystemClock().now_ms(), self._digest.hexdigest())

    def _count(self, piece: bytes | memoryview) -> None:
        self._size += len(piece)
        self._digest.update(piece)


class S3Reading:
    def __init__(self, key: str, result: GetResult) -> None:
        self.info = _info(result.meta)
        self._key = key
        self._pieces: BytesStream | None = result.stream(_READ_AT_LEAST)

    def __aiter__(self) -> S3Reading:
        return self

    async def __anext__(self) -> bytes:
        if self._pieces is None:
            raise StopAsyncIteration
        with _told(f"read blob {self._key}", self._key):
            return bytes(await self._pieces.__anext__())

    async def aclose(self) -> None:
        self._pieces = None  # the connection goes with it


def _info(meta: ObjectMeta) -> BlobInfo:
    return BlobInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


def _probe() -> str:
    """An object of ours: no key begins with a dot."""
    return f".legation/probe-{secrets.token_hex(8)}"


def _from_environment(environ: Mapping[str, str] = os.environ) -> Secret | None:
    value = environ.get("AWS_SECRET_ACCESS_KEY")
    return Secret(value, "s3-secret-key") if value else None


@contextmanager
def _told(what: str, key: str | None = None) -> Iterator[None]:
    """The client's own text stays behind: it is long, and holds the server's answer."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StorageFailed(
            f"cannot {what}: S3 refused the credentials; correct them, or what they may do"
        ) from error
    except FileNotFoundError as error:
        if key is None:
            raise StorageFailed(
                f"cannot {what}: there is no such bucket; make it, or correct its name"
            ) from error
        raise NotFound(f"cannot {what}: there is none; list its prefix to see what is there") from None
    except (BaseError, OSError, ValueError) as error:
        raise StorageFailed(
            f"cannot {what}: S3 does not answer as it should; check its address, bucket and credentials"
        ) from error


@dataclass(frozen=True, slots=True)
class BucketAddress:
    bucket: str
    prefix: str | None
    endpoint: str | None
    region: str | None


def _parse_address(url: str) -> BucketAddress:
    try:
        address = urlsplit(url)
        query = dict(parse_qsl(address.query, keep_blank_values=True, strict_parsing=bool(address.query)))
        prefix = check_prefix(address.path.strip("/")) if address.path.strip("/") else None
    except (ValueError, InvalidParams):
        raise ConfigInvalid(f"cannot keep blobs there: the address is malformed; {_FORM}") from None
    if "@" in address.netloc:  # not shown: it holds the key
        raise ConfigInvalid("cannot keep blobs there: the address holds a credential; give it as a setting")
    if address.scheme != "s3" or address.fragment or not _BUCKET.fullmatch(address.netloc):
        raise ConfigInvalid(f"cannot keep blobs there: that names no bucket; {_FORM}")
    if unknown := sorted(query.keys() - {"endpoint", "region"}):
        raise ConfigInvalid(f"cannot keep blobs there: {unknown[0]!r} is unknown; {_FORM}")
    endpoint = query.get("endpoint")
    if endpoint is not None and not re.fullmatch(r"https?://[^@?#\s]+", endpoint):
        raise ConfigInvalid(f"cannot keep blobs there: endpoint must be http(s)://host[:port]; {_FORM}")
    return BucketAddress(address.netloc, prefix, endpoint, query.get("region"))


def _open_bucket(url: str, access_key: Secret | None, secret_key: Secret | None) -> S3Store:
    place = _parse_address(url)
    if (access_key is None) != (secret_key is None):
        raise ConfigInvalid(
            "cannot use S3 with half a credential: give both the access key and the secret key"
        )
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError:
        raise ConfigInvalid(
            "cannot keep blobs in S3: its client is not installed; run `pip install legation[s3]`"
        ) from None
    options: dict[str, Any] = {"endpoint": place.endpoint, "region": place.region}
    if access_key is not None and secret_key is not None:
        # Not as options: a session token in the environment would be sent along with them.
        options["credential_provider"] = _Fixed(access_key, secret_key)
    try:
        return S3Store(
            place.bucket,
            prefix=place.prefix,
            client_options={
                "allow_http": (place.endpoint or "").startswith("http://"),
                "connect_timeout": CONNECT_LIMIT,
                "read_timeout": SILENCE_LIMIT,
                "timeout": REQUEST_LIMIT,
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": RETRY_LIMIT},
            **{name: value for name, value in options.items() if value is not None},
        )
    except (BaseError, ValueError):
        raise ConfigInvalid("cannot use S3: a setting or an AWS_ variable is wrong; correct it") from None


class _Fixed:
    """Hides the secret key until it is asked for."""

    def __init__(self, access_key: Secret, secret_key: Secret) -> None:
        self._access_key = access_key
        self._secret_key = secret_key

    def __call__(self) -> dict[str, str | None]:
        return {
            "access_key_id": self._access_key.reveal(),
            "secret_access_key": self._secret_key.reveal(),
            "token": None,
            "expires_at": None,
        }


def _with_answer(url: str, headers: Mapping[str, str], secret_key: Secret) -> str:
    """Sign an address again, with headers that S3 is to answer with (AWS Signature Version 4, query form): `obstore` signs
    one but cannot add `response-content-disposition`. `headers` by their small names, such as `content-type`. Day, region
    and key id are read from the address itself."""
    address = urlsplit(url)
    query = dict(parse_qsl(address.query, keep_blank_values=True))
    del query["X-Amz-Signature"]
    query |= {f"response-{name}": value for name, value in headers.items()}
    canonical = "&".join(f"{_escaped(name)}={_escaped(query[name])}" for name in sorted(query))
    request = f"GET\n{address.path}\n{canonical}\nhost:{address.netloc}\n\nhost\nUNSIGNED-PAYLOAD"
    _, scope = query["X-Amz-Credential"].split("/", 1)
    digest = hashlib.sha256(request.encode()).hexdigest()
    message = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{digest}"
    signature = hmac.digest(_signing_key(scope, secret_key), message.encode(), "sha256").hex()
    return f"{address.scheme}://{address.netloc}{address.path}?{canonical}&X-Amz-Signature={signature}"


def _signing_key(scope: str, secret_key: Secret) -> bytes:
    key = b"AWS4" + secret_key.reveal().encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _escaped(text: str) -> str:
    return quote(text, safe="-_.~")

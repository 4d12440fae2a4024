"""Where an S3 bucket is and how it is reached: the setting, the client and its limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from legation.errors import ConfigInvalid, InvalidParams
from legation.secret import Secret
from legation.settings import variable
from legation.store.blobs.blobs import check_prefix

if TYPE_CHECKING:
    from obstore.store import S3Store

CONNECT_LIMIT: Final = timedelta(seconds=5)  # the network's time
SILENCE_LIMIT: Final = timedelta(seconds=30)  # the server's time between two bytes
REQUEST_LIMIT: Final = timedelta(hours=1)  # a slow reader's time for one blob
RETRY_LIMIT: Final = timedelta(seconds=30)  # the server's time to come back
RETRIES: Final = 5

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_FORM: Final = f"correct {variable('blobs')}: s3://bucket/prefix?endpoint=https://host&region=name"


@dataclass(frozen=True, slots=True)
class Place:
    bucket: str
    prefix: str | None
    endpoint: str | None
    region: str | None


def parse_place(url: str) -> Place:
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
    return Place(address.netloc, prefix, endpoint, query.get("region"))


def open_bucket(url: str, access_key: Secret | None, secret_key: Secret | None) -> S3Store:
    place = parse_place(url)
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

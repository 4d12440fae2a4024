"""Notices by HTTP, signed as Standard Webhooks has it, and the check for whoever receives them.

INV-1  Every attempt of one notice bears the same `webhook-id`; the time and the signature are the attempt's own.
INV-2  The address, but for its host, is in no log and in no message. No redirect is followed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import ssl
import time
from collections.abc import Mapping
from typing import Final

from legation import __version__
from legation.approvals.notify.notice import (
    ApprovalNotice,
    NotDelivered,
    NoticeAddress,
    is_untrusted,
    trusted,
)
from legation.clock import Clock
from legation.errors import ConfigInvalid, InvalidParams, Unauthenticated
from legation.secret import Secret

# The receiver's time to answer, from the look-up of its name to its status.
TIMEOUT: Final = 10.0
# The receiver's time: how far its clock may be from ours, and for how long a copy of a notice is accepted.
TOLERANCE: Final = 300.0
_PREFIX: Final = "whsec_"  # of keys in base64, as Standard Webhooks writes them
_SECONDS: Final = re.compile(r"\d{1,12}", re.ASCII)
_RETRIED: Final = frozenset({408, 429})


class WebhookChannel:
    name = "webhook"
    gathers = False  # a program receives it, which wants to know of each approval

    def __init__(
        self,
        url: Secret,
        secret: Secret,
        clock: Clock,
        *,
        timeout: float = TIMEOUT,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = webhook_address(url)
        self._key = key_of(secret)
        self._clock = clock
        self._timeout = timeout
        self._tls = tls

    async def send(self, notice: ApprovalNotice) -> None:
        status = await self._post(notice.id, notice.encode())
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            raise NotDelivered(
                f"cannot notify by webhook: it answered {status}, a redirect, and none is followed;"
                " set notify_webhook to where it leads",
                again=False,
            )
        again = status >= 500 or status in _RETRIED
        raise NotDelivered(
            f"cannot notify by webhook: it answered {status}; look at the receiver's log", again=again
        )

    async def _post(self, id: str, body: bytes) -> int:  # noqa: A002
        import httpx2  # slow; a server without a webhook does not pay for it

        if self._tls is None:
            self._tls = await asyncio.to_thread(trusted)  # reads some hundred certificates
        # The path goes as an extension, because the client logs the address it is given.
        extensions = {"target": self._address.target.encode()}
        try:
            async with (
                asyncio.timeout(self._timeout),
                httpx2.AsyncClient(
                    verify=self._tls,
                    follow_redirects=False,
                    trust_env=not self._address.is_loopback,  # the usual variables name a proxy
                    timeout=self._timeout,
                ) as client,
                client.stream(
                    "POST",
                    f"{self._address.origin}/",
                    content=body,
                    headers=self._headers(id, body),
                    extensions=extensions,
                ) as response,
            ):
                return response.status_code  # whatever else it says is not read
        except (TimeoutError, httpx2.TimeoutException):
            raise NotDelivered(
                f"cannot notify by webhook: no answer within {self._timeout:g} s; let the receiver answer first"
                " and work afterwards"
            ) from None
        except (httpx2.RequestError, httpx2.InvalidURL, ssl.SSLError) as error:
            raise _unreachable(error) from None

    def _headers(self, id: str, body: bytes) -> dict[str, str]:  # noqa: A002
        timestamp = str(self._clock.now_ms() // 1000)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"legation/{__version__}",
            "Accept-Encoding": "identity",
            "webhook-id": id,
            "webhook-timestamp": timestamp,
            "webhook-signature": _signature(self._key, id, timestamp, body),
        }
        if self._address.has_credentials:
            password = self._address.password.reveal() if self._address.password else ""
            pair = f"{self._address.user or ''}:{password}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers


def verify(
    secret: str | Secret,
    headers: Mapping[str, str],
    body: bytes,
    tolerance: float = TOLERANCE,
    *,
    now: float | None = None,
) -> str:
    """Check a notice, for receivers: return its id if `body` is as Legation sent it, else `Unauthenticated`.

    `body` is what came, before any parsing. Keep the ids for `tolerance` seconds: one that comes again is a
    repetition. `now` is in seconds since the epoch.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = (  # noqa: A001
            given[f"webhook-{part}"] for part in ("id", "timestamp", "signature")
        )
    except KeyError:
        raise Unauthenticated("cannot accept a notice without its webhook- headers: refuse it") from None
    if not _SECONDS.fullmatch(timestamp):
        raise Unauthenticated("cannot accept a notice whose webhook-timestamp is no number: refuse it")
    key = key_of(Secret(secret, "notify_webhook_secret") if isinstance(secret, str) else secret)
    wanted = _signature(key, id, timestamp, body).encode("utf-8", "replace")
    # All are compared, so that time tells nothing; others may stand beside ours while a key is changed.
    matches = [hmac.compare_digest(wanted, each.encode("utf-8", "replace")) for each in signatures.split(" ")]
    if not any(matches):
        raise Unauthenticated(
            "cannot accept a notice with that signature: refuse it, and compare the secret of both sides"
        )
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise Unauthenticated(
            f"cannot accept a notice that is more than {tolerance:g} s old or ahead: refuse it, and check the clocks"
        )
    return id


def webhook_address(url: Secret) -> NoticeAddress:
    address = NoticeAddress.parse(url)
    if address.scheme not in ("http", "https"):
        raise ConfigInvalid("cannot use notify_webhook: its scheme is unknown; write https://host/path")
    if address.scheme == "http" and address.has_credentials and not address.is_loopback:
        raise ConfigInvalid(
            "cannot use notify_webhook: its password would go over the network unencrypted; write https://"
        )
    return address


def key_of(secret: Secret) -> bytes:
    """Read the bytes that sign: those that `whsec_` and base64 stand for, else the text itself."""
    text = secret.reveal()
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidParams(
            f"cannot use {secret.name}: what follows {_PREFIX!r} is not base64; write it as it was given, or another text"
        )
    return key


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:  # noqa: A002
    signed = b".".join((id.encode("utf-8", "replace"), timestamp.encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


def _unreachable(error: Exception) -> NotDelivered:
    if is_untrusted(error):
        return NotDelivered(
            "cannot notify by webhook: its certificate is not trusted; correct it, or add its authority to this machine",
            again=False,
        )
    # Only the kind of the error: its text may quote what it was given.
    return NotDelivered(
        f"cannot notify by webhook: the connection failed ({type(error).__name__}); check that the receiver runs"
        " and can be reached from here"
    )

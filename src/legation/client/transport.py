"""What sync and async share of httpx2: the settings of a client, its errors as ours. Importing it is slow."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final, TypedDict

import httpx2

from legation import __version__
from legation.client.failure import Failure, refused, unreachable
from legation.client.target import Target
from legation.client.timeouts import Timeouts
from legation.errors import ConfigInvalid, Conflict, Unavailable

# Below what servers and proxies give an idle connection (5 to 75): a POST must not meet the moment they close it.
KEEP_ALIVE: Final = 3.0
CHUNK: Final = 64 * 1024

# What httpx2 raises for the network, the peer and a body that cannot be decompressed.
TRANSPORT_ERRORS: Final = (httpx2.RequestError,)


class Options(TypedDict):
    auth: Callable[[httpx2.Request], httpx2.Request]
    headers: dict[str, str]
    timeout: httpx2.Timeout
    limits: httpx2.Limits
    follow_redirects: bool
    trust_env: bool
    verify: ssl.SSLContext | bool


def options(target: Target, timeouts: Timeouts) -> Options:
    headers = {"User-Agent": f"legation/{__version__}", "Accept-Encoding": "identity"}
    if target.workspace is not None:
        headers["Legation-Workspace"] = target.workspace
    return Options(
        auth=target.sign,
        headers=headers,
        timeout=read_timeout(timeouts, timeouts.read),
        # One connection for each stream that is followed, however many: no wait for a free one.
        limits=httpx2.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE),
        follow_redirects=False,  # the token goes to the address it was given for and nowhere else
        trust_env=not target.is_local,
        verify=_trust(target),
    )


def read_timeout(timeouts: Timeouts, read: float) -> httpx2.Timeout:
    return httpx2.Timeout(connect=timeouts.connect, read=read, write=timeouts.read, pool=timeouts.connect)


def failure(what: str, error: httpx2.RequestError) -> Failure:
    timed_out = isinstance(error, httpx2.TimeoutException)
    # A request that was sent and not answered in time may still be at work: that is the caller's to repeat.
    passing = (
        isinstance(error, httpx2.ConnectTimeout) if timed_out else isinstance(error, httpx2.TransportError)
    )
    unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
    return unreachable(what, error, timed_out=timed_out, passing=passing)._replace(unsent=unsent)


def broke_off(what: str) -> Failure:
    return Failure(Unavailable(f"cannot {what}: the answer broke off in a line; ask for it again"), False)


def no_lines(what: str, status: int, headers: Mapping[str, str], body: bytes) -> Failure | None:
    """A refusal, or a page of somebody else's, say, where lines of JSON should come."""
    if status != 200:
        return refused(what, status, headers, body)
    if headers.get("content-type", "").lower().startswith("application/x-ndjson"):
        return None
    message = f"cannot {what}: what answered is not Legation; see what stands at that address"
    return Failure(Unavailable(message), passing=False)


def content_headers(body: bytes | None) -> dict[str, str]:
    return {} if body is None else {"Content-Type": "application/json"}


def name(target: Target, method: str, path: str) -> str:
    """How messages call a request; its query stays out."""
    return f"{method} {target.url(path)}"


def closed() -> Conflict:
    return Conflict("cannot use a client after it was closed: connect again")


def _trust(target: Target) -> ssl.SSLContext | bool:
    """One certificate and no other: whatever name it is for, it was given to us for this server."""
    if target.is_plain:  # loading the certificates that are never asked for would cost most of the start
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if target.certificate is None:
        return True
    try:
        context = ssl.create_default_context(cadata=target.certificate)
    except ssl.SSLError:
        raise ConfigInvalid(
            "cannot use the certificate: it is not one in PEM; give the server's own"
        ) from None
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    return context

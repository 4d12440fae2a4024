"""A tool at an HTTP address that its owner fixed.

INV-H1  One request a call, to that address and no other: no redirect is followed, and nothing is sent again.
INV-H2  Our secrets are in the request's headers and in nothing that comes back.

It speaks to the transport, below httpx2's client, which would keep cookies between agents and log every address with
the arguments in its query.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import msgspec

from legation import __version__
from legation.approvals.request import EffectToken, ToolReturn
from legation.gateway.tools import BODYLESS, HttpSpec, traceparent
from legation.redact import Redactor
from legation.secret import Secret
from legation.wire.action import MAX_DEPTH, Action, deeper_than

# The answer, as a JSON value: bounded while it is read, and without our secrets.

SHOWN: Final = 2_000  # characters of a refusal that its caller is told
READ_OF_REFUSAL: Final = 64 * 1024  # bytes: so many more that no secret is cut in two where it is shown

_CHARSETS: Final = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "windows-1252": "cp1252",
}
_IN_TEXT: Final = frozenset("\t\n\r\f")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


class _TooMuch(Exception):
    pass


class _NoText(Exception):
    pass


@dataclass(frozen=True, slots=True)
class AnswerReader:
    most: int  # bytes
    redactor: Redactor

    async def read(self, response: httpx2.Response) -> ToolReturn:
        status = response.status_code
        if not 200 <= status < 300:
            return await self._refusal(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            return _useless(status, "with compressed bytes, which were not asked for")
        try:
            body = await _read(response, self.most)
            return ToolReturn(status_code=200, result=self._value(response, body))
        except _TooMuch:
            return _useless(status, f"with more than {self.most} bytes; its owner can raise `max_answer`")
        except _NoText:
            return _useless(status, "with what is neither JSON nor text")

    async def _refusal(self, response: httpx2.Response) -> ToolReturn:
        status = response.status_code
        if 300 <= status < 400:
            return _useless(
                status, "with another address, which is not followed; its owner can write that one"
            )
        try:
            words = self._words(response, await _read(response, READ_OF_REFUSAL, cut=True))
        except _NoText:
            words = ""
        shown = words if len(words) <= SHOWN else f"{words[:SHOWN]}…"
        return ToolReturn(
            status_code=502,
            tool_status=status,
            error=f"it answered {status}: {shown}" if shown else f"it answered {status} without any words",
        )

    def _value(self, response: httpx2.Response, body: bytes) -> object:
        if not body:
            return None
        if _is_json(response):
            try:
                value = msgspec.json.decode(self._hidden(body))
                if not deeper_than(MAX_DEPTH, value):
                    return value
            except _UNREADABLE:
                pass  # what was done is done: its caller gets the answer as text
        return self._words(response, body)

    def _hidden(self, body: bytes) -> bytes:
        """JSON without our secrets, also where it writes characters of theirs as escapes, as .NET does with a `+`."""
        hidden = self.redactor.bytes(body)
        try:
            plain = msgspec.json.encode(msgspec.json.decode(hidden))
        except _UNREADABLE:
            return hidden
        again = self.redactor.bytes(plain)
        return hidden if again is plain else again

    def _words(self, response: httpx2.Response, body: bytes) -> str:
        charset = response.charset_encoding or "utf-8"
        codec = _CHARSETS.get(charset.lower())
        if codec is None or response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _NoText
        if _is_json(response):
            body = self._hidden(body)
        try:
            text = body.decode(codec)
        except UnicodeDecodeError:
            raise _NoText from None
        if any(char < " " and char not in _IN_TEXT for char in text):
            raise _NoText
        return self.redactor.text(text)


def _is_json(response: httpx2.Response) -> bool:
    media = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media == "application/json" or media.endswith("+json")


async def _read(response: httpx2.Response, most: int, *, cut: bool = False) -> bytes:
    parts = bytearray()
    async for part in response.aiter_raw():
        parts += part
        if len(parts) > most:
            if not cut:
                raise _TooMuch
            # A character that is cut in two is no reason to show nothing.
            return bytes(parts[:most]).decode("utf-8", "ignore").encode()
    return bytes(parts)


def _useless(status: int, how: str) -> ToolReturn:
    """The failure of a tool that answered, so that its work is probably done; but there is no result to give."""
    return ToolReturn(status_code=502, tool_status=status, error=f"it answered {status} {how}")


CONNECT: Final = 10.0  # seconds: the network's time, and the tool's machine's
# Below what servers and proxies give an idle connection (5 to 75): a call must not meet the moment they close it.
KEEP_ALIVE: Final = 3.0
KEPT: Final = 32  # connections without a call


def new_transport() -> httpx2.AsyncHTTPTransport:
    """A transport for all tools: connections are kept by address. A call never waits for another's connection."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT, keepalive_expiry=KEEP_ALIVE)
    return httpx2.AsyncHTTPTransport(verify=True, limits=limits, retries=0)


class Unfit(Exception):
    """The arguments cannot be sent so. The words hold none of them."""


class HttpTool:
    def __init__(self, spec: HttpSpec, transport: httpx2.AsyncBaseTransport, redactor: Redactor) -> None:
        self.name, self.kind = spec.name, spec.kind
        self.folder, self.arguments = spec.folder, spec.arguments
        self._spec = spec
        self._transport = transport
        self._answers = AnswerReader(spec.max_answer, redactor)

    async def call(self, action: Action, token: EffectToken) -> ToolReturn:
        try:
            request = self._request(action.params, token)
        except Unfit as error:
            return ToolReturn(status_code=502, error=f"{error}; nothing was sent")
        try:
            async with asyncio.timeout(self._spec.timeout):
                response = await self._transport.handle_async_request(request)
                response.request = request
                try:
                    return await self._answers.read(response)
                finally:
                    await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol):
            return ToolReturn(status_code=502, error="it cannot be reached; nothing was sent")
        except (TimeoutError, httpx2.TimeoutException):
            return ToolReturn(
                status_code=504,
                error=f"it did not answer within {self._spec.timeout:g} s; whether it has done its work is not known",
            )
        except httpx2.RequestError:
            return ToolReturn(
                status_code=502, error="the connection broke off; whether it has done its work is not known"
            )

    def _request(self, params: Mapping[str, object], token: EffectToken) -> httpx2.Request:
        spec = self._spec
        headers = {
            "User-Agent": f"legation/{__version__}",
            "Accept": "application/json, text/*;q=0.9, */*;q=0.1",
            "Accept-Encoding": "identity",
            **{
                name: value.reveal() if isinstance(value, Secret) else value
                for name, value in spec.headers.items()
            },
            "Idempotency-Key": token.key,
            "Legation-Trace-Id": token.trace_id,
            "Traceparent": traceparent(token.trace_id),
        }
        # The whole has one bound, in `call`; of its parts only connecting has one of its own.
        extensions = {"timeout": {"connect": CONNECT, "read": None, "write": None, "pool": None}}
        if spec.method in BODYLESS:
            return _bodyless(spec.method, with_query(spec.url, params), headers, extensions)
        headers["Content-Type"] = "application/json"
        body = json.dumps(params if isinstance(params, dict) else dict(params)).encode()
        return httpx2.Request(spec.method, spec.url, headers=headers, content=body, extensions=extensions)


def _bodyless(
    method: str, url: str, headers: Mapping[str, str], extensions: dict[str, dict[str, float | None]]
) -> httpx2.Request:
    try:
        return httpx2.Request(method, url, headers=headers, extensions=extensions)
    except httpx2.InvalidURL:
        raise Unfit("the arguments make an address that is too long") from None


def with_query(url: str, params: Mapping[str, object]) -> str:
    """Scalars, and lists of them as repeated names. What the address has already is the owner's, and stays."""
    fixed = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    if fixed & params.keys():
        raise Unfit("an argument has the name of a part of the tool's address")
    pairs = [(name, text) for name, value in params.items() for text in _texts(value)]
    if not pairs:
        return url
    mark = "&" if urlsplit(url).query else "" if url.endswith("?") else "?"
    try:
        return f"{url}{mark}{urlencode(pairs)}"
    except UnicodeEncodeError:
        raise Unfit("an argument is no text that an address can hold") from None


def _texts(value: object) -> Iterator[str]:
    """Texts of an argument; none for null, which is one that is not there."""
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, str):
            yield each
        elif isinstance(each, bool | int | float):
            yield json.dumps(each)
        elif each is not None:
            raise Unfit("an argument is a map or a nested list, which no address can hold")

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
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2

from legation import __version__
from legation.approvals.request import Returned, Token
from legation.gateway.http_answer import AnswerReader
from legation.gateway.http_spec import BODYLESS, HttpSpec
from legation.gateway.tool import Failed
from legation.gateway.traceparent import traceparent
from legation.redact import Redactor
from legation.secret import Secret
from legation.wire.action import Action

CONNECT: Final = 10.0  # seconds: the network's time, and the tool's machine's
# Below what servers and proxies give an idle connection (5 to 75): a call must not meet the moment they close it.
KEEP_ALIVE: Final = 3.0
KEPT: Final = 32  # connections without a call


def new_transport() -> httpx2.AsyncHTTPTransport:
    """For all tools: connections are kept by address. A call never waits for another's connection."""
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

    async def call(self, action: Action, token: Token) -> Returned:
        try:
            request = self._request(action.params, token)
        except Unfit as error:
            return Failed(status_code=502, error=f"{error}; nothing was sent")
        try:
            async with asyncio.timeout(self._spec.timeout):
                response = await self._transport.handle_async_request(request)
                response.request = request
                try:
                    return await self._answers.read(response)
                finally:
                    await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol):
            return Failed(status_code=502, error="it cannot be reached; nothing was sent")
        except (TimeoutError, httpx2.TimeoutException):
            return Failed(
                status_code=504,
                error=f"it did not answer within {self._spec.timeout:g} s; whether it has done its work is not known",
            )
        except httpx2.RequestError:
            return Failed(
                status_code=502, error="the connection broke off; whether it has done its work is not known"
            )

    def _request(self, params: Mapping[str, object], token: Token) -> httpx2.Request:
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
    """Nothing for null: an argument that is not there."""
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, str):
            yield each
        elif isinstance(each, bool | int | float):
            yield json.dumps(each)
        elif each is not None:
            raise Unfit("an argument is a map or a nested list, which no address can hold")

"""Calls to one OpenCode server. What comes back is bounded, redacted, and typed.

Its own errors are `AgentRefused`, a server that does not answer in time is `TimedOut`, one that is gone `TransportClosed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import httpx2
import msgspec

from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, TimedOut, TransportClosed
from legation.proc.lines import Redact
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError

USER: Final = "opencode"
CALL_LIMIT: Final = 30.0  # seconds for one call where the caller has no limit of its own: the server's time
_OK: Final = range(200, 300)
_CODES: Final[Mapping[int, int]] = {
    400: ErrorCode.INVALID_PARAMS,
    401: ErrorCode.AUTH_REQUIRED,
    404: ErrorCode.RESOURCE_NOT_FOUND,
}

_T = TypeVar("_T")


class Api:
    """`max_answer` bounds one answer, in bytes."""

    def __init__(self, url: str, password: str, *, redact: Redact, max_answer: int) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url, auth=(USER, password), trust_env=False, timeout=CALL_LIMIT
        )
        self._redact = redact
        self._max_answer = max_answer
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        await self._client.aclose()

    async def get(
        self,
        path: str,
        into: type[_T],
        *,
        directory: str | None = None,
        timeout: float = CALL_LIMIT,
        **query: str | int,
    ) -> _T:
        raw = await self._send("GET", path, None, directory, timeout, query)
        return _read(path, raw, into)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any],
        into: type[_T],
        *,
        directory: str | None = None,
        timeout: float = CALL_LIMIT,
    ) -> _T:
        return _read(path, await self._send("POST", path, body, directory, timeout), into)

    async def do(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, directory: str, timeout: float
    ) -> None:
        """What it answers is of no interest."""
        await self._send(method, path, body, directory, timeout)

    def stream(self, path: str, silence: float) -> Any:
        """A context manager whose answer is read in pieces; `silence` seconds without one end it."""
        timeout = httpx2.Timeout(CALL_LIMIT, read=silence)
        return self._client.stream("GET", path, timeout=timeout)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        directory: str | None,
        timeout: float,
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        if self._closed:
            raise TransportClosed(f"cannot send {method} {path}: OpenCode's server has ended; start it again")
        params = {**({} if directory is None else {"directory": directory}), **(query or {})}
        content = None if body is None else jsontext.write(body)
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            async with self._client.stream(
                method, path, params=params, content=content, headers=headers, timeout=timeout
            ) as answer:
                raw = self._redact(await self._bounded(path, answer))
        except httpx2.TimeoutException:
            raise TimedOut(
                f"cannot complete {method} {path}: OpenCode did not answer within {timeout:g} s"
            ) from None
        except httpx2.HTTPError as error:
            raise TransportClosed(
                f"cannot complete {method} {path}: the connection to OpenCode broke ({type(error).__name__});"
                " look at its exit"
            ) from None
        if answer.status_code not in _OK:
            raise _refused(f"{method} {path}", answer.status_code, raw)
        return raw

    async def _bounded(self, path: str, answer: httpx2.Response) -> bytes:
        pieces, size = [], 0
        async for piece in answer.aiter_bytes():
            size += len(piece)
            if size > self._max_answer:
                raise AgentError(
                    f"cannot read {path}: OpenCode's answer is longer than {self._max_answer} bytes; raise max_line"
                )
            pieces.append(piece)
        return b"".join(pieces)


def _read(path: str, raw: bytes, into: type[_T]) -> _T:
    try:
        return msgspec.convert(jsontext.read(raw), into)
    except jsontext.READ_ERRORS:
        raise AgentError(
            f"cannot read {path}: OpenCode answered with something else; use a version that Legation knows"
        ) from None


class _Complaint(msgspec.Struct, frozen=True):
    message: str | None = None
    data: Mapping[str, Any] | None = None


def _refused(what: str, status: int, raw: bytes) -> AgentRefused:
    try:
        said = msgspec.json.decode(raw, type=_Complaint)
    except jsontext.READ_ERRORS:
        said = _Complaint()
    message = said.message or (said.data or {}).get("message") or f"status {status}"
    return AgentRefused(what, RpcError(_CODES.get(status, ErrorCode.INTERNAL_ERROR), str(message)))

"""What an HTTP tool answered, as a JSON value: bounded while it is read, and without our secrets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from legation.approvals.request import Returned
from legation.gateway.tool import Failed
from legation.redact import Redactor
from legation.wire.action import MAX_DEPTH, deeper_than

if TYPE_CHECKING:
    import httpx2

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

    async def read(self, response: httpx2.Response) -> Returned:
        status = response.status_code
        if not 200 <= status < 300:
            return await self._refusal(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            return _useless(status, "with compressed bytes, which were not asked for")
        try:
            body = await _read(response, self.most)
            return Returned(status_code=200, result=self._value(response, body))
        except _TooMuch:
            return _useless(status, f"with more than {self.most} bytes; its owner can raise `max_answer`")
        except _NoText:
            return _useless(status, "with what is neither JSON nor text")

    async def _refusal(self, response: httpx2.Response) -> Failed:
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
        return Failed(
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


def _useless(status: int, how: str) -> Failed:
    """It answered, so that its work is probably done; but there is no result to give."""
    return Failed(status_code=502, tool_status=status, error=f"it answered {status} {how}")

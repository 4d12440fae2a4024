"""Bytes of the log inside another JSON text.

INV-U5  Whatever the bytes are, what comes out is one line of JSON in UTF-8 that readers can read: an agent's text breaks
        no answer and no SSE frame. What cannot be read is a JSON string of the text.
"""

import json
import re
from typing import Final

import msgspec

from legation.wire import jsontext

MAX_NESTING: Final = 100
"""Rust's readers stop at 128. And how deep our own can go depends on who calls: what one page can read and another
cannot would have other numbers there."""

# A text without an end is one to the end: looking for it again from every quote would take for ever.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)

_DEEP: Final = b"[" * (MAX_NESTING + 1)

_skim = msgspec.json.Decoder(msgspec.Raw).decode  # holds the text to the grammar, makes nothing of it


def nests_too_deep(raw: bytes) -> bool:
    if raw.find(b"{", MAX_NESTING) < 0 and raw.find(b"[", MAX_NESTING) < 0:
        return False  # so many bytes open no more than so many; nearly every text ends here
    if raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return False
    # All that is left are brackets; each pass takes out what is innermost, at the speed of a copy.
    marks = _STRINGS.sub(b"", raw).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_NESTING):
        if _DEEP in marks:
            return True
        before, marks = len(marks), marks.replace(b"[]", b"")
        if len(marks) == before:
            return False  # nothing is left, or what is left is no JSON
    return b"[" in marks


def embedded(raw: bytes) -> msgspec.Raw:
    if nests_too_deep(raw):
        return msgspec.Raw(json_bytes(raw.decode("utf-8", "replace")))
    try:
        found = _skim(raw)
        raw.decode()
    except jsontext.READ_ERRORS:
        return msgspec.Raw(_rewritten(raw))
    return msgspec.Raw(_rewritten(raw)) if b"\n" in raw or b"\r" in raw else found


def _rewritten(raw: bytes) -> bytes:
    try:
        return json_bytes(jsontext.read_leniently(raw))
    except jsontext.READ_ERRORS:
        return json_bytes(raw.decode("utf-8", "replace"))


def json_bytes(value: object) -> bytes:
    """Compact JSON of anything that was JSON once; lone surrogates are written as escapes."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, enc_hook=_unwrapped)
        return json.dumps(plain, separators=(",", ":")).encode()


def json_text(value: object) -> str:
    """As `json_bytes`; nothing raises."""
    try:
        return json_bytes(value).decode()
    except _UNWRITABLE:
        return "null"


def json_value(value: object) -> msgspec.Raw:
    """Written here and now: what cannot be written is found here, and not in a reader's page."""
    return msgspec.Raw(json_text(value).encode())


def _unwrapped(value: object) -> object:
    if isinstance(value, msgspec.Raw):
        return jsontext.read(bytes(value))
    raise TypeError(type(value).__name__)

"""Hides registered secrets in text that Legation did not write, by literal replacement.

A secret is looked for as it is and in the forms other programs give it: percent-encoded, in base64 (also inside
a longer base64 text), and each of these inside a JSON string, or inside JSON that is itself in a JSON string.

INV-1  No form of a registered secret that stands in the input stands in the output.
INV-2  Without a match the input comes back, the very same object.
INV-3  A secret inside a JSON string leaves valid JSON: an escape sequence is replaced whole or not at all.

What spans two blocks is not found: callers pass whole lines. A secret that holds a double quote can equal a
piece of JSON structure; the line is then still hidden, but no longer JSON.
"""

from __future__ import annotations

import base64
import builtins
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, quote_plus

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from legation.errors import InvalidParams
from legation.secret import Secret

# A shorter one would turn up by chance and shred the output.
MIN_BYTES: Final = 6

_PROBE_BYTES: Final = 12
_PROBES_AT_ONCE: Final = 64  # as many as are looked for with vector instructions
_ESCAPE: Final = re.compile(rb'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')
_ESCAPE_REACH: Final = 6  # bytes in the longest escape
_PERCENT: Final = re.compile(r"%[0-9A-F]{2}")
_HEX: Final = re.compile(r"\\u[0-9a-f]{4}")


class Redactor:
    __slots__ = ("_markers", "_probes", "_searches")

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._markers: dict[builtins.bytes, builtins.bytes] = {}  # form -> what stands in its place
        self._probes: set[builtins.bytes] = set()
        self._searches = _Searches(0, ())  # made when they are needed: secrets come many at a time
        for secret in secrets:
            self.add(secret)

    def add(self, secret: Secret) -> None:
        if len(secret.reveal().encode()) < MIN_BYTES:
            raise InvalidParams(
                f"cannot redact secret {secret.name}: it is shorter than {MIN_BYTES} bytes and would hide "
                "ordinary text; use a longer one"
            )
        marker = f"[redacted:{secret.name}]".encode()
        forms = [form.encode() for form in _forms(secret.reveal())]
        shown = {marker, *self._markers.values()}
        if any(form in each for form in forms for each in shown) or any(
            form in marker for form in self._markers
        ):
            raise InvalidParams(
                f"cannot redact secret {secret.name}: its value or name is part of the other, or of another "
                "secret's name; rename it or use a real value"
            )
        self._markers = dict.fromkeys(forms, marker) | self._markers
        self._probes = self._probes | _probes(forms)

    def text(self, text: str) -> str:
        block = text.encode("utf-8", "surrogatepass")
        hidden = self.bytes(block)
        return text if hidden is block else hidden.decode("utf-8", "surrogatepass")

    def bytes(self, block: builtins.bytes) -> builtins.bytes:
        probes, searches = self._probes, self._searches
        if searches.probes != len(probes):  # a log record may come past in another thread meanwhile
            searches = self._searches = _searches_for(sorted(probes))
        for search in searches.made:
            if search.find_matches_as_indexes(block):
                return self._hide(block)
        return block

    def _hide(self, block: builtins.bytes) -> builtins.bytes:
        parts: list[builtins.bytes] = []
        done = 0
        for start, end, marker in self._spans(block):
            if start >= done:
                parts += (block[done:start], marker)
            done = max(done, end)  # spans that overlap go under the first one's marker
        return b"".join((*parts, block[done:])) if parts else block

    def _spans(self, block: builtins.bytes) -> list[tuple[int, int, builtins.bytes]]:
        found = []
        for form, marker in self._markers.items():
            end = 0
            while (start := block.find(form, end)) >= 0:
                end = start + len(form)
                found.append((_escape_at(block, start)[0], _escape_at(block, end)[1], marker))
        return sorted(found, key=lambda span: (span[0], -span[1]))


class RedactingFilter(logging.Filter):
    """A filter for handlers, not loggers: a logger's filter does not see the records of the loggers below it."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None  # else a formatter would print the exception anew
        record.msg, record.args = _message(record), ()
        for field, value in vars(record).items():
            if isinstance(value, str):
                setattr(record, field, self._redactor.text(value))
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        # Left to `logging`, the arguments would be printed to stderr as they are.
        return f"cannot format a log message: correct its arguments at {record.pathname}:{record.lineno}"


def _probes(forms: Iterable[bytes]) -> set[bytes]:
    """Few and short pieces, one at least in every form: a block without any of them holds no secret."""
    probes: set[bytes] = set()
    for form in sorted(forms, key=len):
        if not any(probe in form for probe in probes):
            probes.add(form[-_PROBE_BYTES:])  # the end, as keys of one vendor all start alike
    return probes


class _Searches(NamedTuple):
    """`probes` is how many they are for: there are never fewer."""

    probes: int
    made: tuple[BytesAhoCorasick, ...]


def _searches_for(probes: Sequence[bytes]) -> _Searches:
    """Ten of them, and more, take no longer than one: everything that an agent says comes past here."""
    groups = [probes[start : start + _PROBES_AT_ONCE] for start in range(0, len(probes), _PROBES_AT_ONCE)]
    made = tuple(BytesAhoCorasick(group, matchkind=MatchKind.LeftmostFirst) for group in groups)
    return _Searches(len(probes), made)


def _escape_at(block: bytes, position: int) -> tuple[int, int]:
    """The span of the JSON escape that `position` would cut in two, else an empty span there."""
    for start in range(max(position - _ESCAPE_REACH + 1, 0), position):
        if block[start] == ord("\\") and _backslashes_before(block, start) % 2 == 0:
            escape = _ESCAPE.match(block, start)
            if escape and escape.end() > position:
                return escape.span()
    return position, position


def _backslashes_before(block: bytes, position: int) -> int:
    start = position
    while start and block[start - 1] == ord("\\"):
        start -= 1
    return position - start


def _forms(value: str) -> set[str]:
    plain = {value, *_percent_forms(value), *_base64_forms(value.encode())}
    once = {form for text in plain for form in _json_forms(text)}
    twice = {form for text in once for form in _json_forms(text)}
    return plain | once | twice


def _json_forms(text: str) -> Iterator[str]:
    for escaped in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        for form in (escaped, _HEX.sub(lambda code: r"\u" + code[0][2:].upper(), escaped)):
            yield form
            yield form.replace("/", r"\/")
            yield re.sub("[<>&]", lambda char: rf"\u{ord(char[0]):04x}", form)  # for text put into HTML


def _percent_forms(value: str) -> Iterator[str]:
    # Strict, as in a path, as in JavaScript's encodeURIComponent, as in a form.
    for form in (quote(value, ""), quote(value, "/"), quote(value, "!'()*"), quote_plus(value)):
        yield form
        yield _PERCENT.sub(lambda code: code[0].lower(), form)


def _base64_forms(raw: bytes) -> Iterator[str]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        alone = encode(raw).decode()
        yield alone
        yield alone.rstrip("=")
        for before in range(3):
            # Inside a longer text the first and last character also hold bits of the neighbours: not ours.
            first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
            yield encode(bytes(before) + raw).decode()[first:last]

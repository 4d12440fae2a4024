"""What stands around the text of a message's chunks: mostly the same from one chunk to the next, so that only the text
has to be read.

INV-U7  Nobody can tell: what a mold reads is what a whole reading gives. A text is a JSON string in a place where, as
        was tried, one string is as good as another.
"""

import re
from typing import Final

import msgspec

from legation.wire import jsontext
from legation.wire.acp.content import Text
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CompactionSummaryChunk,
    UserMessageChunk,
    decode_update,
)
from legation.wire.events import WHOLE, Event, Span

Chunk = AgentMessageChunk | AgentThoughtChunk | UserMessageChunk | CompactionSummaryChunk

_TEXT: Final = re.compile(rb'"text" *: *"((?:[^"\\]++|\\.)*+)"')
_LONGEST: Final = 256 * 1024  # bytes: to look for the text of a longer one takes longer than to read it whole
_SAMPLE: Final = "another text"

_skim = msgspec.json.Decoder(msgspec.Raw).decode  # holds the text to the grammar, makes nothing of it

read_text = msgspec.json.Decoder(str).decode


class Mold(msgspec.Struct, frozen=True):
    """Of events of that type and span: `before` ends with the quote before the text, `after` begins with the one behind
    it."""

    type: str
    span: Span
    before: bytes
    after: bytes

    def literal(self, raw: bytes) -> bytes:
        """What may be the JSON string of the text: `read_text` says whether it is. Empty if it cannot be."""
        if raw.startswith(self.before) and raw.endswith(self.after):
            return raw[len(self.before) - 1 : len(raw) - len(self.after) + 1]
        return b""


def mold_of(event: Event, chunk: Chunk) -> Mold | None:
    """None where the text is not in a place of its own, or not in the first that looks like one, or very long."""
    raw, (start, behind) = event.raw, event.span
    found = _TEXT.search(raw, start) if len(raw) <= _LONGEST else None
    if found is None or type(chunk.content) is not Text:
        return None
    before, after = raw[: found.start(1)], raw[found.end(1) :]
    tried = decode_update(before[start:] + _SAMPLE.encode() + after[: len(after) - behind])
    expected = msgspec.structs.replace(chunk, content=msgspec.structs.replace(chunk.content, text=_SAMPLE))
    try:
        is_the_text = read_text(b'"%b"' % found[1]) == chunk.content.text
    except jsontext.READ_ERRORS:
        return None
    return Mold(event.type, event.span, before, after) if is_the_text and tried == expected else None


def whole_text(event: Event, chunk: Chunk) -> memoryview:
    """The JSON string of a text that is cut in the digest, as it stands in the event, of which no copy is made; empty if
    it cannot be told."""
    mold = mold_of(msgspec.structs.replace(event, raw=event.digest, span=WHOLE), chunk)
    before, behind = event.span
    end = len(event.raw) - behind
    if mold is None or not (
        event.raw.startswith(mold.before, before) and event.raw.endswith(mold.after, 0, end)
    ):
        return memoryview(b"")
    literal = memoryview(event.raw)[before + len(mold.before) - 1 : end - len(mold.after) + 1]
    try:
        _skim(literal)
    except jsontext.READ_ERRORS:
        return memoryview(b"")
    return literal

"""The end of a terminal's output, as ACP wants it: at most so many bytes of UTF-8, cut between characters."""

from __future__ import annotations

import codecs

_LONGEST_REST = 3  # bytes of a character without its first


class OutputTail:
    """INV-T2: memory is bounded by the limit, whatever is added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._cut = False

    def add(self, data: bytes) -> None:
        self._kept += data
        if (excess := len(self._kept) - self._limit) > 0:
            del self._kept[:excess]
            self._cut = True

    def text(self, *, ended: bool) -> tuple[str, bool]:
        """The text, and whether anything is missing before it. Until the end a character that is not complete
        yet is left out; what is no UTF-8 becomes U+FFFD, which takes room too."""
        kept = _whole_characters(self._kept) if self._cut else bytes(self._kept)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, final=ended)
        shown = text.encode()
        if len(shown) <= self._limit:
            return text, self._cut
        return _whole_characters(shown[len(shown) - self._limit :]).decode(), True


def _whole_characters(data: bytes | bytearray) -> bytes:
    """Without the rest of a character whose beginning was cut off."""
    start = 0
    while start < min(_LONGEST_REST, len(data)) and data[start] & 0b1100_0000 == 0b1000_0000:
        start += 1
    return bytes(data[start:])

"""Lines out of the chunks of a body. No I/O.

INV-C6  A line is given only when its end has come: what is given was written so, whole.
"""

from __future__ import annotations


class Lines:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk, each with its newline."""
        if b"\n" not in chunk:
            self._pieces.append(chunk)
            return []
        whole, _, rest = b"".join((*self._pieces, chunk)).rpartition(b"\n")
        self._pieces = [rest] if rest else []
        return [line + b"\n" for line in whole.split(b"\n")]

    @property
    def torn(self) -> bool:
        """A line has begun and not ended."""
        return any(self._pieces)

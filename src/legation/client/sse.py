"""Server-sent events, sans I/O: bytes in, frames out.

INV-C2  However the bytes are cut into chunks, the frames are the same.

Two deviations from the standard, both harmless to others' servers: a frame with an event name but no data is
given too, and data stays bytes, so that what is no UTF-8 is not mangled on the way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from legation.errors import InternalError

MAX_FRAME_BYTES: Final = 64 * 2**20
_RETRY_DIGITS: Final = 10  # milliseconds of a dozen days; what is longer is no wish but an accident
_BOM: Final = b"\xef\xbb\xbf"


class Frame(NamedTuple):
    event: str
    data: bytes
    id: str


class Parser:
    __slots__ = (
        "_at_start",
        "_data",
        "_event",
        "_held",
        "_held_size",
        "_id",
        "_limit",
        "_named",
        "_size",
        "_skip_lf",
        "retry",
    )

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.retry: float | None = None  # seconds, as the server last asked for
        self._limit = limit
        self._held: list[bytes] = []  # pieces of a line whose end has not come
        self._held_size = 0
        self._size = 0  # of the data of the frame that is not complete yet
        self._at_start = True
        self._skip_lf = False
        self._data: list[bytes] = []
        self._event = ""
        self._id = ""
        self._named = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. Raises InternalError on one beyond the limit."""
        chunk = self._without_bom(chunk)
        if not chunk:
            return []
        if self._skip_lf:  # the second half of a CRLF whose CR ended the chunk before
            chunk = chunk.removeprefix(b"\n")
        self._skip_lf = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._lines(chunk)

    def _without_bom(self, chunk: bytes) -> bytes:
        if not self._at_start:
            return chunk
        chunk = b"".join(self._held) + chunk
        self._held.clear()
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._held = [chunk] if chunk else []
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _lines(self, chunk: bytes) -> list[Frame]:
        *lines, rest = chunk.split(b"\n")
        frames: list[Frame] = []
        if lines and self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
            self._held_size = 0
        for line in lines:
            if line:
                self._field(line)
            elif self._data or self._named:
                frames.append(self._complete())
        if rest:
            self._held.append(rest)
            self._held_size += len(rest)
            self._check(self._size + self._held_size)
        return frames

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value)
            self._check(self._size)
            self._data.append(value)
        elif name == b"event":
            self._event, self._named = value.decode("utf-8", "replace"), bool(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < _RETRY_DIGITS:
            self.retry = int(value) / 1000

    def _complete(self) -> Frame:
        frame = Frame(self._event, b"\n".join(self._data), self._id)
        self._data, self._event, self._named, self._size = [], "", False, 0
        return frame

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise InternalError(
                f"cannot read the stream: one event is longer than {self._limit} bytes; read it by pages instead"
            )

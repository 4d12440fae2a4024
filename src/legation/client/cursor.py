"""How far each followed stream was read.

INV-C4  A number is given at most once and in order. Within one connection numbers are dense: a number that was
given is dropped, a jump means that something was lost on the way, and the connection with it. Only the first
number of a connection may lie further on than asked: what was between was replaced (`first_seq` moved).
"""

from __future__ import annotations

from collections.abc import Mapping


class Broken(Exception):
    """What came over this connection cannot be right; what came before it can. Connect again."""


class Cursors:
    def __init__(self, after: Mapping[str, int]) -> None:
        self._after = dict(after)
        self._expected: dict[str, int] = {}  # the next number of this connection, once its first was seen

    def __getitem__(self, stream: str) -> int:
        return self._after[stream]

    def connect(self) -> None:
        self._expected.clear()

    def take(self, stream: str, seq: int) -> bool:
        """Whether this event is new; raises Broken when one before it is missing."""
        if stream not in self._after:
            raise Broken(f"an event of stream {stream!r}, which was not asked for")
        expected = self._expected.get(stream, seq)
        if seq > expected:
            raise Broken(f"event {seq} of {stream!r} where {expected} was next")
        self._expected[stream] = max(expected, seq + 1)
        if seq <= self._after[stream]:
            return False
        self._after[stream] = seq
        return True

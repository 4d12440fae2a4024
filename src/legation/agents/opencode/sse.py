"""One event stream, cut into events: a `data:` line each, bounded and redacted before anybody sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from legation.proc.lines import LineSplitter, Redact

_FIELD: Final = b"data:"


class EventSplitter:
    """What is longer than `max_event` is skipped and reported by its size."""

    def __init__(self, *, max_event: int, redact: Redact, on_too_long: Callable[[int], None]) -> None:
        self._lines = LineSplitter(max_line=max_event, redact=redact, on_line_too_long=on_too_long)

    def feed(self, data: bytes) -> list[bytes]:
        self._lines.feed(data)
        return [line[len(_FIELD) :].strip() for line in self._lines.take() if line.startswith(_FIELD)]

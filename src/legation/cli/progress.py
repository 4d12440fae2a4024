"""How far long work is: one line that is written over, where somebody looks at it, and nothing elsewhere."""

from __future__ import annotations

import time
from threading import Lock
from types import TracebackType
from typing import Final, Self, TextIO

from legation.cli.terminal import line

PERIOD: Final = 0.1  # seconds between two looks: the reader's eye
_MEGABYTE: Final = 1_000_000


class ProgressLine:
    """`total` is that of every call which gives none, where it is known; `then` is what comes when all of it is there."""

    def __init__(self, name: str, out: TextIO, *, total: int | None = None, then: str | None = None) -> None:
        self._name, self._out, self._mutex = line(name), out, Lock()
        self._total, self._then = total, then
        self._shown = 0.0
        self._width = 0

    def __call__(self, done: int, total: int | None = None) -> None:
        total = self._total if total is None else total
        now, is_all = time.monotonic(), total is not None and done >= total
        with self._mutex:
            if not self._out.isatty() or (now - self._shown < PERIOD and not is_all):
                return
            self._shown = now
            of = "" if total is None else f" of {total // _MEGABYTE}"
            text = f"{self._name}: {done // _MEGABYTE}{of} MB"
            if is_all and self._then is not None:
                text += f", {self._then}"
            self._out.write(f"\r{text.ljust(self._width)}")
            self._out.flush()
            self._width = max(self._width, len(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()

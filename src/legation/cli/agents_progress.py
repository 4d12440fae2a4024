"""How far an installation is: one line that is written over, where somebody looks at it, and nothing elsewhere."""

from __future__ import annotations

import time
from threading import Lock
from types import TracebackType
from typing import Final, Self, TextIO

PERIOD: Final = 0.1  # seconds between two looks: the reader's eye
_MEGABYTE: Final = 1_000_000


class ProgressLine:
    def __init__(self, name: str, out: TextIO) -> None:
        self._name, self._out, self._mutex = name, out, Lock()
        self._shown = 0.0
        self._width = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        with self._mutex:
            if not self._out.isatty() or (now - self._shown < PERIOD and done < total):
                return
            self._shown = now
            text = f"{self._name}: {done // _MEGABYTE} of {total // _MEGABYTE} MB"
            if done >= total:
                text += ", unpacking"
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

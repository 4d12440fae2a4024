"""`legation`, with the functions of its package noted that run: a program of the standard library alone.

argv: SOCKET TIMERS ARG...   SOCKET is the driver's, TIMERS functions that count for nothing, nor does what they call, with
                             commas between; ARG... are those of `legation`.

The driver says `begin`, `quiet SECONDS` (answered when no function has run for so long) and `end` (answered with the
names, as JSON). With SOCKET `=FILE` all is noted from the first line to the last, and the names are in FILE at the end.

Noted are calls, also of a coroutine that goes on, in every thread. Bodies of modules and classes are not, nor are
comprehensions: Python 3.12 has none. What ran before `begin` for the last time is start-up, and nobody's way.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import socket
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
LOOK = 0.02  # seconds between two looks at whether it is quiet


class Recorder:
    def __init__(self, timers: frozenset[str]) -> None:
        spec = importlib.util.find_spec("legation")
        assert spec is not None
        assert spec.origin is not None
        self._package = f"{Path(spec.origin).parent}/"
        self._timers = timers
        self._names: dict[CodeType, str | None] = {}  # None: none of ours
        self._ran: set[str] = set()
        self._on = False
        self._last = 0.0

    def install(self) -> None:
        """For this thread and for all that are begun later."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def begin(self) -> None:
        self._ran = set()
        self._last = time.monotonic()
        self._on = True

    def quiet(self, seconds: float) -> None:
        while time.monotonic() - self._last < seconds:
            time.sleep(LOOK)

    def end(self) -> list[str]:
        self._on = False
        return sorted(self._ran)

    def _profile(self, frame: FrameType, event: str, _arg: object) -> None:
        if event != "call" or not self._on:
            return
        name = self._name(frame.f_code)
        if name is None or (name not in self._ran and self._is_timed(frame)):
            return
        self._ran.add(name)
        self._last = time.monotonic()

    def _name(self, code: CodeType) -> str | None:
        if code not in self._names:
            is_function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
            is_ours = code.co_filename.startswith(self._package)
            place = code.co_filename.removeprefix(self._package)
            self._names[code] = f"{place}:{code.co_qualname}" if is_function and is_ours else None
        return self._names[code]

    def _is_timed(self, frame: FrameType) -> bool:
        found: FrameType | None = frame
        while found is not None:
            if self._name(found.f_code) in self._timers:
                return True
            found = found.f_back
        return False


def obey(recorder: Recorder, driver: socket.socket) -> None:
    with driver, driver.makefile("rw") as lines:
        for line in lines:
            answer: object = None
            match line.split():
                case ["begin"]:
                    recorder.begin()
                case ["quiet", seconds]:
                    recorder.quiet(float(seconds))
                case ["end"]:
                    answer = recorder.end()
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


def main(place: str, timers: str, *argv: str) -> None:
    recorder = Recorder(frozenset(timers.split(",")))
    sys.argv = ["legation", *argv]
    whole = place.startswith("=")
    if whole:
        recorder.begin()
    else:
        driver = socket.socket(socket.AF_UNIX)
        driver.connect(place)
        # Before the recorder is installed: this thread is none of the server's.
        threading.Thread(target=obey, args=(recorder, driver), daemon=True).start()
    recorder.install()
    try:
        from legation.cli.main import main as run

        run()
    finally:
        if whole:
            Path(place[1:]).write_text(json.dumps(recorder.end()))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A terminal that gives every key at once, and is as it was afterwards, whatever happens in between."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TextIO

# Another screen, no cursor, no line wrapping, pasted text marked as such; and all of it back.
ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h"
LEAVE: Final = "\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
CHUNK: Final = 4096

_PASTE: Final = "\x1b[200~"
_PASTED: Final = "\x1b[201~"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_BEGUN: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")
_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "erase",
    "\x08": "erase",
    " ": "space",
    "\x04": "end",
}


class Key(NamedTuple):
    name: str  # of a letter, the letter
    text: str = ""  # what it writes


class Keys:
    """Keys out of bytes. What was pasted is one key `paste`: no letter of it is an answer."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pasting: str | None = None
        self._begun = ""  # a sequence whose end has not come

    def feed(self, typed: bytes) -> list[Key]:
        return list(self._feed(typed))

    def _feed(self, typed: bytes) -> Iterator[Key]:
        text = self._decode(typed)
        if self._begun != "\x1b" or text[:1] in ("[", "O"):  # an escape of its own was told already
            text = self._begun + text
        self._begun = ""
        while text:
            if self._pasting is not None:
                pasted, mark, text = (self._pasting + text).partition(_PASTED)
                self._pasting = None if mark else pasted
                if mark:
                    yield Key("paste", pasted)
                continue
            if text.startswith(_PASTE):
                self._pasting, text = "", text.removeprefix(_PASTE)
                continue
            if _BEGUN.fullmatch(text):
                self._begun = text
                if text == "\x1b":
                    yield Key("escape")
                return
            found = _SEQUENCE.match(text)
            token = found[0] if found else text[0]
            text = text[len(token) :]
            yield Key(_NAMES.get(token, token), token if token.isprintable() else "")


@contextmanager
def every_key(descriptor: int, out: TextIO) -> Iterator[None]:
    """Ctrl-C still interrupts; Ctrl-Z does nothing: it would leave the terminal as it is here."""
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VSUSP] = b"\x00"
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        out.write(ENTER)
        out.flush()
        yield
    finally:
        _restore(descriptor, before, out)


def _restore(descriptor: int, before: list[object], out: TextIO) -> None:
    """Each step for itself: a terminal that was closed must not keep us from the rest."""
    with contextlib.suppress(OSError, ValueError):
        out.write(LEAVE)
        out.flush()
    with contextlib.suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)  # keys meant for us are no commands for the shell
    with contextlib.suppress(termios.error):
        termios.tcsetattr(descriptor, termios.TCSANOW, before)  # type: ignore[arg-type]


def is_typed(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def read_typed(descriptor: int) -> bytes:
    """Nothing: the terminal was closed."""
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""

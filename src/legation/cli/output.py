"""Text for terminals, tables, JSON lines and progress.

Agents' words pass through `plain` before they are shown: a control sequence in them could move the cursor, rewrite what
was asked, or type into the user's shell."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from threading import Lock
from types import TracebackType
from typing import Final, Literal, Self, TextIO, TypeVar

Style = Literal["dim", "bold", "green", "red", "yellow", "cyan"]

_CODES: dict[str, str] = {"dim": "2", "bold": "1", "green": "32", "red": "31", "yellow": "33", "cyan": "36"}
# C0 but newline and tab, DEL, C1, and what turns the direction of text around or hides it.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164"
    "\ufe00-\ufe0f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """Make every unsafe character visible."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def line(text: str) -> str:
    """Make the text plain, and one line."""
    return " ".join(plain(text).split())


class Console:
    """Writes text, with colour where somebody looks at it."""

    def __init__(self, out: TextIO | None = None, colour: bool | None = None) -> None:
        self._out = out or sys.stdout
        if colour is None:
            colour = self._out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.colour = colour

    def write(self, text: str, style: Style | None = None) -> None:
        """Safe text only: what an agent said goes through `plain` first."""
        self._out.write(self.paint(text, style))
        self._out.flush()

    def say(self, text: str = "", style: Style | None = None) -> None:
        self.write(text, style)
        self.write("\n")

    def paint(self, text: str, style: Style | None) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and self.colour and text else text


def say(text: str = "", style: Style | None = None) -> None:
    """Write a line to standard output."""
    Console().say(text, style)


def paint_diff(terminal: Console, diff: str) -> None:
    for text in plain(diff).splitlines():
        terminal.say(text, _diff_style(text))


def _diff_style(text: str) -> Style | None:
    if text.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file")):
        return "dim"
    styles: dict[str, Style] = {"+": "green", "-": "red", "@": "cyan"}
    return styles.get(text[:1])


T = TypeVar("T")


def show(
    rows: Iterable[T], columns: Mapping[str, Callable[[T], str | None]], *, json: bool, if_empty: str
) -> None:
    """List rows: columns for people, one JSON object a line for programs."""
    if json:
        for row in rows:
            say_json(row)
        return
    out, shown = Console(), [[line(cell(row) or "-") for cell in columns.values()] for row in rows]
    if not shown:
        out.say(if_empty, "dim")
        return
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    out.say(_spread(columns, widths), "dim")
    for cells in shown:
        out.say(_spread(cells, widths))


def _spread(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def tell(value: object, text: str, *, json: bool) -> None:
    """Say the text to people, the value to programs."""
    if json:
        say_json(value)
    else:
        say(text)


def say_verdict(verdict: str, style: Style, text: str, following: str | None) -> None:
    """Say how something is, and the command that helps."""
    out = Console()
    out.write(f"{verdict:<8}", style)
    out.say(text)
    if following:
        out.say(f"        next: {following}", "bold")


def say_json(value: object) -> None:
    import msgspec  # most commands say no JSON

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def when(ms: int | None) -> str | None:
    """Write a time as people and scripts read it."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def named(by: str | None, name: str | None) -> str | None:
    """Name who did something: a person by name, with the id that is theirs alone."""
    return by if name is None else f"{name} ({by})"


PERIOD: Final = 0.1  # seconds between two looks: the reader's eye
_MEGABYTE: Final = 1_000_000


class ProgressLine:
    """A line that says how far long work is, one that is written over, where somebody looks at it, and nothing elsewhere.

    `total` is that of every call which gives none, where it is known; `then` is what comes when all of it is there."""

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

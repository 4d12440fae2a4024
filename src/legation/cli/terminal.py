"""What a terminal may be told. Agents' words pass through `plain` before they are shown: a control sequence in
them could move the cursor, rewrite what was asked, or type into the user's shell."""

from __future__ import annotations

import os
import re
import sys
from typing import Literal, TextIO

Style = Literal["dim", "bold", "green", "red", "yellow", "cyan"]

_CODES: dict[str, str] = {"dim": "2", "bold": "1", "green": "32", "red": "31", "yellow": "33", "cyan": "36"}
# C0 but newline and tab, DEL, C1, and what turns the direction of text around or hides it.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\u3164"
    "\ufe00-\ufe0f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """The text with every unsafe character made visible."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def line(text: str) -> str:
    """As `plain`, and on one line."""
    return " ".join(plain(text).split())


class Terminal:
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


def paint_diff(terminal: Terminal, diff: str) -> None:
    for text in plain(diff).splitlines():
        terminal.say(text, _diff_style(text))


def _diff_style(text: str) -> Style | None:
    if text.startswith(("+++", "---", "diff ", "index ", "new file", "deleted file")):
        return "dim"
    styles: dict[str, Style] = {"+": "green", "-": "red", "@": "cyan"}
    return styles.get(text[:1])

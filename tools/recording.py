"""`python -m tools.recording`: the first minute as the README's picture, `docs/first-minute.svg`.

`legation demo` runs at a terminal of its own, somebody says yes after a moment, and what was shown is drawn with the times at which it came:
an SVG that plays once and stays at its end. Where nothing may move, or nothing can, the end is all there is.
"""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "first-minute.svg"
COLUMNS, ROWS = 100, 30
LONGEST_PAUSE: Final = 1.1  # seconds: who watches need not wait for programs to start
READING: Final = 2.4  # seconds that somebody takes before saying yes
DEMO_LIMIT: Final = 240.0  # seconds: the demo's time, on a busy machine
QUESTION: Final = b"[y]es [n]o: "
CELL, LINE = 8.0, 18  # pixels
INKS: Final = {
    "1": "font-weight:600;fill:#f4f2ee",
    "2": "fill:#959087",
    "31": "fill:#f79a90",
    "32": "fill:#83cf99",
    "33": "fill:#efb45c",
    "36": "fill:#9db1ff",
}
_SGR: Final = re.compile(r"\x1b\[([0-9;]*)m")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that came at one time, in one ink, in one place."""

    at: float
    row: int
    column: int
    ink: str
    text: str


def record() -> list[tuple[float, bytes]]:
    """Run the demo, say yes to what it asks, and note what came when."""
    came: list[tuple[float, bytes]] = []
    with tempfile.TemporaryDirectory(prefix="first-minute-") as home:
        demo, terminal = pty.fork()
        if demo == 0:
            environment = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "USER": "you"}
            environment |= {"TERM": "xterm-256color", "LANG": "C.UTF-8", "COLUMNS": str(COLUMNS)}
            os.execve(sys.executable, [sys.executable, "-m", "legation", "demo"], environment)  # noqa: S606 - a child at a terminal of its own
        shift, last, end = 0.0, time.monotonic(), time.monotonic() + DEMO_LIMIT
        while time.monotonic() < end and select.select([terminal], [], [], DEMO_LIMIT)[0]:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # so a terminal says that nobody is at its other end
                break
            now = time.monotonic()
            shift += max(0.0, now - last - LONGEST_PAUSE)
            last = now
            shown = chunk.replace(home.encode(), b"/tmp")
            came.append(
                (now - shift, re.sub(rb"sign-in#[\w-]+", b"sign-in#...", shown))
            )  # used up, and no example
            if chunk.endswith(QUESTION) or QUESTION in chunk[-len(QUESTION) - 8 :]:
                shift -= READING  # the answer, which the terminal echoes, comes that much later
                os.write(terminal, b"y\n")
        os.close(terminal)
        if os.waitpid(demo, 0)[1]:
            sys.exit("cannot make the picture: the demo failed; see `legation demo`")
    return came


def pieces(came: list[tuple[float, bytes]]) -> Iterator[Piece]:
    """Lay out what came. The demo colours and breaks lines, and does nothing else with the terminal."""
    row = column = 0
    ink = ""
    begun = came[0][0]
    for at, chunk in came:
        for number, part in enumerate(_SGR.split(chunk.decode(errors="replace"))):
            if number % 2:
                ink = INKS.get(part, "")
                continue
            for line in re.split(r"(\r?\n)", part):
                if line.endswith("\n"):
                    row, column = row + 1, 0
                    continue
                text = line.replace("\r", "")
                while text:
                    room = COLUMNS - column
                    yield Piece(at - begun, row, column, ink, text[:room])
                    column += len(text[:room])
                    text = text[room:]
                    if text:
                        row, column = row + 1, 0


def draw(shown: list[Piece]) -> str:
    """Draw the pieces as an SVG of one screen that scrolls."""
    length = shown[-1].at + 0.01
    rows = shown[-1].row + 1
    width, height = COLUMNS * CELL + 32, ROWS * LINE + 60
    scrolls = [(0.0, 0)]
    for piece in shown:
        hidden = max(0, piece.row + 1 - ROWS)
        if hidden > scrolls[-1][1]:
            scrolls.append((piece.at, hidden))
    steps = "".join(
        f"{at / length:.4%}{{transform:translateY(-{hidden * LINE}px)}}" for at, hidden in scrolls
    )
    texts = "".join(
        f'<text x="{16 + piece.column * CELL:g}" y="{(piece.row + 1) * LINE}" textLength="{len(piece.text) * CELL:g}" '
        f'style="animation-duration:{piece.at:.2f}s;{piece.ink}">'
        f"{escape(piece.text)}</text>\n"
        for piece in shown
        if piece.text.strip()
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" aria-labelledby="t">
<title id="t">A terminal: an agent finds a failing test, its server is killed and comes back, it asks before it edits, and the fix is shown as a diff</title>
<style>
text{{font:13px/18px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#dedbd5;white-space:pre;animation:hidden 0s}}
.screen{{transform:translateY(-{max(0, rows - ROWS) * LINE}px);animation:scroll {length:.2f}s step-end}}
@keyframes hidden{{from,to{{visibility:hidden}}}}
@keyframes scroll{{{steps}}}
@media (prefers-reduced-motion:reduce){{text,.screen{{animation:none!important}}}}
</style>
<rect width="{width:g}" height="{height}" rx="10" fill="#141311"/>
<circle cx="22" cy="20" r="5" fill="#423e38"/><circle cx="40" cy="20" r="5" fill="#423e38"/><circle cx="58" cy="20" r="5" fill="#423e38"/>
<text x="{width / 2:g}" y="24" text-anchor="middle" style="fill:#959087">./dev up</text>
<clipPath id="c"><rect x="0" y="42" width="{width:g}" height="{ROWS * LINE + 8}"/></clipPath>
<g clip-path="url(#c)"><g transform="translate(0 38)"><g class="screen">
{texts}</g></g></g>
</svg>
"""


def main() -> None:
    PICTURE.write_text(draw(list(pieces(record()))))
    print(f"wrote {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()

"""How `watch` looks: the board as lines that fit a terminal. No I/O.

INV-A2  A line holds no control character but our own colours, and fits the width of the terminal. Of what is to be
        decided nothing is cut off: long lines go on in the next.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from legation.cli.approvals_board import Board, Row
from legation.cli.approvals_view import Said, arguments, facts, surroundings
from legation.cli.terminal import Style, line
from legation.wire.api.approvals import go_duration

SURROUNDINGS: Final = 6  # lines of what the agent did lately, at most
LEAST_FACTS: Final = 3  # lines: which one, its tool, its agent
LEAST_ARGUMENTS: Final = 3  # lines of them, however small the terminal is
SOON: Final = 60  # seconds left: it is urgent then
GOES_ON: Final = " .. "
HELP: Final = (
    "j k, arrows   choose",
    "space, b      more of the arguments, and back",
    "y             approve the one that is shown",
    "n             deny it; you may say why, and the agent is told so",
    "e             leave it to a person: no supervisor may answer it then",
    "i             answer it and all others that ask for the very same",
    "?             this help",
    "q             quit; nothing is answered by that",
    "",
    "A key counts only once the question under the list names the id. What somebody else answers",
    "meanwhile stays in view, crossed off, until you move on.",
)


@dataclass(frozen=True, slots=True)
class Size:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Frame:
    lines: tuple[Said, ...]
    arguments: int  # lines of them, in all
    shown: int  # the last of them that is in view


def frame(
    board: Board, size: Size, now: float, *, question: str, scroll: int, help_: bool, place: str
) -> Frame:
    """The screen from top to bottom; the question ends it, all of it."""
    top = [Said(f"{len(board.rows)} pending · {place}", "bold"), *_list(board, size, now), Said("")]
    asked = wrapped(Said(question, "cyan"), size.columns)
    bottom = [*(Said(text, "yellow") for text in board.notices), *asked]
    room = max(0, size.rows - len(top) - len(bottom))
    middle, total, shown = _help(room) if help_ else _middle(board, now, room, scroll, size.columns)
    middle += [Said("")] * (room - len(middle))
    lines = [*top, *middle[:room], *bottom][-size.rows :]
    return Frame(tuple(Said(cut(text, size.columns), style) for text, style in lines), total, shown)


def _help(room: int) -> tuple[list[Said], int, int]:
    return [Said(text) for text in HELP[:room]], 0, 0


def _list(board: Board, size: Size, now: float) -> list[Said]:
    """A window on the rows, with the one that is looked at in it."""
    rows = list(board.rows.values())
    room = max(1, size.rows // 5)
    at = next((place for place, row in enumerate(rows) if row.id == board.focus), 0)
    first = min(max(0, at - room // 2), max(0, len(rows) - room))
    shown = [_row(row, row.id == board.focus, now) for row in rows[first : first + room]]
    hidden = len(rows) - len(shown)
    return [*shown, *([Said(f"  ... {hidden} more", "dim")] if hidden else [])]


def _row(row: Row, chosen: bool, now: float) -> Said:
    left = row.deadline - now
    mark = "INJECTION? " if row.injection_risk else ""
    by = f"  looked at by {line(row.claimed_by)}" if row.claimed_by else ""
    text = (
        f"{'>' if chosen else ' '} {line(row.id)}  {go_duration(int(left * 1000)):>8}  {row.needs:<10}  "
        f"{mark}{line(row.tool)}  {line(row.agent)}  {line(row.rule)}{by}"
    )
    style: Style | None = "red" if row.injection_risk or left < SOON else None
    return Said(text, "bold" if chosen and style is None else style)


def _middle(board: Board, now: float, room: int, scroll: int, columns: int) -> tuple[list[Said], int, int]:
    """The one that is looked at. Its arguments get the room that its facts leave."""
    if board.gone is not None:
        what = wrapped(Said(board.gone, "yellow"), columns)
        return [*what, Said("nothing to answer here: j or k moves on")], 0, 0
    if board.focus is None:
        return [Said("nothing waits for an answer; what comes in is shown here", "dim")], 0, 0
    detail = board.detail
    if detail is None:
        return [Said(f"{line(board.focus)}: reading it", "dim")], 0, 0
    row = board.rows[detail.id]
    head = [
        Said(f"{line(detail.id)}  ends in {go_duration(int((row.deadline - now) * 1000))}", "bold"),
        *(piece for said in facts(detail) for piece in wrapped(said, columns)),
    ]
    texts = [piece for text in arguments(detail.params) for piece in wrapped(Said(f"    {text}"), columns)]
    around = list(surroundings(detail))[:SURROUNDINGS]
    head = head[: max(LEAST_FACTS, room - 1 - min(len(texts), LEAST_ARGUMENTS))]
    space = room - len(head) - 1
    if len(texts) + len(around) > space:  # what is asked for goes before what happened before
        around = around[: max(0, space - len(texts))]
    space = max(0, space - len(around))
    shown = min(len(texts), scroll + space)
    more = len(texts) - shown
    rest = f": {more} of {len(texts)} lines below, space shows them" if more else ""
    title = Said(f"arguments{rest}", "yellow" if more else None)
    return [*head, title, *texts[scroll:shown], *around], len(texts), shown


def wrapped(said: Said, columns: int) -> list[Said]:
    """All of it. A line that goes on is marked in its first columns, where text of an agent never stands."""
    pieces, piece, used = list[str](), "", 0
    for character in said.text:
        if used + width(character) > columns and len(piece) > len(GOES_ON):
            pieces.append(piece)
            piece, used = GOES_ON, len(GOES_ON)
        piece += character
        used += width(character)
    return [Said(text, said.style) for text in (*pieces, piece)]


def cut(text: str, columns: int) -> str:
    """To so many columns, wide characters counted as two. An end that is missing is marked."""
    if len(text) * 2 <= columns:
        return text
    used = 0
    for place, character in enumerate(text):
        used += width(character)
        if used > columns:
            return f"{_fit(text[:place], columns - 1)}…"
    return text


def _fit(text: str, columns: int) -> str:
    while text and sum(map(width, text)) > columns:
        text = text[:-1]
    return text


def width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

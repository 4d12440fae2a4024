"""The board of `legation approvals watch`: what is pending, what its keys mean, how it looks. No I/O.

INV-A1  The one looked at changes only by a key of the person, or when there was none. If somebody else answers it, it
        stays in view as gone, and nothing can be answered until the person moves on: no key that was meant for it
        can reach another.
INV-A2  A line holds no control character but our own colours, and fits the width of the terminal. Of what is to be
        decided nothing is cut off: long lines go on in the next.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rich.cells import cell_len

from legation.cli.approvals_view import StyledLine, arguments, facts, surroundings
from legation.cli.command import Style, line
from legation.wire.api.approvals import ApprovalChanged, ApprovalDetail, ApprovalView, go_duration

NOTICES: Final = 3  # that are kept in view

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)(?:\.\d+)?s)?")


@dataclass(frozen=True, slots=True)
class BoardRow:
    id: str
    agent: str
    tool: str
    rule: str
    needs: str
    group: str
    injection_risk: bool
    claimed_by: str | None
    deadline: float  # by our clock, which only goes forward: the server's may differ

    @property
    def name(self) -> str:
        return f"{line(self.id)} ({line(self.tool)} of {line(self.agent)})"


def row_of_view(view: ApprovalView, now: float) -> BoardRow:
    return BoardRow(
        view.id,
        view.agent_id,
        view.tool,
        view.policy_rule,
        view.needs,
        view.group,
        view.injection_risk,
        view.claimed_by,
        now + seconds(view.remaining),
    )


def row_of_change(change: ApprovalChanged, at: int, now: float) -> BoardRow:
    return BoardRow(
        change.id,
        change.agent,
        change.tool,
        change.rule,
        change.needs,
        change.group,
        change.injection_risk,
        change.claimed_by,
        now + max(0, change.expires_at - at) / 1000,
    )


def seconds(duration: str) -> float:
    """Read a duration as Go writes it; one that we cannot read is none."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        return 0.0
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(hours * 3600 + minutes * 60 + rest)


class Board:
    """The pending approvals, which one is looked at, and what became of others."""

    def __init__(self) -> None:
        self.rows: dict[str, BoardRow] = {}  # the most urgent first
        self.focus: str | None = None
        self.detail: ApprovalDetail | None = None  # of the focus, once it was read
        self.gone: str | None = None  # what became of the focus, when somebody else answered it
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self.away = False  # the server: nothing can be answered, and what was asked may be asked no more
        self._answering: dict[str, str | None] = {}  # and what the stream said of it meanwhile
        self._place = 0  # of the focus among the rows
        self._over: set[str] = set()  # that were seen to end

    @property
    def answerable(self) -> BoardRow | None:
        """The row that is looked at, read in full, and still there."""
        if self.away or self.gone is not None or self.detail is None or self.focus in self._answering:
            return None
        return self.rows.get(self.focus or "")

    def fill(self, pending: Iterable[ApprovalView], now: float) -> None:
        self.rows = {view.id: row_of_view(view, now) for view in pending}
        self._look_at_something()

    def compare(self, known: Iterable[str], pending: Iterable[ApprovalView], now: float) -> None:
        """Compare with a list that was asked for when `known` were pending: an event may be lost when a server crashes."""
        listed = {view.id: view for view in pending}
        for id_ in known:
            if id_ not in listed and (row := self.rows.get(id_)) is not None:
                self._remove(row, f"{row.name}: no longer pending")
        for id_, view in listed.items():
            if id_ not in self.rows and id_ not in self._over:
                self.rows[id_] = row_of_view(view, now)
        self._look_at_something()

    def apply(self, change: ApprovalChanged, at: int, now: float) -> None:
        if change.status == "pending":
            self.rows[change.id] = row_of_change(change, at, now)
            self._look_at_something()
        else:
            self._end(change.id, change.status, change.resolved_by, change.why)

    def _end(self, id_: str, status: str, resolved_by: str | None, why: str | None) -> None:
        self._over.add(id_)
        if (row := self.rows.get(id_)) is not None:
            by = f" by {line(resolved_by)}" if resolved_by else f": {line(why)}" if why else ""
            self._remove(row, f"{row.name}: {status}{by}")

    def found(self, detail: ApprovalDetail, now: float) -> None:
        """Take in what was read of one; it may have been answered since it was listed."""
        if detail.status != "pending":
            self._end(detail.id, detail.status, detail.resolved_by, detail.why)
        elif detail.id in self.rows:
            self.rows[detail.id] = row_of_view(detail, now)
            if detail.id == self.focus and self.gone is None:
                self.detail = detail

    def reach(self, *, away: bool) -> None:
        """After an outage the one that is looked at is read again before it can be answered."""
        self.away, self.detail = away, None

    def notice(self, words: str) -> None:
        if not self.notices or self.notices[-1] != words:
            self.notices.append(words)

    def identical(self, row: BoardRow) -> int:
        return sum(each.group == row.group for each in self.rows.values())

    def move(self, step: int) -> None:
        ids = list(self.rows)
        if not ids:
            return self._look_at(None)
        place = self._place if self.gone is not None else self._place + step
        place = min(max(place, 0), len(ids) - 1)
        if self.gone is not None or ids[place] != self.focus:
            self._look_at(ids[place])
        return None

    def begin_answer(self, ids: Iterable[str]) -> None:
        self._answering |= dict.fromkeys(ids)

    def end_answer(self, ids: Iterable[str], answered: Iterable[str]) -> None:
        """Take in an answer of this person: what was answered goes, and the next one comes into view."""
        told = {each: self._answering.pop(each, None) for each in ids}
        for each in answered:
            self.rows.pop(each, None)
            self._over.add(each)
        for each, words in told.items():
            if words is not None and (row := self.rows.get(each)) is not None:
                self._remove(row, words)  # somebody else was first
        if self.focus is not None and self.focus not in self.rows and self.gone is None:
            left = list(self.rows)
            self._look_at(left[min(self._place, len(left) - 1)] if left else None)

    def _remove(self, row: BoardRow, words: str) -> None:
        if row.id in self._answering:  # by our own answer, it may be: that is known when the server tells us
            self._answering[row.id] = words
            return
        del self.rows[row.id]
        self.notice(words)
        if row.id == self.focus:
            self.gone, self.detail = words, None

    def _look_at_something(self) -> None:
        if self.focus is None and self.rows:
            self._look_at(next(iter(self.rows)))
        elif self.focus in self.rows:
            self._place = list(self.rows).index(self.focus)

    def _look_at(self, id_: str | None) -> None:
        self.focus, self.detail, self.gone = id_, None, None
        self._place = list(self.rows).index(id_) if id_ is not None else 0


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


class KeyPress(NamedTuple):
    name: str  # of a letter, the letter
    text: str = ""  # what it writes


class KeyReader:
    """Keys out of bytes. What was pasted is one key `paste`: no letter of it is an answer."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pasting: str | None = None
        self._begun = ""  # a sequence whose end has not come

    def feed(self, typed: bytes) -> list[KeyPress]:
        return list(self._feed(typed))

    def _feed(self, typed: bytes) -> Iterator[KeyPress]:
        text = self._decode(typed)
        if self._begun != "\x1b" or text[:1] in ("[", "O"):  # an escape of its own was told already
            text = self._begun + text
        self._begun = ""
        while text:
            if self._pasting is not None:
                pasted, mark, text = (self._pasting + text).partition(_PASTED)
                self._pasting = None if mark else pasted
                if mark:
                    yield KeyPress("paste", pasted)
                continue
            if text.startswith(_PASTE):
                self._pasting, text = "", text.removeprefix(_PASTE)
                continue
            if _BEGUN.fullmatch(text):
                self._begun = text
                if text == "\x1b":
                    yield KeyPress("escape")
                return
            found = _SEQUENCE.match(text)
            token = found[0] if found else text[0]
            text = text[len(token) :]
            yield KeyPress(_NAMES.get(token, token), token if token.isprintable() else "")


MOST_REASON: Final = 1000  # characters
REASON_SHOWN: Final = 30  # characters: its end, where somebody types
MOVES: Final = {"j": 1, "down": 1, "k": -1, "up": -1}
WAITING: Final = "[j/k] choose  [?] help  [q] quit"


@dataclass(frozen=True, slots=True)
class BoardAnswer:
    verb: Literal["approve", "deny", "escalate"]
    ids: tuple[str, ...]  # the one that was asked about, and those identical to it
    name: str
    group: str | None = None  # all of it
    reason: str | None = None
    digest: str | None = None  # of the action that was shown

    @property
    def past(self) -> str:
        return {"approve": "approved", "deny": "denied", "escalate": "escalated"}[self.verb]


class AnswerDialog:
    """The question about one approval, and the keys that answer it: every answer names that one, whatever the list has
    become."""

    def __init__(self, board: Board) -> None:
        self.scroll = 0
        self.help = False
        self._board = board
        self._row: BoardRow | None = None  # that the question is about
        self._mode: Literal["", "reason", "identical", "unseen"] = ""
        self._reason = ""
        self._lines = self._seen = 0  # of its arguments
        self._page = 1

    @property
    def asked(self) -> bool:
        return self._row is not None

    @property
    def is_open(self) -> bool:
        """Tell whether it is in the middle of something: q is a letter, or no answer."""
        return self._mode != ""

    def ask(self, row: BoardRow | None) -> None:
        if row is None:
            self.scroll = self._lines = self._seen = 0
        self._row, self._mode, self._reason = row, "", ""

    def saw(self, lines: int, shown: int) -> None:
        """Note how many lines the arguments have, and the last that is on the screen."""
        if lines != self._lines:  # another approval, or another width
            self._seen = 0
        self._lines, self._seen = lines, max(self._seen, shown)
        self._page = max(1, shown - self.scroll)

    def check(self) -> None:
        """Drop a question about what is gone."""
        if self._row is not None and self._row.id not in self._board.rows:
            self.ask(None)

    @property
    def _unseen(self) -> int:
        return max(0, self._lines - self._seen)

    @property
    def question(self) -> str:
        row = self._row
        if row is None:
            return WAITING
        id_ = line(row.id)
        if self._mode == "reason":
            return f"deny {id_}: why? Told to the agent; [enter] sends, [esc] goes back: {self._reason[-REASON_SHOWN:]}"
        if self._mode == "identical":
            number = self._board.identical(row)
            unseen = f" ({self._unseen} lines of their arguments NOT shown)" if self._unseen else ""
            return f"{id_} and all identical, {number} in all{unseen}: [y] approve  [n] deny  [esc] back"
        if self._mode == "unseen":
            return (
                f"{id_}: {self._unseen} lines of its arguments were NOT shown: [y] approve anyway  [esc] back"
            )
        more = self._board.identical(row) - 1
        same = f"  [i] with {more} identical" if more else ""
        return f"{id_}: [y] approve  [n] deny  [e] escalate{same}  [j/k] choose  [?] help  [q] quit"

    def press(self, key: KeyPress) -> BoardAnswer | None:
        if self._mode == "reason":
            return self._in_reason(key)
        if self._mode in ("identical", "unseen"):
            return self._in_choice(key)
        if self.help:
            self.help = False
            return None
        if key.name in MOVES:
            self._board.move(MOVES[key.name])
            if self._row is not None and self._board.focus != self._row.id:
                self.ask(None)
            return None
        if key.name == "?":
            self.help = True
        elif key.name in ("space", "page-down"):
            self.scroll = max(0, min(self.scroll + self._page, self._lines - 1))
        elif key.name in ("b", "page-up"):
            self.scroll = max(0, self.scroll - self._page)
        elif self._row is not None:
            return self._answer(key, self._row)
        return None

    def _answer(self, key: KeyPress, row: BoardRow) -> BoardAnswer | None:
        if key.name == "y":
            if not self._unseen:
                return self._done("approve", row)
            self._mode = "unseen"
        elif key.name == "n":
            self._mode, self._reason = "reason", ""
        elif key.name == "e":
            return self._done("escalate", row)
        elif key.name == "i":
            self._mode = "identical"
        return None

    def _in_reason(self, key: KeyPress) -> BoardAnswer | None:
        if key.name == "enter" and self._row is not None:
            return self._done("deny", self._row, self._reason.strip() or None)
        if key.name in ("escape", "end"):
            self._mode = ""
        elif key.name == "erase":
            self._reason = self._reason[:-1]
        else:
            self._reason = (self._reason + line(key.text) if key.text != " " else self._reason + " ")[
                :MOST_REASON
            ]
        return None

    def _in_choice(self, key: KeyPress) -> BoardAnswer | None:
        row, mode, self._mode = self._row, self._mode, ""
        if row is None:
            return None
        if mode == "unseen":
            return self._done("approve", row) if key.name == "y" else None
        if key.name in ("y", "n"):
            same = tuple(each.id for each in self._board.rows.values() if each.group == row.group)
            ids = (row.id, *(each for each in same if each != row.id))
            self.ask(None)
            return BoardAnswer("approve" if key.name == "y" else "deny", ids, row.name, group=row.group)
        return None

    def _done(
        self, verb: Literal["approve", "deny", "escalate"], row: BoardRow, reason: str | None = None
    ) -> BoardAnswer:
        shown = self._board.detail
        digest = shown.digest if shown is not None and shown.id == row.id else None
        self.ask(None)
        return BoardAnswer(verb, (row.id,), row.name, reason=reason, digest=digest or None)


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
class ScreenSize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class ScreenFrame:
    lines: tuple[StyledLine, ...]
    arguments: int  # lines of them, in all
    shown: int  # the last of them that is in view


def frame(
    board: Board, size: ScreenSize, now: float, *, question: str, scroll: int, help_: bool, place: str
) -> ScreenFrame:
    """The screen from top to bottom; the question ends it, all of it."""
    top = [
        StyledLine(f"{len(board.rows)} pending · {place}", "bold"),
        *_list(board, size, now),
        StyledLine(""),
    ]
    asked = wrapped(StyledLine(question, "cyan"), size.columns)
    bottom = [*(StyledLine(text, "yellow") for text in board.notices), *asked]
    room = max(0, size.rows - len(top) - len(bottom))
    middle, total, shown = _help(room) if help_ else _middle(board, now, room, scroll, size.columns)
    middle += [StyledLine("")] * (room - len(middle))
    lines = [*top, *middle[:room], *bottom][-size.rows :]
    return ScreenFrame(
        tuple(StyledLine(cut(text, size.columns), style) for text, style in lines), total, shown
    )


def _help(room: int) -> tuple[list[StyledLine], int, int]:
    return [StyledLine(text) for text in HELP[:room]], 0, 0


def _list(board: Board, size: ScreenSize, now: float) -> list[StyledLine]:
    """A window on the rows, with the one that is looked at in it."""
    rows = list(board.rows.values())
    room = max(1, size.rows // 5)
    at = next((place for place, row in enumerate(rows) if row.id == board.focus), 0)
    first = min(max(0, at - room // 2), max(0, len(rows) - room))
    shown = [_row(row, row.id == board.focus, now) for row in rows[first : first + room]]
    hidden = len(rows) - len(shown)
    return [*shown, *([StyledLine(f"  ... {hidden} more", "dim")] if hidden else [])]


def _row(row: BoardRow, chosen: bool, now: float) -> StyledLine:
    left = row.deadline - now
    mark = "INJECTION? " if row.injection_risk else ""
    by = f"  looked at by {line(row.claimed_by)}" if row.claimed_by else ""
    text = (
        f"{'>' if chosen else ' '} {line(row.id)}  {go_duration(int(left * 1000)):>8}  {row.needs:<10}  "
        f"{mark}{line(row.tool)}  {line(row.agent)}  {line(row.rule)}{by}"
    )
    style: Style | None = "red" if row.injection_risk or left < SOON else None
    return StyledLine(text, "bold" if chosen and style is None else style)


def _middle(
    board: Board, now: float, room: int, scroll: int, columns: int
) -> tuple[list[StyledLine], int, int]:
    """The one that is looked at. Its arguments get the room that its facts leave."""
    if board.gone is not None:
        what = wrapped(StyledLine(board.gone, "yellow"), columns)
        return [*what, StyledLine("nothing to answer here: j or k moves on")], 0, 0
    if board.focus is None:
        return [StyledLine("nothing waits for an answer; what comes in is shown here", "dim")], 0, 0
    detail = board.detail
    if detail is None:
        return [StyledLine(f"{line(board.focus)}: reading it", "dim")], 0, 0
    row = board.rows[detail.id]
    head = [
        StyledLine(f"{line(detail.id)}  ends in {go_duration(int((row.deadline - now) * 1000))}", "bold"),
        *(piece for said in facts(detail) for piece in wrapped(said, columns)),
    ]
    texts = [
        piece for text in arguments(detail.params) for piece in wrapped(StyledLine(f"    {text}"), columns)
    ]
    around = list(surroundings(detail))[:SURROUNDINGS]
    head = head[: max(LEAST_FACTS, room - 1 - min(len(texts), LEAST_ARGUMENTS))]
    space = room - len(head) - 1
    if len(texts) + len(around) > space:  # what is asked for goes before what happened before
        around = around[: max(0, space - len(texts))]
    space = max(0, space - len(around))
    shown = min(len(texts), scroll + space)
    more = len(texts) - shown
    rest = f": {more} of {len(texts)} lines below, space shows them" if more else ""
    title = StyledLine(f"arguments{rest}", "yellow" if more else None)
    return [*head, title, *texts[scroll:shown], *around], len(texts), shown


def wrapped(said: StyledLine, columns: int) -> list[StyledLine]:
    """Break a line into such as fit, and leave out nothing. One that goes on is marked in its first columns, where text
    of an agent never stands."""
    # By characters, not by what a terminal may join: a family may take two columns, or six.
    pieces, piece, used = list[str](), "", 0
    for character in said.text:
        if used + cell_len(character) > columns and len(piece) > len(GOES_ON):
            pieces.append(piece)
            piece, used = GOES_ON, len(GOES_ON)
        piece += character
        used += cell_len(character)
    return [StyledLine(text, said.style) for text in (*pieces, piece)]


def cut(text: str, columns: int) -> str:
    """Cut a line to so many columns. An end that is missing is marked."""
    used = 0
    for place, character in enumerate(text):
        used += cell_len(character)
        if used > columns:
            kept = text[:place]
            while kept and sum(map(cell_len, kept)) > columns - 1:
                kept = kept[:-1]
            return f"{kept}…"
    return text

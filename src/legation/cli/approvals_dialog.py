"""What the keys of `watch` mean, question by question. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from legation.cli.approvals_board import Board, Row
from legation.cli.approvals_keys import Key
from legation.cli.terminal import line

MOST_REASON: Final = 1000  # characters
REASON_SHOWN: Final = 30  # characters: its end, where somebody types
MOVES: Final = {"j": 1, "down": 1, "k": -1, "up": -1}
WAITING: Final = "[j/k] choose  [?] help  [q] quit"


@dataclass(frozen=True, slots=True)
class Answer:
    verb: Literal["approve", "deny", "escalate"]
    ids: tuple[str, ...]  # the one that was asked about, and those identical to it
    name: str
    group: str | None = None  # all of it
    reason: str | None = None

    @property
    def past(self) -> str:
        return {"approve": "approved", "deny": "denied", "escalate": "escalated"}[self.verb]


class Dialog:
    """Holds the one that is asked about: every answer names it, whatever the list has become."""

    def __init__(self, board: Board) -> None:
        self.scroll = 0
        self.help = False
        self._board = board
        self._row: Row | None = None  # that the question is about
        self._mode: Literal["", "reason", "identical", "unseen"] = ""
        self._reason = ""
        self._lines = self._seen = 0  # of its arguments
        self._page = 1

    @property
    def asked(self) -> bool:
        return self._row is not None

    @property
    def is_open(self) -> bool:
        """In the middle of something: q is a letter, or no answer."""
        return self._mode != ""

    def ask(self, row: Row | None) -> None:
        if row is None:
            self.scroll = self._lines = self._seen = 0
        self._row, self._mode, self._reason = row, "", ""

    def saw(self, lines: int, shown: int) -> None:
        """How many lines the arguments have, and the last that is on the screen."""
        if lines != self._lines:  # another approval, or another width
            self._seen = 0
        self._lines, self._seen = lines, max(self._seen, shown)
        self._page = max(1, shown - self.scroll)

    def check(self) -> None:
        """After something happened: a question about what is gone is none."""
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

    def press(self, key: Key) -> Answer | None:
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

    def _answer(self, key: Key, row: Row) -> Answer | None:
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

    def _in_reason(self, key: Key) -> Answer | None:
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

    def _in_choice(self, key: Key) -> Answer | None:
        row, mode, self._mode = self._row, self._mode, ""
        if row is None:
            return None
        if mode == "unseen":
            return self._done("approve", row) if key.name == "y" else None
        if key.name in ("y", "n"):
            same = tuple(each.id for each in self._board.rows.values() if each.group == row.group)
            ids = (row.id, *(each for each in same if each != row.id))
            self.ask(None)
            return Answer("approve" if key.name == "y" else "deny", ids, row.name, group=row.group)
        return None

    def _done(
        self, verb: Literal["approve", "deny", "escalate"], row: Row, reason: str | None = None
    ) -> Answer:
        self.ask(None)
        return Answer(verb, (row.id,), row.name, reason=reason)

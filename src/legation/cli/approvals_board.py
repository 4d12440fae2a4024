"""What `watch` knows: the pending approvals, which one is looked at, and what became of others. No I/O.

INV-A1  The one looked at changes only by a key of the person, or when there was none. If somebody else answers it, it
        stays in view as gone, and nothing can be answered until the person moves on: no key that was meant for it
        can reach another.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from legation.cli.terminal import line
from legation.wire.api.approvals import ApprovalDetail, ApprovalView
from legation.wire.approvalstream import ApprovalChanged

NOTICES: Final = 3  # that are kept in view

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)(?:\.\d+)?s)?")


@dataclass(frozen=True, slots=True)
class Row:
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


def row_of_view(view: ApprovalView, now: float) -> Row:
    return Row(
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


def row_of_change(change: ApprovalChanged, at: int, now: float) -> Row:
    return Row(
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
    """Of a duration as Go writes it; one that we cannot read is none."""
    found = _DURATION.fullmatch(duration)
    if found is None:
        return 0.0
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(hours * 3600 + minutes * 60 + rest)


class Board:
    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}  # the most urgent first
        self.focus: str | None = None
        self.detail: ApprovalDetail | None = None  # of the focus, once it was read
        self.gone: str | None = None  # what became of the focus, when somebody else answered it
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self.away = False  # the server: nothing can be answered, and what was asked may be asked no more
        self._answering: dict[str, str | None] = {}  # and what the stream said of it meanwhile
        self._place = 0  # of the focus among the rows
        self._over: set[str] = set()  # that were seen to end

    @property
    def answerable(self) -> Row | None:
        """The row that is looked at, read in full, and still there."""
        if self.away or self.gone is not None or self.detail is None or self.focus in self._answering:
            return None
        return self.rows.get(self.focus or "")

    def fill(self, pending: Iterable[ApprovalView], now: float) -> None:
        self.rows = {view.id: row_of_view(view, now) for view in pending}
        self._look_at_something()

    def compare(self, known: Iterable[str], pending: Iterable[ApprovalView], now: float) -> None:
        """With a list that was asked for when `known` were pending: an event may be lost when a server crashes."""
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
        """What was read of one; it may have been answered since it was listed."""
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

    def identical(self, row: Row) -> int:
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
        """By this person: what was answered goes, and the next one comes into view."""
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

    def _remove(self, row: Row, words: str) -> None:
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

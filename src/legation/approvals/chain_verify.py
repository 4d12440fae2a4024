"""`verify`: whether a chain is what was written, step by step, in the database or in an export.

It finds a step that was changed, removed, put in, or put elsewhere, and content that was changed, removed or put in
while its key is there. Content that was purged with its key is counted and no fault.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from legation.approvals.chain import Head, head
from legation.approvals.trace import GENESIS, Step
from legation.approvals.trace_content import Said, Seals
from legation.approvals.trace_entries import read_step
from legation.errors import StorageFailed
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Row, Rows, Transaction, only
from legation.store.sealing import Sealer

BATCH: Final = 500  # steps in one read
MOST_FAULTS: Final = 100  # that are told; the first one says enough

_SQL: Final = Queries("traces")


Known: TypeAlias = Head | Sequence[Head] | None
"""Heads that an earlier report named."""


class Fault(msgspec.Struct, frozen=True):
    seq: int
    what: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`head` is worth keeping elsewhere: given back to a later `verify`, it shows that no end was cut off."""

    workspace: str
    server: str
    steps: int
    checked: int  # contents that are there
    purged: int  # contents whose key was destroyed
    head: Head
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


class Link(msgspec.Struct, frozen=True):
    """One step as it is stored: with the hash that stands beside it."""

    step: Step
    hash: str


class Verifier:
    """Takes the links of one chain in order, and holds each against the one before."""

    def __init__(self) -> None:
        self.last = Head(0, GENESIS)
        self.steps = 0
        self.checked = 0
        self.purged = 0
        self.faults: list[Fault] = []

    def link(self, link: Link) -> None:
        step = link.step
        self.steps += 1
        if step.seq != self.last.seq + 1:
            self.fault(step.seq, f"the steps before it, from {self.last.seq + 1} on, are missing")
        elif step.prev_hash != self.last.hash:
            self.fault(step.seq, "it does not follow the step before it")
        if step.hash != link.hash:
            self.fault(step.seq, "it was changed")
        self.last = Head(step.seq, link.hash)  # so that one change is told once, where it is

    def contents(
        self, step: Step, said: Sequence[Said], *, purged: bool, broken: Collection[str] = ()
    ) -> None:
        digests = {name: digest for name, digest in step.content_digests.items() if name not in broken}
        if purged:
            self.purged += len(digests)
            return
        self.checked += len(said) + len(broken)
        for each in said:
            if digests.pop(each.name, None) != each.digest:
                self.fault(step.seq, f"its {each.name} was changed or put in")
        for name in digests:
            self.fault(step.seq, f"its {name} was removed, and its key is there")

    def fault(self, seq: int, what: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(Fault(seq, what))

    def end(self, stored: Head, known: Known) -> None:
        if stored != self.last:
            self.fault(self.last.seq, f"the chain should end with step {stored.seq}, as its head says")
        for each in _heads(known):
            if each.seq > stored.seq:
                self.fault(each.seq, "the chain was longer before: its end was cut off")

    def known(self, link: Link, known: Known) -> None:
        for each in _heads(known):
            if link.step.seq == each.seq and link.hash != each.hash:
                self.fault(each.seq, "it is another step than was there before")

    def report(self, workspace: str, server: str) -> Report:
        return Report(
            workspace=workspace,
            server=server,
            steps=self.steps,
            checked=self.checked,
            purged=self.purged,
            head=self.last,
            faults=tuple(self.faults),
        )


async def verify(
    database: Database, sealer: Sealer, workspace: str, server: str, known: Known = None
) -> Report:
    """In batches, so that it holds nobody up; what is appended meanwhile is left for the next time."""
    verifier, seals = Verifier(), Seals(sealer, workspace)
    stored, last = await database.read(_ends, workspace, server)
    while verifier.last.seq < last:
        stretch = await database.read(_stretch, workspace, server, verifier.last.seq, last)
        if not stretch.steps:
            break
        for row in stretch.steps:
            link = Link(read_step(row), row["hash"])
            verifier.link(link)
            verifier.known(link, known)
            _check_contents(verifier, seals, link.step, stretch)
        for seq in stretch.contents:
            verifier.fault(seq, "there is content of a step that is not there")
    verifier.end(stored, known)
    return verifier.report(workspace, server)


def chains(workspace: str) -> Transaction[list[str]]:
    """The servers that have a chain in the workspace."""
    return [row["server"] for row in (yield _SQL.chains(workspace=workspace))]


def _heads(known: Known) -> Sequence[Head]:
    return (known,) if isinstance(known, Head) else known or ()


@dataclass(slots=True)
class _Stretch:
    steps: Rows
    contents: dict[int, list[Row]]  # by the step's number; taken out as they are checked
    keys: dict[str, int]  # owner -> when its key was made


def _check_contents(verifier: Verifier, seals: Seals, step: Step, stretch: _Stretch) -> None:
    rows = stretch.contents.pop(step.seq, [])
    made = stretch.keys.get(step.content_owner or "")
    purged = not rows and (made is None or made > step.at)  # a later key is another one
    said, broken = [], set()
    for row in rows:
        try:
            said.append(seals.open(row))
        except StorageFailed:
            verifier.fault(step.seq, f"its {row['name']} was changed")
            broken.add(row["name"])
    verifier.contents(step, said, purged=purged, broken=broken)


def _ends(workspace: str, server: str) -> Transaction[tuple[Head, int]]:
    stored = yield from head(workspace, server)
    row = only((yield _SQL.beyond(workspace=workspace, server=server)))
    return stored, 0 if row is None else row["seq"]


def _stretch(workspace: str, server: str, after: int, last: int) -> Transaction[_Stretch]:
    place = {"workspace": workspace, "server": server, "after": after}
    steps = yield _SQL.steps_between(**place, last=last, limit=BATCH)
    if not steps:
        return _Stretch([], {}, {})
    end = steps[-1]["seq"]
    contents: dict[int, list[Row]] = {}
    for row in (yield _SQL.contents_between(**place, last=end)):
        contents.setdefault(row["seq"], []).append(row)
    keys = yield _SQL.keys_between(**place, last=end)
    return _Stretch(steps, contents, {row["owner"]: row["created_at"] for row in keys})

"""`verify`: whether a chain is what was written, step by step, in the database or in an export.

It finds a step that was changed, removed, put in, or put elsewhere, and content that was changed, removed or put in
while its key is there. Content that was purged with its key is counted and no fault.

In the database it also holds the approvals against the trace: every approval that the trace tells of is there, as the
trace tells it (what was asked, how it ended, who answered, whether it was used), and there is none besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from legation.approvals import approval
from legation.approvals.approval import Approval, Status
from legation.approvals.chain import Head, head
from legation.approvals.trace import GENESIS, Step, StepKind
from legation.approvals.trace_content import Said, Seals
from legation.approvals.trace_entries import joined, read_step
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
        self.otherwise: list[Fault] = []  # approvals that are not as the chain tells them

    def link(self, link: Link) -> None:
        step = link.step
        self.steps += 1
        if step.seq != self.last.seq + 1:
            self.fault(step.seq, f"the steps before it, from {self.last.seq + 1} on, are missing")
        elif step.prev_hash != self.last.hash:
            self.fault(step.seq, "it does not follow the step before it")
        if step.hash != link.hash and link.hash not in step.hashes_of_0_1:
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

    def contradicted(self, seq: int, what: str) -> None:
        if len(self.otherwise) < MOST_FAULTS:
            self.otherwise.append(Fault(seq, what))

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
            # Only a good chain is a witness: what a broken one says of approvals is the same fault once more.
            faults=tuple(self.faults or self.otherwise),
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
            _check_approval(verifier, link.step, stretch)
        for seq in stretch.contents:
            verifier.fault(seq, "there is content of a step that is not there")
    verifier.end(stored, known)
    return verifier.report(workspace, server)


def chains(workspace: str) -> Transaction[list[str]]:
    """The servers that have a chain in the workspace."""
    return [row["server"] for row in (yield _SQL.chains(workspace=workspace))]


async def untraced(database: Database, workspace: str) -> list[str]:
    """Approvals that no trace tells of; the first of them."""
    return await database.read(_untraced, workspace)


def _untraced(workspace: str) -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.untraced(workspace=workspace, limit=MOST_FAULTS))]


def _heads(known: Known) -> Sequence[Head]:
    return (known,) if isinstance(known, Head) else known or ()


@dataclass(slots=True)
class _Stretch:
    steps: Rows
    contents: dict[int, list[Row]]  # by the step's number; taken out as they are checked
    keys: dict[str, int]  # owner -> when its key was made
    approvals: dict[str, Approval]  # that steps of the stretch asked for, by id
    told: dict[str, list[Step]]  # every step of their traces, whichever chain it is in


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


def _asks(step: Step) -> bool:
    """Whether it made an approval, which it does once. With a reason it did not: a grant spoke, or another policy."""
    asked = step.step == StepKind.DECIDED and step.policy in ("supervisor", "human_approval")
    return asked and step.reason is None and step.approval_id is not None


def _check_approval(verifier: Verifier, step: Step, stretch: _Stretch) -> None:
    if not _asks(step):
        return
    found = stretch.approvals.get(step.approval_id or "")
    if found is None:
        verifier.contradicted(step.seq, f"its approval {step.approval_id} was removed")
        return
    told = [each for each in stretch.told.get(step.trace_id, ()) if each.approval_id == found.id]
    for what in _differences(found, told):
        verifier.contradicted(step.seq, f"its approval {found.id} has {what} than the trace tells")


def _differences(found: Approval, told: Sequence[Step]) -> Iterator[str]:
    last = {each.step: each for each in told}
    first, resolved, consumed = (
        last.get(kind) for kind in (StepKind.PROPOSED, StepKind.RESOLVED, StepKind.CONSUMED)
    )
    ended = next(
        (last[kind] for kind in (StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CANCELLED) if kind in last),
        None,
    )
    outcome = ended or resolved
    if first is not None and _asked_for(first, told) not in (None, _asks_for(found)):
        yield "another action"
    if found.status != (Status.PENDING if outcome is None else outcome.status):
        yield "another outcome"
    answered: tuple[object, ...] = (None,) * 6
    if resolved is not None:
        answered = (
            resolved.actor_kind, resolved.actor, resolved.actor_user, resolved.actor_level, resolved.confidence,
            resolved.at,
        )  # fmt: skip
    elif ended is not None:
        answered = (*answered[:5], ended.at)
    stored = (
        found.resolver_kind, found.resolver, found.resolver_user, found.resolver_level, found.confidence,
        found.resolved_at,
    )  # fmt: skip
    if stored != answered:
        yield "another answer"
    if found.consumed_at != (None if consumed is None else consumed.at):
        yield "another use"


_Asked: TypeAlias = tuple[str | None, ...]


def _asked_for(first: Step, told: Sequence[Step]) -> _Asked | None:
    """What the approval is bound to, under the last policy that bound it; None where 0.1 wrote no digest then."""
    bound = [
        each
        for each in told
        if each.step == StepKind.DECIDED and (_asks(each) or each.reason == "policy-changed")
    ]
    digest = first.action_digest if len(bound) == 1 else bound[-1].action_digest if bound else None
    if digest is None:
        return None
    verdict = bound[-1]
    return (
        first.agent, first.tool, first.kind, first.session_id, first.turn_id, first.tool_call_id, digest,
        verdict.policy, verdict.policy_rule, verdict.policy_version,
    )  # fmt: skip


def _asks_for(found: Approval) -> _Asked:
    return (
        found.agent, found.tool, found.kind, found.session_id, found.turn_id, found.tool_call_id,
        found.action_digest, found.verdict, found.policy_rule, found.policy_version,
    )  # fmt: skip


def _ends(workspace: str, server: str) -> Transaction[tuple[Head, int]]:
    stored = yield from head(workspace, server)
    row = only((yield _SQL.beyond(workspace=workspace, server=server)))
    return stored, 0 if row is None else row["seq"]


def _stretch(workspace: str, server: str, after: int, last: int) -> Transaction[_Stretch]:
    place = {"workspace": workspace, "server": server, "after": after}
    steps = yield _SQL.steps_between(**place, last=last, limit=BATCH)
    if not steps:
        return _Stretch([], {}, {}, {}, {})
    end = steps[-1]["seq"]
    contents: dict[int, list[Row]] = {}
    for row in (yield _SQL.contents_between(**place, last=end)):
        contents.setdefault(row["seq"], []).append(row)
    keys = yield _SQL.keys_between(**place, last=end)
    asking = [row for row in steps if _asks(read_step(row))]
    approvals = yield _SQL.approvals_of(workspace=workspace, ids=_json(row["approval_id"] for row in asking))
    told = yield _SQL.steps_of(workspace=workspace, traces=_json(row["trace_id"] for row in asking))
    return _Stretch(
        steps=steps,
        contents=contents,
        keys={row["owner"]: row["created_at"] for row in keys},
        approvals={row["id"]: approval.read(row) for row in approvals},
        told=joined(told),
    )


def _json(words: Iterator[str]) -> str:
    return msgspec.json.encode(list(words)).decode()

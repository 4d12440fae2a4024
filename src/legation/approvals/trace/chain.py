"""The trace as a chain: append-only, one for each workspace and server, each step linked to the one before.

INV-C1  Numbers are dense from 1; a step's `prev_hash` is the hash of the step before it.
INV-C2  A state change and its step are one transaction: `append` is part of the transaction that makes the change.
INV-C3  One server writes a chain, and its writers take turns: on Postgres two at once would only undo each other.

What a chain cannot show: somebody who may write the database and cut the end off together with the head, or who
computes everything anew. Who must exclude that keeps the head of `verify` elsewhere, and gives it back to `verify`.

`verify` finds a step that was changed, removed, put in, or put elsewhere, and content that was changed, removed or put in
while its key is there. Content that was purged with its key is counted and no fault. In the database it also holds the
approvals against the trace: every approval that the trace tells of is there, as the trace tells it (what was asked, how
it ended, who answered, whether it was used), and there is none besides.

INV-C4  A chain may begin later than with 1: then a checkpoint in it names the step that its first one follows, by number
        and hash, and stands as any other step. What was before is cut off, and its approvals with it (`cut.py`). What it
        says is sealed with it: who may write the database and has no key cannot say that a beginning was cut.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from typing import Final, NamedTuple, ParamSpec, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import msgspec

from legation.approvals import approval
from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.trace.entries import joined, read_step
from legation.approvals.trace.step import (
    GENESIS,
    ChainStep,
    OpenedContent,
    Seals,
    StepDraft,
    StepKind,
    canonical,
    day_owner,
)
from legation.errors import Conflict, NotFound, StorageFailed, Unavailable
from legation.store.database.transaction import (
    Dangling,
    Database,
    Overtaken,
    Queries,
    Row,
    Rows,
    Transaction,
    conditional,
    only,
    read_committed,
    rows,
)
from legation.store.secrets.sealer import Sealer, must_be_plain
from legation.tasks import Groups

MOST_AT_ONCE: Final = 128  # callers whose steps are one transaction; others may wait for that one
TURN_LIMIT: Final = 30.0  # seconds in the line for one chain: the time of those before, and of Postgres

VERIFY_BATCH: Final = 500  # steps in one read
MOST_FAULTS: Final = 100  # that are told; the first one says enough

_SQL: Final = Queries("traces")
_JSON: Final = msgspec.json.Encoder()

T = TypeVar("T")
P = ParamSpec("P")


class Head(msgspec.Struct, frozen=True):
    seq: int
    hash: str


class MissingKey(Conflict):
    """An owner has no content key yet. It never leaves the ledger."""


class _Piece(NamedTuple):
    """One sealed value on its way into `trace_content`."""

    seq: int
    name: str
    trace_id: str
    owner: str
    body: bytes
    digest: str


class Chain:
    """The chains of one server, one in each workspace.

    `at_once` writes all of an append with the move of the head: on Postgres, where each statement is a way there and back,
    that counts; on SQLite it would only be slower.
    """

    def __init__(self, server: str, sealer: Sealer, *, at_once: bool = False) -> None:
        self.server = must_be_plain(server, "the name of a server")
        self.sealer = sealer
        self.at_once = at_once

    # Safe under read committed, as a part of what is: numbers and hashes follow from the head that was read, and nothing is
    # written unless the head is moved from there. A content key that was read and is gone meanwhile breaks its foreign key.
    def append(
        self, workspace: str, drafts: Sequence[StepDraft], now_ms: int, *, makes_keys: bool = True
    ) -> Transaction[list[ChainStep]]:
        """Append the drafts in their order, as one piece: several steps cost one move of the head. MissingKey where an owner's
        first content would need a key, and none is to be made."""
        owners = {
            draft.owner or day_owner(draft.at or now_ms): draft.at or now_ms
            for draft in drafts
            if draft.contents
        }
        seals = Seals(self.sealer, workspace)
        found = yield _SQL.place(
            workspace=workspace, server=self.server, owners=_JSON.encode([*owners]).decode()
        )
        if not found:
            raise NotFound("cannot keep a trace there: there is no such workspace; create it first")
        former = Head(0, GENESIS) if found[0]["seq"] is None else Head(found[0]["seq"], found[0]["hash"])
        for row in found:
            if row["owner"] is not None:
                seals.unlock(row)
        for owner, at in owners.items():
            if not makes_keys and not seals.is_ready(owner):
                raise MissingKey(f"cannot append to a trace: {owner} has no content key yet; make it first")
            yield from seals.ready(owner, at)
        steps: list[ChainStep] = []
        texts: list[bytes] = []  # of the steps, as they are hashed
        hashes: list[str] = [former.hash]
        pieces: list[_Piece] = []
        for seq, draft in enumerate(drafts, former.seq + 1):
            at = draft.at or now_ms
            sealed = self._sealed(seals, draft, seq, at) if draft.contents else []
            step = self._step(draft, workspace, seq, at, hashes[-1], sealed)
            steps.append(step)
            texts.append(canonical(step))
            hashes.append(hashlib.sha256(texts[-1]).hexdigest())  # as `ChainStep.hash`
            pieces += sealed
        if steps:
            yield from self._write(former.seq, steps, texts, hashes[1:], pieces)
        return steps

    def _sealed(self, seals: Seals, draft: StepDraft, seq: int, at: int) -> list[_Piece]:
        owner, trace = draft.owner or day_owner(at), draft.call.trace_id
        sealed = []
        for name, value in sorted(draft.contents.items()):
            digest, body = seals.seal(owner, self.server, seq, name, value)
            sealed.append(_Piece(seq, name, trace, owner, body, digest))
        return sealed

    def _step(
        self, draft: StepDraft, workspace: str, seq: int, at: int, prev: str, sealed: Sequence[_Piece]
    ) -> ChainStep:
        by, call = draft.by, draft.call
        return ChainStep(
            workspace_id=workspace,
            server=self.server,
            seq=seq,
            at=at,
            step=str(draft.step),
            prev_hash=prev,
            trace_id=call.trace_id,
            agent=call.agent,
            tool=call.tool,
            approval_id=call.approval_id,
            session_id=call.session_id,
            turn_id=call.turn_id,
            tool_call_id=call.tool_call_id,
            kind=draft.kind,
            action_digest=draft.action_digest,
            policy=draft.policy,
            policy_rule=draft.policy_rule,
            policy_version=draft.policy_version,
            status=draft.status,
            reason=draft.reason,
            actor_kind=by.kind if by else None,
            actor=by.id if by else None,
            actor_user=by.user if by else None,
            actor_level=by.level if by else None,
            confidence=draft.confidence,
            status_code=draft.status_code,
            latency_ms=draft.latency_ms,
            replaces=draft.replaces,
            content_owner=sealed[0].owner if sealed else None,
            digests=_JSON.encode({piece.name: piece.digest for piece in sealed}).decode() if sealed else None,
            cut=draft.cut,
        )

    def _write(
        self,
        former: int,
        steps: Sequence[ChainStep],
        texts: Sequence[bytes],
        hashes: Sequence[str],
        pieces: Sequence[_Piece],
    ) -> Transaction[None]:
        workspace, written, contents, bodies = steps[0].workspace_id, None, None, None
        if self.at_once:
            # The text that was hashed is the row, but for the hash: what is null is left out of both.
            rows = (
                b'{"hash":"%b",%b' % (each.encode(), text[1:])
                for each, text in zip(hashes, texts, strict=True)
            )
            written = (b"[%b]" % b",".join(rows)).decode()
            contents, bodies = _in_one_piece(pieces)
        else:
            yield _SQL.each(
                "append",
                [
                    msgspec.structs.asdict(step) | {"hash": each}
                    for step, each in zip(steps, hashes, strict=True)
                ],
            )
            place = {"workspace": workspace, "server": self.server}
            yield _SQL.each("add_content", [place | piece._asdict() for piece in pieces])
        try:
            moved = yield _SQL.advance(
                workspace=workspace,
                server=self.server,
                seq=steps[-1].seq,
                hash=hashes[-1],
                former=former,
                steps=written,
                contents=contents,
                bodies=bodies,
            )
        except Dangling:
            raise Overtaken("cannot append to a trace: a content key is gone; try again") from None
        if not moved:
            raise Overtaken("cannot append to a trace that another server writes: give each server its name")


def _in_one_piece(pieces: Sequence[_Piece]) -> tuple[str, bytes]:
    """Put all sealed bytes together, and say where each of them lies: SQL counts from 1."""
    places, start = [], 1
    for piece in pieces:
        size = len(piece.body)
        places.append(
            {"seq": piece.seq, "name": piece.name, "trace_id": piece.trace_id, "owner": piece.owner,
             "start": start, "size": size}
        )  # fmt: skip
        start += size
    return _JSON.encode(places).decode(), b"".join(piece.body for piece in pieces)


def head(workspace: str, server: str) -> Transaction[Head]:
    row = only((yield _SQL.head(workspace=workspace, server=server)))
    return Head(0, GENESIS) if row is None else Head(row["seq"], row["hash"])


_Append: TypeAlias = tuple[Sequence[StepDraft], int]
"""Drafts of one caller, and when it came."""


class Ledger:
    """Transactions that append to a server's chains. Belongs to one event loop.

    On SQLite its one writer orders them and commits many at once. On Postgres they take turns here.
    Mere appends go in groups on both.
    """

    def __init__(self, database: Database, chain: Chain) -> None:
        self.database = database
        self.chain = chain
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._groups = Groups("legation-ledger", self._append_group, MOST_AT_ONCE)

    async def transact(
        self, workspace: str, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a transaction that appends to the chain of `workspace` and of no other."""
        async with self._turn(workspace):
            return await self.database.transact(work, *args, **kwargs)

    async def append(self, workspace: str, drafts: Sequence[StepDraft], now_ms: int) -> list[ChainStep]:
        """Append steps that change no state. Whatever comes while one is being written goes with the next, as one."""
        return await self._groups.add(workspace, (drafts, now_ms))

    async def _append_group(
        self, workspace: str, group: list[_Append]
    ) -> Sequence[list[ChainStep] | Exception]:
        async with self._turn(workspace):
            return await self._append_together(workspace, group)

    async def _append_together(
        self, workspace: str, group: list[_Append]
    ) -> Sequence[list[ChainStep] | Exception]:
        try:
            if self.chain.at_once:
                with suppress(MissingKey):
                    return await self.database.transact(self._append_at_once, workspace, group)
            return await self.database.transact(self._append_all, workspace, group)
        except Exception as error:  # noqa: BLE001 - told to whoever it befell
            # A database that is away is away for each of them, and may have taken the group before it went: what is
            # tried again then would be on record twice.
            if len(group) == 1 or isinstance(error, StorageFailed | Unavailable):
                return [error] * len(group)
        # One of them spoilt it: not for the others.
        return [one for each in group for one in await self._append_together(workspace, [each])]

    # Safe under read committed, as `Chain.append` is. All of it is one statement where no key has to be made.
    @conditional
    def _append_at_once(self, workspace: str, group: list[_Append]) -> Transaction[list[list[ChainStep]]]:
        return (yield from self._append_all(workspace, group, makes_keys=False))

    @read_committed
    def _append_all(
        self, workspace: str, group: list[_Append], *, makes_keys: bool = True
    ) -> Transaction[list[list[ChainStep]]]:
        drafts = [msgspec.structs.replace(draft, at=now_ms) for some, now_ms in group for draft in some]
        appended = yield from self.chain.append(workspace, drafts, group[-1][1], makes_keys=makes_keys)
        steps = iter(appended)
        return [list(islice(steps, len(some))) for some, _ in group]

    @asynccontextmanager
    async def _turn(self, workspace: str) -> AsyncIterator[None]:
        if self.database.dialect == "sqlite":
            yield
            return
        turn = self._turns.setdefault(workspace, asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_LIMIT):
                await turn.acquire()
        except TimeoutError:
            raise Unavailable(
                "cannot write the trace: others wait for the database before; try again"
            ) from None
        try:
            yield
        finally:
            turn.release()


Known: TypeAlias = Head | Sequence[Head] | None
"""Heads that an earlier report named."""


class Fault(msgspec.Struct, frozen=True):
    seq: int
    what: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify`. `head` is worth keeping elsewhere: given back to a later `verify`, it shows that no end was cut off."""

    workspace: str
    server: str
    steps: int
    first: int = 1  # the number of the first step: those before it were cut off
    since: int | None = None  # the time of it
    checked: int  # contents that are there
    purged: int  # contents whose key was destroyed
    head: Head
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


class Link(msgspec.Struct, frozen=True):
    """One step as it is stored: with the hash that stands beside it."""

    step: ChainStep
    hash: str


class TraceCut(msgspec.Struct, frozen=True):
    """The part of a chain that a checkpoint stands for: from the first to the last number, and their times. `hash` is that
    of the last."""

    first: int
    last: int
    hash: str
    since: int
    until: int


def read_cut(step: ChainStep) -> TraceCut | None:
    try:
        return None if step.cut is None else msgspec.json.decode(step.cut, type=TraceCut)
    except msgspec.MsgspecError:  # tampered with: then the hash is wrong as well
        return None


class Verifier:
    """A check of one chain: it takes the links in order, and holds each against the one before."""

    def __init__(self) -> None:
        self.last = Head(0, GENESIS)
        self.first = 1
        self.since: int | None = None
        self.begins_after: Head | None = None  # what a checkpoint is to name, until one does
        self._before = Head(0, GENESIS)  # the step that the first one follows
        self.steps = 0
        self.checked = 0
        self.purged = 0
        self.faults: list[Fault] = []
        self.otherwise: list[Fault] = []  # approvals that are not as the chain tells them

    def link(self, link: Link) -> None:
        step = link.step
        self.steps += 1
        if self.steps == 1:
            self.first, self.since = step.seq, step.at
            if step.seq > 1:
                self.last = self.begins_after = self._before = Head(step.seq - 1, step.prev_hash)
        if self.begins_after is not None and step.step == StepKind.CHECKPOINT:
            cut = read_cut(step)
            if cut is not None and Head(cut.last, cut.hash) == self.begins_after:
                self.begins_after = None
        if step.seq != self.last.seq + 1:
            self.fault(step.seq, f"the steps before it, from {self.last.seq + 1} on, are missing")
        elif step.prev_hash != self.last.hash:
            self.fault(step.seq, "it does not follow the step before it")
        if step.hash != link.hash and link.hash not in step.hashes_of_0_1:
            self.fault(step.seq, "it was changed")
        self.last = Head(step.seq, link.hash)  # so that one change is told once, where it is

    def contents(
        self, step: ChainStep, said: Sequence[OpenedContent], *, purged: bool, broken: Collection[str] = ()
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
        if self.begins_after is not None:
            self.fault(self.first, "the steps before it, from 1 on, are missing")
        if stored != self.last:
            self.fault(self.last.seq, f"the chain should end with step {stored.seq}, as its head says")
        for each in _heads(known):
            if each.seq > stored.seq:
                self.fault(each.seq, "the chain was longer before: its end was cut off")
            if self.first > 1 and each.seq == self._before.seq and each.hash != self._before.hash:
                self.fault(self.first, "it follows another step than was there before")

    def known(self, link: Link, known: Known) -> None:
        for each in _heads(known):
            if link.step.seq == each.seq and link.hash != each.hash:
                self.fault(each.seq, "it is another step than was there before")

    def anew(self) -> Verifier:
        """Begin again where the chain begins now; what was found stays found."""
        fresh = Verifier()
        fresh.faults, fresh.otherwise = self.faults, self.otherwise
        return fresh

    def report(self, workspace: str, server: str) -> Report:
        return Report(
            workspace=workspace,
            server=server,
            steps=self.steps,
            first=self.first,
            since=self.since,
            checked=self.checked,
            purged=self.purged,
            head=self.last,
            # Only a good chain is a witness: what a broken one says of approvals is the same fault once more.
            faults=tuple(self.faults or self.otherwise),
        )


async def verify(
    database: Database, sealer: Sealer, workspace: str, server: str, known: Known = None
) -> Report:
    """Check a chain in batches, so that it holds nobody up; what is appended meanwhile is left for the next time."""
    verifier, seals = Verifier(), Seals(sealer, workspace)
    stored, last = await database.read(_ends, workspace, server)
    while verifier.last.seq < last:
        stretch = await database.read(_stretch, workspace, server, verifier.last.seq, last)
        if not stretch.steps:
            break
        if stretch.begins and verifier.steps:  # all that was read was cut off meanwhile
            verifier = verifier.anew()
        for row in stretch.steps:
            link = Link(read_step(row), row["hash"])
            verifier.link(link)
            verifier.known(link, known)
            _check_contents(verifier, seals, link.step, stretch)
            _check_approval(verifier, link.step, stretch)
        for seq in stretch.contents:
            verifier.fault(seq, "there is content of a step that is not there")
        if verifier.begins_after is not None and verifier.last.seq >= last:
            # The checkpoint may have come since: it stands when what it names is gone.
            stored, last = await database.read(_ends, workspace, server)
    verifier.end(stored, known)
    return verifier.report(workspace, server)


def chains(workspace: str) -> Transaction[list[str]]:
    """List the servers that have a chain in the workspace."""
    return [row["server"] for row in (yield _SQL.chains(workspace=workspace))]


async def untraced(database: Database, workspace: str) -> list[str]:
    """List the first approvals that no trace tells of."""
    untraced = _SQL.untraced(workspace=workspace, limit=MOST_FAULTS)
    return [row["id"] for row in await database.read(rows, untraced)]


def _heads(known: Known) -> Sequence[Head]:
    return (known,) if isinstance(known, Head) else known or ()


class _Stretch(msgspec.Struct):
    steps: Rows
    begins: bool  # its first step is the first of the chain
    contents: dict[int, list[Row]]  # by the step's number; taken out as they are checked
    keys: dict[str, int]  # owner -> when its key was made
    approvals: dict[str, Approval]  # that steps of the stretch asked for, by id
    told: dict[str, list[ChainStep]]  # every step of their traces, whichever chain it is in


def _check_contents(verifier: Verifier, seals: Seals, step: ChainStep, stretch: _Stretch) -> None:
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
    if step.cut is not None and not any(each.name == "cut" and each.value == step.cut for each in said):
        verifier.fault(step.seq, "it says that steps were cut off, and no server of ours sealed that")


def _asks(step: ChainStep) -> bool:
    """Tell whether it made an approval, which it does once."""
    asked = step.step == StepKind.DECIDED and step.policy in ("supervisor", "human_approval")
    # With a reason it did not: a grant spoke, or another policy.
    return asked and step.reason is None and step.approval_id is not None


def _check_approval(verifier: Verifier, step: ChainStep, stretch: _Stretch) -> None:
    if not _asks(step):
        return
    if not any(each.step == StepKind.PROPOSED for each in stretch.told.get(step.trace_id, ())):
        return  # cut off right before it, and its approval with that
    found = stretch.approvals.get(step.approval_id or "")
    if found is None:
        verifier.contradicted(step.seq, f"its approval {step.approval_id} was removed")
        return
    told = [each for each in stretch.told.get(step.trace_id, ()) if each.approval_id == found.id]
    for what in _differences(found, told):
        verifier.contradicted(step.seq, f"its approval {found.id} has {what} than the trace tells")


def _differences(found: Approval, told: Sequence[ChainStep]) -> Iterator[str]:
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
    if found.status != (ApprovalState.PENDING if outcome is None else outcome.status):
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


def _asked_for(first: ChainStep, told: Sequence[ChainStep]) -> _Asked | None:
    """Tell what the approval is bound to, under the last policy that bound it; None where 0.1 wrote no digest then."""
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
    steps = yield _SQL.steps_between(**place, last=last, limit=VERIFY_BATCH)
    if not steps:
        return _Stretch([], False, {}, {}, {}, {})
    end = steps[-1]["seq"]
    begins = False
    if steps[0]["seq"] != after + 1:
        (first,) = yield _SQL.first_step(workspace=workspace, server=server, from_seq=0)
        begins = first["seq"] == steps[0]["seq"]
    contents: dict[int, list[Row]] = {}
    for row in (yield _SQL.contents_between(**place, last=end)):
        contents.setdefault(row["seq"], []).append(row)
    keys = yield _SQL.keys_between(**place, last=end)
    asking = [row for row in steps if _asks(read_step(row))]
    approvals = yield _SQL.approvals_of(workspace=workspace, ids=_json(row["approval_id"] for row in asking))
    told = yield _SQL.steps_of(workspace=workspace, traces=_json(row["trace_id"] for row in asking))
    return _Stretch(
        steps=steps,
        begins=begins,
        contents=contents,
        keys={row["owner"]: row["created_at"] for row in keys},
        approvals={row["id"]: approval.read(row) for row in approvals},
        told=joined(told),
    )


def _json(words: Iterator[str]) -> str:
    return _JSON.encode(list(words)).decode()

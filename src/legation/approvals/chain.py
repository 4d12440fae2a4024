"""The trace as a chain: append-only, one for each workspace and server, each step linked to the one before.

INV-C1  Numbers are dense from 1; a step's `prev_hash` is the hash of the step before it.
INV-C2  A state change and its step are one transaction: `append` is part of the transaction that makes the change.
INV-C3  One server writes a chain, and its writers take turns: on Postgres two at once would only undo each other.

What a chain cannot show: somebody who may write the database and cut the end off together with the head, or who
computes everything anew. Who must exclude that keeps the head of `verify` elsewhere, and gives it back to `verify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import msgspec

from legation.approvals.trace import GENESIS, Draft, Step
from legation.approvals.trace_content import Seals, day_owner
from legation.errors import Conflict, NotFound, StorageFailed, Unavailable
from legation.store.database.queries import Queries
from legation.store.database.transaction import Dangling, Database, Transaction, only
from legation.store.plain import must_be_plain
from legation.store.sealing import Sealer

MOST_AT_ONCE: Final = 128  # callers whose steps are one transaction; others may wait for that one
TURN_LIMIT: Final = 30.0  # seconds in the line for one chain: the time of those before, and of Postgres

_SQL: Final = Queries("traces")

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Head:
    seq: int
    hash: str


class _Piece(msgspec.Struct, frozen=True):
    """One sealed value on its way into `trace_content`."""

    seq: int
    name: str
    trace_id: str
    owner: str
    body: bytes


class Chain:
    """The chains of one server, one in each workspace.

    `at_once` writes all steps of an append in one statement: on Postgres, where each is a way there and back, that
    counts; on SQLite it would only be slower.
    """

    def __init__(self, server: str, sealer: Sealer, *, at_once: bool = False) -> None:
        self.server = must_be_plain(server, "the name of a server")
        self.sealer = sealer
        self._at_once = at_once

    def append(self, workspace: str, drafts: Sequence[Draft], now_ms: int) -> Transaction[list[Step]]:
        """The drafts in their order, as one piece: several steps cost one move of the head."""
        former = yield from head(workspace, self.server)
        seals = Seals(self.sealer, workspace)
        for draft in drafts:
            if draft.contents:
                at = draft.at or now_ms
                yield from seals.ready(draft.owner or day_owner(at), at)
        steps: list[Step] = []
        hashes: list[str] = [former.hash]
        pieces: list[_Piece] = []
        for seq, draft in enumerate(drafts, former.seq + 1):
            at = draft.at or now_ms
            sealed = self._sealed(seals, draft, seq, at)
            steps.append(self._step(draft, workspace, seq, at, hashes[-1], sealed))
            hashes.append(steps[-1].hash)
            pieces += [piece for piece, _digest in sealed]
        if steps:
            yield from (self._write_at_once if self._at_once else self._write)(steps, hashes[1:], pieces)
            yield from self._advance(workspace, former.seq, Head(steps[-1].seq, hashes[-1]))
        return steps

    def _sealed(self, seals: Seals, draft: Draft, seq: int, at: int) -> list[tuple[_Piece, str]]:
        owner, trace = draft.owner or day_owner(at), draft.call.trace_id
        sealed = []
        for name, value in sorted(draft.contents.items()):
            digest, body = seals.seal(owner, self.server, seq, name, value)
            sealed.append((_Piece(seq, name, trace, owner, body), digest))
        return sealed

    def _step(
        self, draft: Draft, workspace: str, seq: int, at: int, prev: str, sealed: list[tuple[_Piece, str]]
    ) -> Step:
        call, by = draft.call, draft.by
        digests = {piece.name: digest for piece, digest in sealed}
        return Step(
            workspace_id=workspace,
            server=self.server,
            seq=seq,
            at=at,
            step=str(draft.step),
            trace_id=call.trace_id,
            agent=call.agent,
            tool=call.tool,
            prev_hash=prev,
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
            content_owner=sealed[0][0].owner if sealed else None,
            digests=msgspec.json.encode(digests, order="sorted").decode() if digests else None,
        )

    def _write(
        self, steps: Sequence[Step], hashes: Sequence[str], pieces: Sequence[_Piece]
    ) -> Transaction[None]:
        for step, hash_ in zip(steps, hashes, strict=True):
            yield _SQL.append(**msgspec.structs.asdict(step), hash=hash_)
        for piece in pieces:
            yield _SQL.add_content(
                workspace=steps[0].workspace_id, server=self.server, **msgspec.structs.asdict(piece)
            )

    def _write_at_once(
        self, steps: Sequence[Step], hashes: Sequence[str], pieces: Sequence[_Piece]
    ) -> Transaction[None]:
        rows = [
            msgspec.structs.asdict(step) | {"hash": hash_} for step, hash_ in zip(steps, hashes, strict=True)
        ]
        yield _SQL.append_at_once(rows=msgspec.json.encode(rows).decode())
        if not pieces:
            return
        places, start = [], 1  # SQL counts bytes from 1
        for piece in pieces:
            places.append(
                {"seq": piece.seq, "name": piece.name, "trace_id": piece.trace_id, "owner": piece.owner,
                 "start": start, "size": len(piece.body)}
            )  # fmt: skip
            start += len(piece.body)
        yield _SQL.add_contents(
            workspace=steps[0].workspace_id,
            server=self.server,
            rows=msgspec.json.encode(places).decode(),
            bodies=b"".join(piece.body for piece in pieces),
        )

    def _advance(self, workspace: str, former: int, to: Head) -> Transaction[None]:
        try:
            moved = yield _SQL.advance(
                workspace=workspace, server=self.server, seq=to.seq, hash=to.hash, former=former
            )
        except Dangling:
            raise NotFound("cannot keep a trace there: there is no such workspace; create it first") from None
        if not moved:
            raise Conflict("cannot append to a trace that another server writes: give each server its name")


def head(workspace: str, server: str) -> Transaction[Head]:
    row = only((yield _SQL.head(workspace=workspace, server=server)))
    return Head(0, GENESIS) if row is None else Head(row["seq"], row["hash"])


@dataclass(slots=True, eq=False)
class _Waiting:
    drafts: Sequence[Draft]
    now_ms: int
    done: asyncio.Future[list[Step]] = field(init=False)

    def __post_init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()


class Ledger:
    """Transactions that append to a server's chains. Belongs to one event loop.

    On SQLite its one writer orders them and commits many at once. On Postgres they take turns here.
    Mere appends go in groups on both.
    """

    def __init__(self, database: Database, chain: Chain) -> None:
        self.database = database
        self.chain = chain
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._waiting: dict[str, list[_Waiting]] = {}

    async def transact(
        self, workspace: str, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`work` appends to the chain of `workspace` and of no other."""
        if self.database.dialect == "sqlite":
            return await self.database.transact(work, *args, **kwargs)
        turn = await self._turn(workspace)
        try:
            return await self.database.transact(work, *args, **kwargs)
        finally:
            turn.release()

    async def append(self, workspace: str, drafts: Sequence[Draft], now_ms: int) -> list[Step]:
        """Steps that change no state. Whatever comes while one is being written goes with the next, as one."""
        mine = _Waiting(drafts, now_ms)
        line = self._waiting.setdefault(workspace, [])
        line.append(mine)
        try:
            turn = await self._turn(workspace)
        except BaseException:
            if mine in line:  # nobody took it along: then it is not to be written any more
                line.remove(mine)
            raise
        try:
            while not mine.done.done():  # once: the line and the turns are in the same order
                await self._append_waiting(workspace)
        finally:
            turn.release()
        return mine.done.result()

    async def _append_waiting(self, workspace: str) -> None:
        line = self._waiting[workspace]
        group, line[:] = line[:MOST_AT_ONCE], line[MOST_AT_ONCE:]
        commit = asyncio.create_task(self._commit(workspace, group))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait({commit})  # bounded by the database; the others of the group must hear of it
            raise

    async def _commit(self, workspace: str, group: Sequence[_Waiting]) -> None:
        try:
            results = await self.database.transact(self._append_all, workspace, group)
        except Exception as error:  # noqa: BLE001 - told to whoever it befell
            # A database that is away is away for each of them, and may have taken the group before it went: what is
            # tried again then would be on record twice.
            if len(group) == 1 or isinstance(error, StorageFailed | Unavailable):
                for waiting in group:
                    waiting.done.set_exception(error)
                    waiting.done.exception()  # whoever has gone meanwhile does not ask for it
                return
            for waiting in group:  # one of them spoilt it: not for the others
                await self._commit(workspace, [waiting])
            return
        for waiting, steps in zip(group, results, strict=True):
            waiting.done.set_result(steps)

    def _append_all(self, workspace: str, group: Sequence[_Waiting]) -> Transaction[list[list[Step]]]:
        drafts = [
            msgspec.structs.replace(draft, at=waiting.now_ms) for waiting in group for draft in waiting.drafts
        ]
        steps = iter((yield from self.chain.append(workspace, drafts, group[-1].now_ms)))
        return [list(islice(steps, len(waiting.drafts))) for waiting in group]

    async def _turn(self, workspace: str) -> asyncio.Lock:
        turn = self._turns.setdefault(workspace, asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_LIMIT):
                await turn.acquire()
        except TimeoutError:
            raise Unavailable(
                "cannot write the trace: others wait for the database before; try again"
            ) from None
        return turn

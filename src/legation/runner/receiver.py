"""The other end of the callbacks: takes reports of runners, each once, in order, and only those that are theirs.

INV-V1  What is not signed by the runner's token, is off by more than 5 minutes, or comes again leaves no row.
INV-V2  A repetition is answered as it was before; one that skips others is taken, with how many are missing: its snapshot
        stands for them.
INV-V3  A nonce is used once, whichever server it comes to and whatever was restarted since.
INV-V4  `head` only rises, and not behind a terminal report: a repetition or a late one changes nothing.
INV-V5  The token is kept as a digest: whoever reports shows it, and signs with it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, NamedTuple, TypeAlias

from legation.clock import Clock
from legation.errors import Unauthenticated
from legation.store.database.transaction import Database, Queries, Transaction, only
from legation.wire.callbacks import NONCE_KEPT_MS, RunnerReport, read_report, token_digest, verify

FORGOTTEN_AT_ONCE: Final = 100  # nonces: more than come with one report
SQL = Queries("runners")
RUNS = Queries("runs")


KeepReport: TypeAlias = Callable[[int], Transaction[None]]
"""Writes what a report tells, at that time."""
PrepareReport: TypeAlias = Callable[[str, str, RunnerReport], Awaitable[KeepReport | None]]
"""Makes that, of a workspace, the id of its runner and a report whose signature is good; None where nothing is kept."""


@dataclass(frozen=True, slots=True)
class RunnerRow:
    id: str
    workspace: str
    token_digest: bytes
    machine: str
    head: int
    seen_at: int
    ended_at: int | None
    run_id: str | None = None  # of one that a worker has started
    heard_at: int | None = None
    limited_until: int | None = None

    def knows(self, token: str) -> bool:
        return compare_digest(self.token_digest, token_digest(token))


@dataclass(frozen=True, slots=True)
class TakenReport:
    """Outcome of a report: `head` is the sequence of the last one that counts, `missing` how many were passed over on
    the way there; one that is not `fresh` came before, or too late."""

    head: int
    fresh: bool
    missing: int = 0
    woken: bool = False  # its run: a worker is to be notified


class PromptEnded(NamedTuple):
    """The end of a prompt in words of closed sets: nothing that an agent could put there is kept in plain."""

    kind: str
    code: str


_CODE: Final = re.compile(r"(legation/[a-z-]{1,48}|runner|[a-z_]{1,32}|-?[0-9]{1,9})")


def end_of(report: RunnerReport) -> PromptEnded | None:
    if not report.is_terminal:
        return None
    code = report.error.code if report.error is not None else report.stop_reason
    return PromptEnded(report.kind, code if code is not None and _CODE.fullmatch(code) else "unknown")


def add_runner(id: str, workspace: str, token: bytes, machine: str, *, now_ms: int) -> Transaction[None]:  # noqa: A002
    """`token` is its digest."""
    yield SQL.add_runner(id=id, workspace=workspace, token_digest=token, machine=machine, now=now_ms)


def replace_token(id: str, workspace: str, token: bytes) -> Transaction[bool]:  # noqa: A002
    """Let a later life of the runner report with a token of its own; `token` is its digest."""
    return bool((yield SQL.replace_token(id=id, workspace=workspace, token_digest=token)))


def find_runner(id: str) -> Transaction[RunnerRow | None]:  # noqa: A002
    row = only((yield SQL.runner(id=id)))
    if row is None:
        return None
    return RunnerRow(
        id=row["id"],
        workspace=row["workspace_id"],
        token_digest=bytes(row["token_digest"]),
        machine=row["machine"],
        head=row["head"],
        seen_at=row["seen_at"],
        ended_at=row["ended_at"],
        run_id=row["run_id"],
        heard_at=row["heard_at"],
        limited_until=row["limited_until"],
    )


def take_report(
    id: str,  # noqa: A002
    nonce: str,
    sequence: int,
    *,
    ended: PromptEnded | None = None,
    limited_until: int | None = None,
    keep: KeepReport | None = None,
    now_ms: int,
) -> Transaction[TakenReport]:
    """Count a report whose signature is good; a heartbeat has sequence 0, and a terminal one how the prompt `ended`. A nonce that
    was used is `Unauthenticated`, and then nothing is written. The run of a runner that ends, is heard of for the first time, or comes to a
    usage limit or gets over it, is woken. What `keep` writes of a fresh one is part of it."""
    if not (yield SQL.keep_nonce(id=id, nonce=nonce, now=now_ms)):
        raise Unauthenticated("cannot accept a report with a nonce that was used: sign it again")
    yield SQL.forget_nonces(before=now_ms - NONCE_KEPT_MS, limit=FORGOTTEN_AT_ONCE)
    found = yield from find_runner(id)
    assert found is not None  # a nonce is kept of none but one that is there
    who = {"workspace": found.workspace, "id": id, "now": now_ms}
    woken = False
    is_news = (
        found.heard_at is None or ended is not None or (sequence > 0 and limited_until != found.limited_until)
    )
    if found.run_id is not None and is_news:
        woken = bool((yield RUNS.wake(workspace=found.workspace, id=found.run_id, now=now_ms)))
    if sequence == 0:
        yield SQL.see_runner(**who)
        return TakenReport(found.head, fresh=True, woken=woken)
    ended_at = now_ms if ended is not None else None
    kind, code = (ended.kind, ended.code) if ended is not None else (None, None)
    end = {"ended_at": ended_at, "ended_kind": kind, "ended_code": code, "limited_until": limited_until}
    if not (yield SQL.advance_runner(**who, sequence=sequence, **end)):
        return TakenReport(found.head, fresh=False, woken=woken)
    if keep is not None:
        yield from keep(now_ms)
    return TakenReport(sequence, fresh=True, missing=sequence - found.head - 1, woken=woken)


_UNKNOWN: Final = "cannot accept a report with that token: compare the token and the address of both sides"


def bearer_of(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise Unauthenticated("cannot accept a report without a bearer token: send it signed")
    return token


@dataclass(frozen=True, slots=True)
class ReportReceiver:
    """`wall` is the machine's own clock: a timestamp comes from another machine's."""

    database: Database
    clock: Clock
    wall: Clock
    prepare: PrepareReport | None = None

    async def admit(self, runner_id: str, headers: Mapping[str, str]) -> RunnerRow:
        """Find the runner by the token that is shown, before anything else of it is read; names are in lower case."""
        token = bearer_of(headers)
        found = await self.database.read(find_runner, runner_id)
        if found is None or not found.knows(token):  # the same words: who may not report learns of no runner
            raise Unauthenticated(_UNKNOWN)
        return found

    async def see(self, runner: RunnerRow, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Verify another request of an admitted runner, such as a poll: a sign of life."""
        nonce = verify(bearer_of(headers), headers, body, self.wall.now_ms())
        now = self.clock.now_ms()
        await self.database.transact(take_report, runner.id, nonce, 0, now_ms=now)

    async def take(
        self, runner: RunnerRow, headers: Mapping[str, str], body: bytes
    ) -> tuple[RunnerReport, TakenReport]:
        """Verify a report of an admitted runner, and count it."""
        now = self.clock.now_ms()
        nonce = verify(bearer_of(headers), headers, body, self.wall.now_ms())
        report = read_report(body)
        keep = None if self.prepare is None else await self.prepare(runner.workspace, runner.id, report)
        counted = (runner.id, nonce, report.sequence)
        taken = await self.database.transact(
            take_report,
            *counted,
            ended=end_of(report),
            limited_until=report.limited_until,
            keep=keep,
            now_ms=now,
        )
        return report, taken

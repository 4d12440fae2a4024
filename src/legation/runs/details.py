"""Details of a run for whoever looks at it: what was submitted, its attempts, lease, usage and cleanup, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from legation.runs.events import SQL as EVENTS_SQL
from legation.runs.events import RunEventStore
from legation.runs.lists import title_of
from legation.runs.run import SUBMISSION, Run, find_run
from legation.runs.states import TERMINAL, RunState
from legation.store.database.transaction import Database, Queries, Rows, Transaction
from legation.store.secrets.vault import ContentStore
from legation.wire.api.runs import (
    RunAttempt,
    RunCleanupStep,
    RunDetails,
    RunLease,
    RunSpec,
    RunUsage,
    RunView,
)

MICRO: Final = 1_000_000
_SQL: Final = Queries("run_details")


@dataclass(frozen=True, slots=True)
class _Found:
    attempts: Rows
    resources: Rows
    cleanups: Rows
    usage: Rows


def _read(workspace: str, run_id: str) -> Transaction[_Found]:
    place = {"workspace": workspace, "run": run_id}
    return _Found(
        attempts=(yield _SQL.attempts(**place)),
        resources=(yield _SQL.resources(**place)),
        cleanups=(yield _SQL.cleanups(**place)),
        usage=(yield EVENTS_SQL.usage(**place)),
    )


async def details_of(database: Database, content: ContentStore, run: Run, *, now_ms: int) -> RunDetails:
    found = await database.read(_read, run.workspace, run.id)
    usage = {row["kind"]: int(row["amount"]) for row in found.usage}
    leased = bool(run.lease_token) and run.lease_expires_at > now_ms
    return RunDetails(
        id=run.id,
        submission=await _submission(content, run.workspace, run.id),
        machine=run.machine or None,
        lease=RunLease(owner=run.lease_owner or "", expires_at=run.lease_expires_at) if leased else None,
        attempts=[
            RunAttempt(
                number=row["number"],
                machine=row["machine"],
                created_at=row["created_at"],
                handed_at=row["handed_at"],
                ended_at=row["ended_at"],
                error_class=row["error_class"],
                error_code=row["error_code"],
            )
            for row in found.attempts
        ],
        usage=RunUsage(
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            cost_usd=usage["cost_microusd"] / MICRO if "cost_microusd" in usage else None,
        ),
        cleanup=_steps(run, found),
    )


def _steps(run: Run, found: _Found) -> list[RunCleanupStep]:
    """List what was made for a run, with how its removal went; its secrets go last, with its end."""
    last = {row["name"]: row for row in found.cleanups}
    steps = []
    for row in found.resources:
        tried = last.get(row["name"])
        steps.append(
            RunCleanupStep(
                kind=row["kind"],
                name=row["name"],
                state=row["state"],
                tries=0 if tried is None else tried["number"],
                at=row["gone_at"] if tried is None else tried["at"],
                error_code=None if tried is None else tried["error_code"],
                error_reason=None if tried is None else tried["error_reason"],
            )
        )
    over = run.state in TERMINAL
    return [
        *steps,
        RunCleanupStep(
            kind="secrets",
            name="secrets",
            state="gone" if run.secret_id is None else "made",
            tries=int(over),
            at=run.ended_at if over else None,
        ),
    ]


async def _submission(content: ContentStore, workspace: str, run_id: str) -> RunSpec | None:
    pages = await content.read(workspace, run_id, SUBMISSION)
    return msgspec.json.decode(pages[0].plain, type=RunSpec) if pages else None


async def described(
    database: Database,
    content: ContentStore,
    events: RunEventStore,
    workspace: str,
    runs: Sequence[RunView],
    *,
    now_ms: int,
) -> list[RunView]:
    """Add to runs of a list what takes their content to know: title, cost, and how those that work get on."""
    ids = msgspec.json.encode([run.id for run in runs]).decode()
    costs = {row["run_id"]: int(row["amount"]) / MICRO for row in await database.read(_costs, workspace, ids)}
    found = []
    for run in runs:
        spec = await _submission(content, workspace, run.id)
        shown = msgspec.structs.replace(
            run, title=None if spec is None else title_of(spec), cost_usd=costs.get(run.id)
        )
        # Only those at work are looked into: they are at most as many as there are slots.
        if run.state == RunState.RUNNING and (row := await database.read(find_run, workspace, run.id)):
            shown = msgspec.structs.replace(shown, liveness=await events.liveness(row, now_ms))
        found.append(shown)
    return found


def _costs(workspace: str, ids: str) -> Transaction[Rows]:
    return (yield _SQL.costs(workspace=workspace, ids=ids))

"""Runs as they are shown: one, lists of them, and what is asked of one from outside, each with its row in the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from legation.errors import Conflict, NotFound
from legation.runs.run import INBOX, PRIORITIES, SUBMISSION, NewRun, Run, find_run, request_cancel, run_of
from legation.runs.states import RunAct, RunState, move, status_of
from legation.store.audit import record
from legation.store.database.transaction import Queries, Rows, Transaction, only
from legation.store.secrets.vault import ContentStore, SealedBundle, put_bundles
from legation.wire.api.runs import FolderPlace, Liveness, RunSpec, RunView
from legation.wire.api.shape import Page
from legation.wire.principal import Principal

WORKER_AWAY_MS: Final = 60_000  # without a sign of any: several of their own intervals
NO_WORKER: Final = (
    "no worker is here to work on it: start one with `legation up`, or `legation worker` beside a server"
)
LONGEST_TITLE: Final = 120  # characters
_LISTS: Final = Queries("run_lists")
_LAST: Final = "~"  # behind every id
_WORDS: Final = {number: word for word, number in PRIORITIES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Filters of a list; what is None is not asked for. `search` is the beginning of an id, an agent's name or a template's hash."""

    state: str | None = None
    agent: str | None = None
    template: str | None = None
    creator: str | None = None
    active: bool | None = None
    search: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run with what stands beside its row: its runner's first sign of life, the last one of any worker's, and who is to answer what it
    waits for."""

    run: Run
    heard_at: int | None
    worker_seen_at: int | None
    waits_on: Literal["supervisor", "person"] | None = None


def page_runs(
    workspace: str, query: RunQuery, limit: int, after: str, *, now_ms: int
) -> Transaction[Page[RunView]]:
    """The newest first."""
    beginning = None if query.search is None else _escaped(query.search) + "%"
    rows = yield _LISTS.page(
        workspace=workspace,
        after=after or _LAST,
        state=query.state,
        agent=query.agent,
        template=query.template,
        creator=query.creator,
        active=None if query.active is None else "yes" if query.active else "no",
        search=beginning,
        limit=limit + 1,
    )
    items = [view_of_run(run_of(row), now_ms=now_ms) for row in rows[:limit]]
    return Page(items=items, next=items[-1].id if len(rows) > limit else None)


def read_run(workspace: str, run_id: str) -> Transaction[RunFacts]:
    """Another workspace's and none at all are the same `NotFound`."""
    run = yield from find_run(workspace, run_id)
    if run is None:
        raise absent()
    heard = only((yield _LISTS.runner_heard(workspace=workspace, id=run.attempt_id))) if run.attempt else None
    seen = only((yield _LISTS.worker_seen()))
    asked = only((yield _LISTS.asked(workspace=workspace, id=run.waits_for))) if run.waits_for else None
    return RunFacts(
        run,
        heard["heard_at"] if heard else None,
        seen["at"] if seen else None,
        asked["needs"] if asked else None,
    )


def cancel_run(by: Principal, run_id: str, *, now_ms: int) -> Transaction[bool]:
    """Ask for its end; whether that is news. One that has ended stays as it is. To be followed by `notify(TOPIC)`."""
    run = yield from find_run(by.workspace, run_id)
    if run is None:
        raise absent()
    if not (yield from request_cancel(by.workspace, run_id, now_ms=now_ms)):
        return False
    yield from record(by, "run.cancelled", run_id, {}, now_ms)
    return True


def resume_run(by: Principal, run: Run, bundle: SealedBundle | None, *, now_ms: int) -> Transaction[None]:
    """Have a failed run go on from the queue, with secrets of its own: those that it had are gone. To be followed by `notify(TOPIC)`."""
    state = move(run.state, RunAct.RESUME)
    yield from put_bundles([bundle] if bundle else [])
    who = {"workspace": by.workspace, "id": run.id, "now": now_ms}
    if not (yield _LISTS.resume(**who, state=state, secret_id=bundle.id if bundle else None)):
        raise Conflict(
            "cannot resume the run: somebody else just did, or it is being deleted; look at its state"
        )
    yield INBOX.gone(workspace=by.workspace, id=run.id)
    yield from record(by, "run.resumed", run.id, {}, now_ms)


def count_runs_of(machine: str) -> Transaction[int]:
    """Count what is bound to a machine, of any workspace."""
    return len((yield _LISTS.bound(machine=machine)))


def cancel_runs_of(by: Principal, machine: str, *, now_ms: int) -> Transaction[None]:
    """Ask for the end of what is bound to a machine and has no outcome yet. To be followed by `notify(TOPIC)`."""
    for row in (yield _LISTS.bound(machine=machine)):
        if row["outcome"] is None:
            owner = msgspec.structs.replace(by, workspace=row["workspace_id"])
            yield from cancel_run(owner, row["id"], now_ms=now_ms)


def absent() -> NotFound:
    return NotFound("cannot find the run; check its id among yours")


def view_of_run(
    run: Run,
    *,
    now_ms: int,
    heard: bool = True,
    liveness: Liveness | None = None,
    notice: str | None = None,
    title: str | None = None,
    waits_on: Literal["supervisor", "person"] | None = None,
) -> RunView:
    leased = bool(run.lease_token) and run.lease_expires_at > now_ms
    return RunView(
        id=run.id,
        state=run.state,
        status=status_of(run.state, leased=leased, heard=heard, cleanup=run.cleanup),
        agent=run.agent,
        provider=run.provider,
        priority=_WORDS[run.priority],
        attempt=run.attempt,
        created_at=run.created_at,
        creator=run.creator,
        creator_user=run.creator_user,
        template=run.template_id,
        template_hash=run.template_hash,
        started_at=run.started_at,
        ended_at=run.ended_at,
        deadline_at=run.deadline_at,
        waits_for=run.waits_for,
        waits_on=waits_on,
        resume_at=run.resume_at,
        cancel_requested_at=run.cancel_requested_at,
        cleanup=run.cleanup,
        error_class=run.error_class,
        error_code=run.error_code,
        error_reason=run.error_reason,
        liveness=liveness,
        notice=notice,
        title=title,
    )


@dataclass(frozen=True, slots=True)
class RunSubject:
    """Subject of a run: the first line of its prompt, and the folder that it works in, where it was given one."""

    title: str
    folder: str | None


async def subject_of(content: ContentStore, workspace: str, run_id: str) -> RunSubject | None:
    """None of one whose content is deleted."""
    pages = await content.read(workspace, run_id, SUBMISSION)
    if not pages:
        return None
    spec = msgspec.json.decode(pages[0].plain, type=RunSpec)
    return RunSubject(
        title_of(spec), spec.workspace.path if isinstance(spec.workspace, FolderPlace) else None
    )


def title_of(spec: RunSpec) -> str:
    """Make a title of the first line of its prompt that says something."""
    lines = (line.strip() for line in spec.prompts[0].splitlines())
    first = next((line for line in lines if line and not line.startswith("#!")), spec.agent)
    first = first.lstrip("#").strip() or first  # of markdown: a heading
    return first if len(first) <= LONGEST_TITLE else f"{first[: LONGEST_TITLE - 3]}..."


def ended(workspace: str, ids: Iterable[str]) -> Transaction[Rows]:
    """Tell how each of those ended, or is now."""
    return (yield _LISTS.ended(workspace=workspace, ids=msgspec.json.encode([*ids]).decode()))


def notice_of(worker_seen_at: int | None, *, now_ms: int) -> str | None:
    """Say why nothing happens to a run that has not ended."""
    return NO_WORKER if worker_seen_at is None or now_ms - worker_seen_at > WORKER_AWAY_MS else None


def view_of_new(run: NewRun, notice: str | None, *, now_ms: int) -> RunView:
    """Show a run as its submission leaves it."""
    return RunView(
        id=run.id,
        state=RunState.QUEUED,
        status=RunState.QUEUED.status,
        agent=run.agent,
        provider=run.provider,
        priority=run.priority,
        attempt=0,
        created_at=now_ms,
        creator=run.creator,
        creator_user=run.creator_user,
        template=run.template_id,
        template_hash=run.template_hash,
        liveness="idle",
        notice=notice,
    )


def _escaped(text: str) -> str:
    # `_` stands in every id: as the one character that it matches it does no harm.
    return text.replace("%", "").replace("\\", "")

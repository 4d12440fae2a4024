"""`/v1/runs`: submit, list, read, follow and end durable runs; `/v1/templates` of them. docs/runs.md describes both."""

# ruff: noqa: A002 - an id is spelt as in the path

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from legation.errors import Conflict, InvalidParams, LegationError, NotFound, RateLimited, TooLarge, problem
from legation.server.http.request import JsonBody
from legation.server.http.routes import Call, Header, RouteReply, Routes, needs
from legation.server.routes.page import PageLimit
from legation.server.routes.rates import REFUSALS, RUN_CHANGES, limit_caller
from legation.server.routes.streams import MEDIA, LastEventId, Position, credential_of
from legation.server.streaming.hub import check_position
from legation.server.streaming.multiplex import read_position
from legation.server.streaming.sse import EventStream
from legation.store.counters import Limit
from legation.wire.api.runs import (
    BatchedRun,
    NewTemplate,
    RunBatch,
    RunChanges,
    RunDetails,
    RunEventView,
    RunFile,
    RunKey,
    RunMessage,
    RunResume,
    RunsBatched,
    RunSubmission,
    RunView,
    TemplateView,
)
from legation.wire.api.sessions import Name
from legation.wire.api.shape import Page

if TYPE_CHECKING:
    from legation.runs.submit import Submitted
    from legation.store.audit import Change
    from legation.store.database.transaction import Transaction

SUBMISSION_BYTES: Final = 8 * 1024 * 1024
BATCH_BYTES: Final = 32 * 1024 * 1024

Wait = Annotated[float, Meta(ge=0, le=60)]
EventLimit = Annotated[int, Meta(ge=1, le=1000)]

routes = Routes(tag="runs")
templates_routes = Routes(tag="templates")
_NONE: Final = msgspec.Raw(b"null")
_submission = JsonBody(RunSubmission, None)


async def _unread(call: Call, error: LegationError) -> None:
    """Write down that a submission was refused which could not be read: it counts as one."""
    await _limit(call, 1)
    await call.services.runs.refuse(call.principal, [error])


@routes.post(
    "/v1/runs",
    access=needs("operate"),
    status=201,
    errors=(NotFound, Conflict, RateLimited, TooLarge),
    body_bytes=SUBMISSION_BYTES,
    refused=_unread,
)
async def submit_run(
    call: Call,
    body: RunSubmission,
    idempotency_key: Annotated[RunKey | None, Header("Idempotency-Key")] = None,
) -> RouteReply[RunView]:
    """Submit a run: of a template, or of what the body says.

    `secrets` is the one member that may hold any; they are sealed for this run, and destroyed when it has ended. Submitted again with the
    same `Idempotency-Key` it is the same run, answered with 200; another body with that key is 409."""
    submitter = call.services.runs
    await _limit(call, 1)
    try:
        done = await submitter.submit(call.principal, body, idempotency_key)
    except LegationError as error:
        await submitter.refuse(call.principal, [error])
        raise
    return RouteReply(done.view or await _shown(call, done.run_id), 201 if done.created else 200)


@routes.post(
    "/v1/runs:batch",
    access=needs("operate"),
    errors=(RateLimited, TooLarge),
    body_bytes=BATCH_BYTES,
    refused=_unread,
)
async def submit_runs(call: Call, body: RunBatch) -> RunsBatched:
    """Submit up to 1,000 runs; each is accepted or refused by itself.

    They are answered in their order, each with the run or with the problem that it would have had alone."""
    submitter = call.services.runs
    await _limit(call, len(body.runs))
    submitted = await submitter.submit_each(call.principal, [_read(raw) for raw in body.runs])
    fates = [await _batched(call, each) for each in submitted]
    if refused := [fate for fate in fates if isinstance(fate, LegationError)]:
        await submitter.refuse(call.principal, refused)
    return RunsBatched(
        results=[
            BatchedRun(problem=problem(fate)) if isinstance(fate, LegationError) else fate for fate in fates
        ]
    )


async def _batched(call: Call, done: Submitted | LegationError) -> BatchedRun | LegationError:
    if isinstance(done, LegationError):
        return done
    try:
        return BatchedRun(run=done.view or await _shown(call, done.run_id), created=done.created)
    except LegationError as error:
        return error


def _read(raw: msgspec.Raw) -> RunSubmission | LegationError:
    try:
        given = _submission.decode(bytes(raw))
    except LegationError as error:
        return error
    assert isinstance(given, RunSubmission)
    return given


async def _limit(call: Call, count: int) -> None:
    """Before anything is done; who goes on is refused without a row after a while."""
    limit = Limit(max(call.services.settings.runs_per_minute, 1), 60)
    try:
        await limit_caller(call, "runs", limit, count)
    except RateLimited as error:
        try:
            await limit_caller(call, "refusals", REFUSALS)
        except RateLimited:
            raise error from None
        await call.services.runs.refuse(call.principal, [error])
        raise


@routes.get("/v1/runs", access=needs("read"))
async def list_runs(
    call: Call,
    limit: PageLimit = 100,
    after: str = "",
    state: Name | None = None,
    agent: Name | None = None,
    template: Name | None = None,
    creator: Name | None = None,
    active: bool | None = None,
    search: Name | None = None,
    details: bool = False,
) -> Page[RunView]:
    """The runs of the workspace, the newest first.

    With `details` they have their title, cost and, at work, their liveness, which takes longer. `state` is Legation's own name of one, `active` those that have not ended, or have; `search` is the beginning of an id, of an
    agent's name or of a template's hash. What was prompted is sealed, and not searched."""
    from legation.runs.lists import RunQuery, page_runs
    from legation.runs.states import RunState

    if state is not None and state not in set(RunState):
        raise InvalidParams(f"cannot list runs of that state; choose from {', '.join(RunState)}")
    query = RunQuery(
        state=state, agent=agent, template=template, creator=creator, active=active, search=search
    )
    services, workspace, now = call.services, call.principal.workspace, call.services.clock.now_ms()
    page = await services.database.read(page_runs, workspace, query, limit, after, now_ms=now)
    if not details:
        return page
    from legation.runs.details import described

    shown = await described(
        services.database, services.content, services.run_events, workspace, page.items, now_ms=now
    )
    return Page(items=shown, next=page.next)


@routes.get("/v1/runs/{id}", access=needs("read"), errors=(NotFound,))
async def read_run(call: Call, id: str, wait: Wait = 0) -> RunView:
    """One run, with how it gets on.

    `liveness` is told by its events, not by a process that lives; `notice` says why nothing happens, where Legation knows. With `wait`, the
    answer comes when the run has ended, or after so many seconds."""
    if wait:
        source = await call.services.hub.source(_run_name(id), call.principal.workspace)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while not source.ended:
                    await source.news.wait()
    return await _shown(call, id)


@routes.get("/v1/runs/{id}/details", access=needs("read"), errors=(NotFound,))
async def read_run_details(call: Call, id: str) -> RunDetails:
    """What a run was submitted as, its attempts, whose hands it is in, what it used, and what of it was cleaned up."""
    from legation.runs import lists
    from legation.runs.details import details_of

    services = call.services
    facts = await services.database.read(lists.read_run, call.principal.workspace, id)
    return await details_of(services.database, services.content, facts.run, now_ms=services.clock.now_ms())


@routes.post("/v1/runs/{id}/cancel", access=needs("operate"), errors=(NotFound, RateLimited))
async def cancel_run(call: Call, id: str) -> RunView:
    """Ask for the end of a run. One that has ended, or was asked before, stays as it is."""
    from legation.runs import lists
    from legation.runs.run import TOPIC

    services = call.services
    await services.database.read(lists.read_run, call.principal.workspace, id)
    await limit_caller(call, "run-changes", RUN_CHANGES)
    if await services.database.transact(lists.cancel_run, call.principal, id, now_ms=services.clock.now_ms()):
        services.database.notify(TOPIC)
    return await _shown(call, id)


@routes.post(
    "/v1/runs/{id}/messages",
    access=needs("operate"),
    errors=(NotFound, Conflict, RateLimited, TooLarge),
    body_bytes=SUBMISSION_BYTES,
)
async def send_run_message(
    call: Call,
    id: str,
    body: RunMessage,
    idempotency_key: Annotated[RunKey | None, Header("Idempotency-Key")] = None,
) -> RunView:
    """Say something further to the agent of a run, for its next turn. With a key, what is sent again is said once.

    409 where its agent has not begun yet, or takes nothing any more. One that ends before it comes to a message has not heard it:
    its events then say so."""
    return await _told(call, id, "message", body.message, idempotency_key)


@routes.post("/v1/runs/{id}/pause", access=needs("operate"), errors=(NotFound, Conflict, RateLimited))
async def pause_run(call: Call, id: str) -> RunView:
    """Have the agent of a run stop where it is, with all that it started, until the run is resumed. 409 where none is at work."""
    return await _told(call, id, "pause")


@routes.post("/v1/runs/{id}/resume", access=needs("operate"), errors=(NotFound, Conflict, RateLimited))
async def resume_run(call: Call, id: str, body: RunResume = RunResume()) -> RunView:  # noqa: B008 - it is frozen
    """Have a run go on: a paused one, a suspended one before its time, or a failed one, as a further attempt of what was submitted. The
    secrets of a failed one went with its end, so they are sent again."""
    from legation.runs import lists
    from legation.runs.states import RunState

    services = call.services
    facts = await services.database.read(lists.read_run, call.principal.workspace, id)
    if facts.run.state in (RunState.PAUSED, RunState.SUSPENDED):
        return await _told(call, id, "resume")
    await limit_caller(call, "run-changes", RUN_CHANGES)
    try:
        await services.runs.resume(call.principal, facts.run, body.secrets)
    except LegationError as error:
        await services.runs.refuse(call.principal, [error])
        raise
    return await _shown(call, id)


_AT_WORK: Final = frozenset(("running", "waiting", "paused", "suspended"))
_AUDITED: Final[dict[str, Change]] = {
    "message": "run.messaged",
    "pause": "run.paused",
    "resume": "run.resumed",
}


async def _told(
    call: Call,
    run_id: str,
    kind: Literal["message", "pause", "resume"],
    message: str | None = None,
    key: str | None = None,
) -> RunView:
    """Tell the runner of a run something, and have a worker look at the run."""
    from legation.runner.receiver import find_runner
    from legation.runs.lists import read_run
    from legation.runs.run import TOPIC, wake
    from legation.server.routes.runners import commands_of
    from legation.store.audit import record

    services, by = call.services, call.principal
    run = (await services.database.read(read_run, by.workspace, run_id)).run
    await limit_caller(call, "run-changes", RUN_CHANGES)
    try:
        if run.is_unwanted or run.state not in _AT_WORK:
            why = (
                "it is being cancelled" if run.is_unwanted and run.ended_at is None else f"it is {run.state}"
            )
            raise Conflict(f"cannot {kind} the run: {why}; that takes one whose agent is at work")
        runner = await services.database.read(find_runner, run.attempt_id)
        if runner is None or runner.ended_at is not None:
            raise Conflict(f"cannot {kind} the run: its agent has just ended; look at its state again")

        def also() -> Transaction[None]:
            yield from record(by, _AUDITED[kind], run_id, {}, services.clock.now_ms())

        given = None if key is None else f"{kind}:{hashlib.sha256(key.encode()).hexdigest()}"
        await commands_of(call).put(runner, kind, prompt=message, key=given, also=also)
    except LegationError as error:
        await services.runs.refuse(by, [error])
        raise
    if await services.database.transact(wake, by.workspace, run_id, now_ms=services.clock.now_ms()):
        services.database.notify(TOPIC)
    return await _shown(call, run_id)


async def _shown(call: Call, run_id: str) -> RunView:
    from legation.runs.lists import notice_of, read_run, subject_of, view_of_run
    from legation.runs.states import TERMINAL

    services, now = call.services, call.services.clock.now_ms()
    facts = await services.database.read(read_run, call.principal.workspace, run_id)
    subject = await subject_of(services.content, call.principal.workspace, run_id)
    return view_of_run(
        facts.run,
        now_ms=now,
        heard=facts.heard_at is not None,
        liveness=await services.run_events.liveness(facts.run, now),
        notice=None if facts.run.state in TERMINAL else notice_of(facts.worker_seen_at, now_ms=now),
        title=None if subject is None else subject.title,
        waits_on=facts.waits_on,
    )


# Events.


@routes.get("/v1/runs/{id}/events", access=needs("read"), errors=(NotFound, Conflict))
async def list_run_events(
    call: Call,
    id: str,
    after: Position = 0,
    limit: EventLimit = 500,
    content: bool = True,
) -> Page[RunEventView]:
    """The events of a run above a number, over all its attempts.

    Without `content` their metadata alone, and nothing is opened. `next` is null when the head is reached; a page may hold fewer than asked
    for before that."""
    workspace, store = call.principal.workspace, call.services.run_events
    source = await call.services.hub.source(_run_name(id), workspace)
    check_position(source, after)
    rows = await store.metadata(workspace, id, after, limit)
    payloads: dict[int, msgspec.Raw] = {}
    if content and rows:
        events = await store.read(workspace, id, after, wanted=len(rows))
        payloads = {event.seq: msgspec.Raw(event.raw) for event in events}
        rows = [row for row in rows if row["seq"] in payloads]
    items = [
        RunEventView(
            seq=row["seq"],
            attempt=row["attempt"],
            type=row["type"],
            at=row["at"],
            bytes=row["bytes"],
            payload=payloads.get(row["seq"], _NONE),
        )
        for row in rows
    ]
    more = bool(items) and items[-1].seq < source.head
    return Page(items=items, next=str(items[-1].seq) if more else None)


@routes.get("/v1/runs/{id}/events/sse", access=needs("read"), errors=(NotFound, Conflict), media=MEDIA)
async def follow_run_events(
    call: Call, id: str, after: Position = 0, last_event_id: LastEventId = None
) -> Response:
    """Every event of a run above a number, then those to come, from any server, until the run has ended.

    The frames are those of every stream: docs/streams.md has them."""
    if last_event_id:
        after = read_position(last_event_id, "Last-Event-ID")
    workspace, name = call.principal.workspace, _run_name(id)
    # What cannot be read is told here: in the middle of a stream it would be one that ends, and is asked for again and again.
    await call.services.run_events.read(workspace, name, after, 1, whole=False, wanted=1)
    reader = await call.services.hub.reader(name, workspace, after, credential_of(call))
    return EventStream(reader)


@routes.get("/v1/runs/{id}/changes", access=needs("read"), errors=(NotFound,))
async def read_run_changes(call: Call, id: str) -> RunChanges:
    """The files that the newest attempt of a run changed, and the patch of it, as its runner reported it when that ended."""
    from legation.runs.lists import read_run

    facts = await call.services.database.read(read_run, call.principal.workspace, id)
    found = await call.services.run_events.changes(facts.run)
    if found is None:
        return RunChanges()
    files = tuple(RunFile(**msgspec.structs.asdict(each)) for each in found.files)
    return RunChanges(attempt=facts.run.attempt, files=files, patch=found.patch, incomplete=found.incomplete)


def _run_name(id: str) -> str:
    if not id.startswith("run_"):
        from legation.runs.lists import absent

        raise absent()
    return id


# Templates.


@templates_routes.post(
    "/v1/templates",
    access=needs("operate"),
    errors=(RateLimited, TooLarge),
    body_bytes=SUBMISSION_BYTES,
)
async def keep_template(call: Call, body: NewTemplate) -> TemplateView:
    """Keep a template of runs. It holds no secret, never changes, and is known by its hash: the same again is the same one."""
    from legation.runs.submit import check_names
    from legation.runs.templates import add_template

    await limit_caller(call, "run-changes", RUN_CHANGES)
    check_names(body.run)
    services = call.services
    return await services.database.transact(
        add_template, services.content, call.principal, body, now_ms=services.clock.now_ms()
    )


@templates_routes.get("/v1/templates", access=needs("read"))
async def list_templates(call: Call, limit: PageLimit = 100, after: str = "") -> Page[TemplateView]:
    """The templates of the workspace, the oldest first."""
    from legation.runs.templates import page_templates

    return await call.services.database.read(page_templates, call.principal.workspace, limit, after)


@templates_routes.get("/v1/templates/{id}", access=needs("read"), errors=(NotFound,))
async def read_template(call: Call, id: str) -> TemplateView:
    """One template, by its id or its hash, with what it says."""
    from legation.runs.templates import find_template, view_of_template

    services = call.services
    found = await find_template(services.database, services.content, call.principal.workspace, id)
    return view_of_template(found)

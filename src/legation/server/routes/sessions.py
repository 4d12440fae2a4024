"""`/v1/sessions`: conversations with agents, as sandbox-agent 0.1 has them, and more. See docs/sessions.md.

Their events are of `event_routes`: pages, a live body, and the body of one turn. See docs/session-events.md.
"""

# ruff: noqa: A002 - an id is spelt as in the path

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from msgspec import Meta, Raw
from msgspec.json import encode
from starlette.responses import Response

from legation.errors import (
    AgentError,
    AlreadyAnswered,
    CapabilityUnsupported,
    Conflict,
    Forbidden,
    NotFound,
    PromptInFlight,
    RateLimited,
    SessionClosed,
    StorageFailed,
    TimedOut,
    Unavailable,
)
from legation.server.http.routes import Alias, Call, Routes, needs
from legation.server.routes.streams import MEDIA, Generation, LastEventId, Position, credential_of
from legation.server.sessions.messages import MOST_QUEUED_SIZE
from legation.server.sessions.record import CURSOR, SessionRecord
from legation.server.streaming.hub import LiveStreamReader
from legation.server.streaming.multiplex import read_position
from legation.server.streaming.sse import EventStream
from legation.store.codec import LOCAL
from legation.wire.api.sessions import (
    EventPage,
    NewMessage,
    NewSession,
    PermissionAnswer,
    QuestionAnswers,
    RecordingList,
    SessionChange,
    SessionCreated,
    SessionInfo,
    SessionList,
    SessionSnapshot,
    Words,
)
from legation.wire.universal.shapes import Schema

if TYPE_CHECKING:
    from legation.server.streaming.projection import ProjectedSource

PAGE: Final = 200  # sessions that are read at once
LOOKED_THROUGH: Final = 2000  # sessions, for one page of a search
SessionState = Literal["waiting", "working", "wrong", "idle", "ended"]
Search = Annotated[str | None, Meta(max_length=200)]
Limit = Annotated[int | None, Meta(ge=1, le=500)]
Cursor = Annotated[str | None, Meta(pattern=CURSOR)]
EventLimit = Annotated[int | None, Meta(ge=1, le=10**18 - 1)]
IncludeRaw = Annotated[bool, Alias("include_raw")]

Newest = Annotated[int, Meta(ge=1, le=500)]

STARTING = (AgentError, CapabilityUnsupported, RateLimited, TimedOut, Unavailable, StorageFailed)

routes = Routes(tag="sessions")
event_routes = Routes(tag="session events")


@routes.get("/v1/sessions", access=needs("read"))
async def list_sessions(
    call: Call,
    limit: Limit = None,
    cursor: Cursor = None,
    *,
    search: Search = None,
    agent: Search = None,
    state: SessionState | None = None,
    since: int | None = None,
) -> SessionList:
    """Every session of the workspace, ended or not, the newest first; with a `limit`, as many of them.

    `next` is the `cursor` of the page behind, and null at the end; without `limit` and `cursor` it is left out, as in
    sandbox-agent. A session that is there all the time is on one page, once. Where servers share a database, those of all
    of them are listed; one whose server does not answer has the status `away`, and of its details only the agent.

    `search`: words that are all in its title, id or folder; `agent`: which; `state`: how it is; `since`: changed at that time, in ms, or
    later. At most 2,000 are looked through at once: a page may be short, or empty, and still have a `next`, from which to look on."""
    wanted = _Wanted(tuple((search or "").lower().split()), agent, state, since)
    if wanted != _Wanted():
        sessions, behind = await _search(call, wanted, limit or PAGE, cursor)
        return SessionList(sessions=sessions, next=behind)
    sessions, behind = await _page(call, limit, cursor)
    if limit is None and cursor is None:
        return SessionList(sessions=sessions)
    return SessionList(sessions=sessions, next=behind)


async def _page(call: Call, limit: int | None, cursor: str | None) -> tuple[list[SessionInfo], str | None]:
    forwarder = call.services.forwarder
    if forwarder is None or forwarder.is_here(call):
        return await call.services.sessions.records.page(call.principal.workspace, limit, cursor)
    return await forwarder.sessions(call, limit, cursor)


class _Wanted(NamedTuple):
    """Filters of a list; what is not given is not asked for."""

    words: tuple[str, ...] = ()
    agent: str | None = None
    state: SessionState | None = None
    since: int | None = None

    def fits(self, info: SessionInfo) -> bool:
        text = f"{info.title or ''} {info.session_id} {info.directory or ''}".lower()
        return (
            all(word in text for word in self.words)
            and self.agent in (None, info.agent)
            and self.state in (None, _state(info))
            and (self.since is None or info.updated_at >= self.since)
        )


def _state(info: SessionInfo) -> SessionState:
    """Tell the one word that a list has for it: what somebody has to know first."""
    if info.pending_permissions or info.pending_questions:
        return "waiting"
    if info.status == "closed":
        return "ended"
    if info.failed is not None or info.cut is not None:
        return "wrong"
    return "working" if info.busy else "idle"


async def _search(
    call: Call, wanted: _Wanted, limit: int, cursor: str | None
) -> tuple[list[SessionInfo], str | None]:
    """Look through one page after the other, up to a bound: what is rare costs no more than that, however long the record is."""
    found: list[SessionInfo] = []
    for _ in range(LOOKED_THROUGH // PAGE):
        sessions, behind = await _page(call, PAGE, cursor)
        for info in sessions:
            if not wanted.fits(info):
                continue
            if len(found) == limit:
                return found, cursor
            found.append(info)
            cursor = f"{info.created_at}.{info.session_id}"
        if behind is None:
            return found, None
        cursor = behind
    return found, cursor


@routes.get("/v1/recordings", access=needs("read"))
async def list_recordings(call: Call, limit: Newest = 100) -> RecordingList:
    """Sessions that `legation exec` ran by itself on this machine, the newest first: to be read with `legation events`, and
    changed by nobody. They are the machine's owner's: other workspaces have none."""
    from legation.server.sessions.recordings import read_recordings

    if call.principal.workspace != LOCAL:
        return RecordingList(recordings=[])
    data_dir = call.services.settings.data_dir
    return RecordingList(recordings=await asyncio.to_thread(read_recordings, data_dir, limit))


@routes.post(
    "/v1/sessions/{id}",
    access=needs("operate", may_decide=True),
    errors=(Conflict, NotFound, *STARTING),
    also={200: SessionCreated},
)
async def create_session(call: Call, id: str, body: NewSession) -> Response:
    """Start a session under an id of the caller's choice; the agent runs when this answers.

    An agent that is locked and missing is installed first, which may take minutes. The permission modes `acceptEdits`
    and `bypass` are grants for this session: they take a person who may approve, and lift no `deny`."""
    if (forwarder := call.services.forwarder) is not None and not forwarder.is_here(call):
        # One that goes on from another is made where that one is.
        peer = await forwarder.holder(call.principal.workspace, body.fork or body.continues)
        if peer is not None:
            return await forwarder.pass_on(call, peer, encode(body))
    record = await call.services.sessions.create(call.principal, id, body)
    made = SessionCreated(healthy=True, native_session_id=record.meta.agent_session_id or None)
    return Response(encode(made), media_type="application/json")


@routes.get("/v1/sessions/{id}", access=needs("read"), errors=(NotFound,))
async def read_session(call: Call, id: str) -> SessionInfo:
    """One session: how it is set, whether a turn runs, how its agent ended if it did."""
    return (await _record(call, id)).info()


@routes.patch(
    "/v1/sessions/{id}",
    access=needs("operate", may_decide=True),
    errors=(NotFound, Conflict, SessionClosed, *STARTING),
)
async def change_session(call: Call, id: str, body: SessionChange) -> SessionInfo:
    """Change the mode, the model, the variant, the permission mode or the title, also while a turn runs."""
    return await call.services.sessions.change(call.principal, await _record(call, id), body)


@routes.post(
    "/v1/sessions/{id}/messages",
    access=needs("operate"),
    errors=(NotFound, Conflict, SessionClosed, RateLimited, StorageFailed),
    body_bytes=MOST_QUEUED_SIZE,
)
async def send_message(call: Call, id: str, body: NewMessage) -> None:
    """Say something to the agent. Answers when the message is accepted; the events say what becomes of it.

    While a turn runs it waits, and messages are taken in their order. Without a running agent one is started and goes
    on where the session was. A second message with a `messageId` that waits or is played is a conflict."""
    await call.services.sessions.send(await _record(call, id), body)


@routes.post(
    "/v1/sessions/{id}/steer",
    access=needs("operate"),
    errors=(NotFound, Conflict, SessionClosed, CapabilityUnsupported),
    body_bytes=MOST_QUEUED_SIZE,
)
async def steer_turn(call: Call, id: str, body: Words) -> None:
    """Say something to the turn that runs, without ending it. Answers when the agent has it.

    Without a turn it is a conflict. Few agents take something in meanwhile (Claude Code and Codex do); others get messages in turn."""
    await call.services.sessions.steer(await _record(call, id), body)


@routes.post("/v1/sessions/{id}/cancel", access=needs("operate"), errors=(NotFound, SessionClosed))
async def cancel_turn(call: Call, id: str) -> None:
    """End the running turn, not the session. Without one nothing happens; messages that wait are taken next."""
    await call.services.sessions.messages.cancel(await _record(call, id))


@routes.post("/v1/sessions/{id}/terminate", access=needs("operate"), errors=(NotFound, StorageFailed))
async def terminate_session(call: Call, id: str) -> None:
    """End the session for good, with every process of its agent. Its events stay. Twice is as once."""
    await call.services.sessions.close(call.principal, await _record(call, id), reopens=False)


@routes.delete("/v1/sessions/{id}", access=needs("operate"), errors=(NotFound, PromptInFlight, StorageFailed))
async def delete_session(call: Call, id: str) -> None:
    """Delete the session for good, with every process of its agent and all that was recorded in it, every generation.

    A conflict while a turn runs: cancel it, or terminate the session. Its own folder goes with it, unless another session
    works there; what was approved in it stays on the trace. The id is never used again."""
    await call.services.sessions.delete(call.principal, id)


@routes.post(
    "/v1/sessions/{id}/permissions/{permission}/reply",
    access=needs("approve"),
    errors=(NotFound, Conflict, AlreadyAnswered, Forbidden),
)
async def reply_permission(call: Call, id: str, permission: str, body: PermissionAnswer) -> None:
    """Answer a permission that the agent waits for: `once`, `always` or `reject`. The first answer stands.

    `always` is also a grant for the same tool in this session, which takes a person; what waits there already passes by it."""
    approvals = call.services.sessions.approvals
    await approvals.reply(call.principal, await _record(call, id), permission, body.reply)


@routes.post(
    "/v1/sessions/{id}/questions/{question}/reply",
    access=needs("operate", may_decide=True),
    errors=(NotFound, Conflict, AlreadyAnswered, Forbidden),
)
async def reply_question(call: Call, id: str, question: str, body: QuestionAnswers) -> None:
    """Answer a question of the agent: one list of texts for each field of its form, in their order.

    Whether a plan is good is a permission too: its question has the permission's id, takes `Approve` or `Reject`, and the scope
    `approve`."""
    approvals = call.services.sessions.approvals
    await approvals.answer(call.principal, await _record(call, id), question, body.answers)


@routes.post(
    "/v1/sessions/{id}/questions/{question}/reject",
    access=needs("operate", may_decide=True),
    errors=(NotFound, Conflict, AlreadyAnswered, Forbidden),
)
async def reject_question(call: Call, id: str, question: str) -> None:
    """Decline to answer a question of the agent."""
    approvals = call.services.sessions.approvals
    await approvals.answer(call.principal, await _record(call, id), question, None)


async def _record(call: Call, session_id: str) -> SessionRecord:
    return await call.services.sessions.records.get(call.principal.workspace, session_id)


@event_routes.get(
    "/v1/sessions/{id}/events", access=needs("read"), errors=(NotFound, StorageFailed), also={200: EventPage}
)
async def read_session_events(
    call: Call,
    id: str,
    offset: Position = 0,
    limit: EventLimit = None,
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
    generation: Generation = None,
) -> Response:
    """The events above a number, which is the last one seen. Without a limit: all of them.

    `hasMore` says that the limit cut something off. `generation` is 1 for what was recorded before the first load, and so
    on, or `all`; without it, the newest."""
    from legation.server.streaming.projection import page

    source = await _projected(call, id, schema, include_raw=include_raw, generation=generation)
    return await page(source.projection, offset, limit)


@event_routes.get(
    "/v1/sessions/{id}/events/sse", access=needs("read"), errors=(NotFound, Conflict), media=MEDIA
)
async def follow_session_events(
    call: Call,
    id: str,
    offset: Position = 0,
    limit: EventLimit = None,  # noqa: ARG001 - clients of sandbox-agent have one query for pages and for this
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
    generation: Generation = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Every event above a number, then those to come, as server-sent events.

    A `Last-Event-ID`, which browsers send when they connect again, wins over `offset`. A `limit` is taken and does not
    count: there is no end to cut off. The body of one `generation` ends with it."""
    from legation.server.streaming.projection import frames

    source = await _projected(call, id, schema, include_raw=include_raw, generation=generation)
    after = read_position(last_event_id, "Last-Event-ID") if last_event_id else offset
    await source.check_position(after)
    return EventStream(LiveStreamReader(call.services.hub, source, after, credential_of(call), frames))


@event_routes.get("/v1/sessions/{id}/snapshot", access=needs("read"), errors=(NotFound, StorageFailed))
async def read_session_snapshot(call: Call, id: str, *, schema: Schema = "sandbox-agent") -> SessionSnapshot:
    """What was said in the session, summed up: messages, tool calls, plan, mode, options, usage, title.

    It is at most 256 KB; `truncated` in it names what does not say all. It stands for the event `seq` of the session's
    stream, and for `offset` of its events in the schema: who goes on from there misses nothing and hears nothing twice."""
    source = await _projected(call, id, schema, include_raw=False)
    seq, offset, text = await source.projection.snapshot()
    return SessionSnapshot(seq=seq, offset=offset, snapshot=Raw(text))


@event_routes.post(
    "/v1/sessions/{id}/messages/stream",
    access=needs("operate"),
    errors=(NotFound, Conflict, SessionClosed, StorageFailed),
    media=MEDIA,
    body_bytes=MOST_QUEUED_SIZE,
)
async def stream_turn(
    call: Call,
    id: str,
    body: NewMessage,
    *,
    include_raw: IncludeRaw = False,
    schema: Schema = "sandbox-agent",
) -> Response:
    """Send a message and follow its turn, as server-sent events.

    The body ends with the turn, with the session, or at the first permission or question that waits for an answer."""
    from legation.server.streaming.projection import TurnCursor, TurnReader

    source = await _projected(call, id, schema, include_raw=include_raw)
    shown = TurnCursor(source, await source.end())
    judged = shown
    if schema != "sandbox-agent":
        judge = await _projected(call, id, "sandbox-agent", include_raw=False)
        judged = TurnCursor(judge, await judge.end())
    record = await _record(call, id)
    boundary = source.log_head
    begins = await call.services.sessions.send(record, body)
    credential = credential_of(call, "operate")
    return EventStream(TurnReader(call.services.hub, shown, judged, boundary, begins, credential))


async def _projected(
    call: Call, session_id: str, schema: Schema, *, include_raw: bool, generation: str | None = None
) -> ProjectedSource:
    from legation.server.streaming.projection import project

    services, workspace = call.services, call.principal.workspace
    facts = (await _record(call, session_id)).facts()
    return await project(
        services.hub,
        services.log,
        workspace,
        facts,
        schema,
        include_raw=include_raw,
        generation=generation,
    )

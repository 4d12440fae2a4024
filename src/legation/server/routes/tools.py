"""Tool calls of agents through the door: `POST /tool/{name}`, and what would become of one, `POST /decide`.

INV-1  Nothing of a call is counted, recorded or run before its body, its agent and its tool are known to be good.
INV-2  A caller that leaves takes its question along: nobody's later answer starts anything. With an `Idempotency-Key` it
       leaves the call behind, which goes on, and finds it again by the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta

from legation.approvals.calls import CallKey
from legation.approvals.door import STOPPING
from legation.approvals.policy.facts import Facts, as_named, real_path
from legation.approvals.policy.rules import off_loop
from legation.approvals.request import DoorRequest, DoorResult, remote_facts
from legation.approvals.trace.entries import steps_of
from legation.approvals.trace.step import StepKind, must_be_name
from legation.errors import Cancelled, Conflict, NotFound, RateLimited, Unavailable
from legation.gateway.tools import (
    ToolFailed,
    ToolTimedOut,
    Unanswered,
    action_for,
    agent_of,
    facts_of,
    failed,
    refused,
)
from legation.server.http.request import invalid, until_disconnected
from legation.server.http.routes import Call, Header, Routes, needs
from legation.server.routes.rates import limit_caller
from legation.store.counters import Limit
from legation.wire.acp.updates import TOOL_KINDS
from legation.wire.api.approvals import Considered, DecideBody, ToolCallBody, ToolReturned
from legation.wire.resolved import ResolvedPaths

DECISIONS: Final = Limit(1200, 60)  # each may look up as many paths as a call can name

routes = Routes(tag="tools")

IdempotencyKey = Annotated[str, Meta(pattern="^[!-~]{1,255}$")]
SessionId = Annotated[str, Meta(min_length=1, max_length=256)]
T = TypeVar("T")


@routes.post(
    "/tool/{name}",
    access=needs("call"),
    errors=(NotFound, Conflict, Unanswered, ToolFailed, ToolTimedOut, Unavailable),
)
async def call_tool(
    call: Call,
    name: str,
    body: ToolCallBody,
    x_session_id: Annotated[SessionId | None, Header("X-Session-Id")] = None,
    x_trace_id: Annotated[str | None, Header("X-Trace-Id")] = None,
    idempotency_key: Annotated[IdempotencyKey | None, Header("Idempotency-Key")] = None,
) -> ToolReturned:
    """Call a tool, once it is allowed, and answer with its result.

    Where a supervisor or a person is asked first, the answer comes when they have decided: that may take as long as
    the approval lives. Closing the connection takes the question back, unless the call has an `Idempotency-Key`: then
    it goes on, also at another server, is run once, and whoever sends it again with the key gets its result. 403: denied, and `detail` is for the agent;
    408: nobody answered in time; 409: taken back or overtaken, ask again; 429: a limit; 502 and 504: it was allowed,
    and the tool failed. A `Traceparent` header (W3C) gives the trace its id, unless that names another call already;
    `X-Trace-Id` does so or the call is refused with 409."""
    services, workspace = call.services, call.principal.workspace
    agent = agent_of(call.principal, body.agent)
    session = _session(body.session_id, x_session_id)
    tool = services.toolbox.find(name)
    facts = facts_of(tool)
    action = action_for(agent, tool.name, tool.kind, body.params, facts)
    parents = call.request.headers.getlist("traceparent")
    parent = parents[0] if len(parents) == 1 else None  # of several, the standard takes none

    async def new() -> DoorRequest:
        taken = await services.toolbox.trace_ids.take(services.database, workspace, x_trace_id, parent)
        return DoorRequest(
            principal=call.principal,
            action=action,
            facts=facts,
            trace_id=taken,
            session_id=session,
            editable=True,  # it is we who act
        )

    if idempotency_key is None:
        running = services.door.run(await new(), tool.call)
    else:
        key = CallKey.of(call.principal, idempotency_key, action)
        running = services.calls.run(key, new, tool.call)
    ruling, returned = await while_connected(call, running)
    if returned is None:
        raise refused(ruling, await _why_cancelled(call, ruling))
    if returned.error is not None:
        raise failed(ruling, returned)
    return ToolReturned(
        result=returned.result,
        trace_id=ruling.trace_id,
        approval_id=ruling.approval_id,
        policy_rule=ruling.rule,
        decided_by=ruling.by,
    )


@routes.post("/decide", access=needs("call"), errors=(RateLimited,))
async def decide(call: Call, body: DecideBody) -> Considered:
    """What would happen to a call now: nothing is run, counted or recorded.

    The tool may be one that Legation does not call itself; of one that it does, kind and folder are known."""
    agent = agent_of(call.principal, body.agent)
    await limit_caller(call, "decide", DECISIONS)
    return await call.services.door.preview(await question_of(call, body, agent))


async def question_of(call: Call, body: DecideBody, agent: str) -> DoorRequest:
    """Read what is asked about, without deciding it. The folder is the one that its path leads to."""
    session = _session(body.session_id, None)
    known = call.services.toolbox.get(body.tool)
    _check_kind(body)
    if body.resolved is not None:
        if known is not None:
            raise invalid("$.resolved", "left out for a tool that Legation calls itself: it acts here")
        return remote_question(call, body, agent)
    folder = None
    if body.cwd is not None:
        folder = await off_loop(real_path, body.cwd) if body.cwd.startswith("/") else None
        if folder is None:
            raise invalid("$.cwd", "an absolute path, to a folder that can be found")
    facts = facts_of(known, folder).once()
    kind = body.kind or (known.kind if known else "other")
    tool = must_be_name(body.tool, "a tool's name")
    action = action_for(agent, tool, kind, body.params, facts)
    return DoorRequest(principal=call.principal, action=action, facts=facts, session_id=session)


def remote_question(call: Call, body: DecideBody, agent: str) -> DoorRequest:
    """Read what is asked about for an agent that may be on another machine: nothing of it is looked up here. Without
    `resolved` the folder is taken as it is named, and where anything leads is unknown."""
    _check_kind(body)
    told = body.resolved or ResolvedPaths(cwd=body.cwd)
    if body.resolved is not None and body.cwd is not None:
        raise invalid("$.cwd", "left out where `resolved` says where the agent works")
    where = Facts(told.workspace, told.cwd, told.home, as_named)
    tool, kind = must_be_name(body.tool, "a tool's name"), body.kind or "other"
    action = action_for(agent, tool, kind, body.params, where)
    facts = remote_facts(call.principal, action, body.resolved)
    session = _session(body.session_id, None)
    return DoorRequest(principal=call.principal, action=action, facts=facts, session_id=session)


def _check_kind(body: DecideBody) -> None:
    if body.kind is not None and body.kind not in TOOL_KINDS:
        raise invalid("$.kind", f"one of {', '.join(TOOL_KINDS)}")


async def while_connected(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it when its caller leaves, which the server does not do by itself."""
    task, gone = asyncio.create_task(work), asyncio.create_task(until_disconnected(call.request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("cannot go on: the caller closed the connection")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _why_cancelled(call: Call, ruling: DoorResult) -> str | None:
    # The door's word on it is in the trace.
    if ruling.outcome != "cancelled":
        return None
    if ruling.reason == STOPPING:
        return "stopping"
    steps = await call.services.database.read(steps_of, call.principal.workspace, ruling.trace_id)
    return next((step.reason for step in reversed(steps) if step.step == StepKind.CANCELLED), None)


def _session(in_body: str | None, in_header: str | None) -> str | None:
    if in_body is not None and in_header is not None and in_body != in_header:
        raise invalid("header.X-Session-Id", "the `session_id` of the body, or one of the two left out")
    session = in_body or in_header
    return None if session is None else must_be_name(session, "a session's id")

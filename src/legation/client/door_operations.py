"""Operations that ask the door: a tool's call, what would be decided, the policy in force, and what was traced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from legation.client.operation import AsJson, Operation, get, get_linked, nothing, query_of, sending
from legation.client.target import segment
from legation.client.timeouts import LONG_READ, TOOL_READ
from legation.errors import InvalidParams
from legation.wire.api.approvals import (
    ChainHead,
    ChainReport,
    Considered,
    DecideBody,
    Explained,
    PolicyInfo,
    Replay,
    ReplayBody,
    RuleHits,
    ToolCallBody,
    ToolReturned,
    TraceDetail,
    TraceEntry,
)
from legation.wire.api.shape import Page


def call_tool(
    name: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    timeout: float | None = None,
) -> Operation[ToolReturned]:
    """Runs the tool, once it is allowed: that may take as long as a person takes to answer.

    A refusal is an error: `Forbidden` with the message for the agent, `TimedOut` where nobody answered in time,
    `RateLimited` where a limit stopped it. After `timeout` seconds the caller goes away, which cancels what waits;
    whether a tool that had begun has done its work is then unknown. Never repeated."""
    body = ToolCallBody(params=_arguments(params), agent=agent, session_id=session_id)
    operation = sending("POST", f"/tool/{segment(name)}", body, ToolReturned)
    return replace(operation, wait=_seconds(timeout))


def decide(
    tool: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    kind: str | None = None,
    cwd: str | None = None,
) -> Operation[Considered]:
    """What would happen to the call now. Nothing is run, counted or recorded."""
    return sending("POST", "/decide", _question(tool, params, agent, session_id, kind, cwd), Considered)


def policy_info() -> Operation[PolicyInfo]:
    """What is in force, and why the newest edit is not, where it is not."""
    return get("/v1/policy", PolicyInfo)


def explain(
    tool: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    kind: str | None = None,
    cwd: str | None = None,
) -> Operation[Explained]:
    """As `decide`, and why, rule by rule."""
    body = _question(tool, params, agent, session_id, kind, cwd)
    return sending("POST", "/v1/policy/explain", body, Explained)


def replay(
    policy: str,
    *,
    since: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
    limit: int | None = None,
) -> Operation[Replay]:
    """What a changed policy, given as YAML, would have decided on the recorded calls. `since`: a time, or `24h`."""
    body = ReplayBody(policy=policy, since=since, agent=agent, tool=tool)
    if limit is not None:
        body = ReplayBody(policy=policy, since=since, agent=agent, tool=tool, limit=limit)
    return replace(sending("POST", "/v1/policy/replay", body, Replay), wait=LONG_READ)


def rule_hits(*, since: str | None = None) -> Operation[list[RuleHits]]:
    """How often each rule decided."""
    return get("/v1/policy/hits", list[RuleHits], {"since": since})


def list_traces(
    *,
    agent: str | None = None,
    tool: str | None = None,
    session: str | None = None,
    since: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> Operation[Page[TraceEntry]]:
    """Calls and what became of them, the newest first."""
    query = {"agent": agent, "tool": tool, "session": session, "since": since, "after": after, "limit": limit}
    return get_linked("/traces", TraceEntry, query)


def read_trace(trace: str) -> Operation[TraceDetail]:
    """One call with every step of it."""
    return get(f"/traces/{segment(trace)}", TraceDetail)


def verify_traces(heads: Iterable[ChainHead] = ()) -> Operation[list[ChainReport]]:
    """Whether every chain of the workspace is as it was written.

    `heads` are those that an earlier answer named: only they show that no end was cut off since."""
    known = tuple(("head", f"{head.server}:{head.seq}:{head.hash}") for head in heads)
    return Operation("GET", "/v1/trace/verify", AsJson(list[ChainReport]), known, wait=LONG_READ)


def export_traces(server: str | None = None, *, after: int | None = None) -> Operation[None]:
    """Every step, each as one line of JSON: of all chains, or of a server's above the number `after`."""
    query = query_of({"server": server, "after": after})
    return Operation("GET", "/v1/trace/export", nothing, query, wait=LONG_READ)


def _question(
    tool: str,
    params: Mapping[str, object],
    agent: str | None,
    session_id: str | None,
    kind: str | None,
    cwd: str | None,
) -> DecideBody:
    return DecideBody(
        tool=tool, params=_arguments(params), agent=agent, session_id=session_id, kind=kind, cwd=cwd
    )


def _arguments(params: Mapping[str, object]) -> dict[str, object]:
    """As they are, or not at all: msgspec would send NaN as null, and somebody would approve that."""
    import json

    try:
        json.dumps(given := dict(params), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParams(
            "cannot send the arguments: give a mapping of values that JSON can hold as they are"
        ) from None
    return given


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return TOOL_READ
    if timeout <= 0:
        raise InvalidParams("cannot wait for a tool for no time at all: give `timeout` in seconds, above 0")
    return timeout

"""Every operation of the HTTP API that the client offers, each written once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from legation.client.decode import read_page
from legation.client.request import (
    ASK_AGENT_READ,
    INSTALL_READ,
    LONG_READ,
    TOOL_READ,
    ApiRequest,
    AsJson,
    BodyFilter,
    FileDownload,
    Unchanged,
    encoded,
    get,
    get_linked,
    nothing,
    of_body,
    query_of,
    segment,
    sending,
)
from legation.errors import InvalidParams
from legation.wire.api.agents import (
    AgentInfo,
    AgentInstall,
    AgentInstalled,
    AgentList,
    ModeInfo,
    ModeList,
    ModelList,
)
from legation.wire.api.approvals import (
    ApprovalDetail,
    ApprovalStatus,
    ApprovalView,
    Approve,
    AskBody,
    AskUse,
    AskView,
    ChainHead,
    ChainReport,
    ClaimBody,
    Considered,
    DecideBody,
    Escalation,
    Explained,
    GrantView,
    GroupAnswered,
    NewGrant,
    PolicyInfo,
    Replay,
    ReplayBody,
    Resolution,
    RuleHits,
    ToolCallBody,
    ToolReturned,
    TraceDetail,
    TraceEntry,
)
from legation.wire.api.identity import (
    AuditEntry,
    Me,
    Member,
    NewRole,
    NewSignInLink,
    NewToken,
    NewTrust,
    NewUser,
    NewWorkspace,
    SignInLink,
    Token,
    TokenCreated,
    TokenKind,
    TrustView,
    User,
    UserChange,
    Workspace,
)
from legation.wire.api.server import (
    Health,
    KeysRotated,
    Prune,
    PruneKind,
    Readiness,
    ServerInfo,
    Sizes,
    Stopping,
)
from legation.wire.api.shape import Page
from legation.wire.api.streams import StreamSummary
from legation.wire.events import Event
from legation.wire.principal import Role, Scope
from legation.wire.resolved import ResolvedPaths

if TYPE_CHECKING:
    from legation.wire.api.inbox import Inbox
    from legation.wire.api.sessions import Recording


def health() -> ApiRequest[Health]:
    """Whether the server answers at all; needs no right."""
    return get("/v1/health", Health)


def ready() -> ApiRequest[Readiness]:
    """Whether the server can do its work; if not, `Unavailable` with what fails in `data`."""
    return get("/v1/ready", Readiness)


def info() -> ApiRequest[ServerInfo]:
    """Read what the server is: version, mode, database."""
    return get("/v1/server", ServerInfo)


def stop(*, cancel_runs: bool = False) -> ApiRequest[Stopping]:
    """The server answers, then ends. With `cancel_runs` it ends only where no run is at work on its machine, and cancels those that are."""
    query = {"cancelRuns": "true"} if cancel_runs else {}
    return ApiRequest("POST", "/v1/stop", AsJson(Stopping), query_of(query))


def rotate_keys() -> ApiRequest[KeysRotated]:
    """Seals with a new vault key from now on, and wraps anew what is sealed."""
    return ApiRequest("POST", "/v1/keys/rotate", AsJson(KeysRotated))


def sizes() -> ApiRequest[Sizes]:
    """Read how large everything is that the server keeps, by kind, as of the last hour."""
    return get("/v1/sizes", Sizes)


def prune(
    older_than: str, *, kinds: Iterable[PruneKind] | None = None, dry_run: bool = False
) -> ApiRequest[None]:
    """Delete what is older (`90d`), in small steps: a line of JSON for each, as `PruneProgress` has it; `dry_run` only counts."""
    wanted = None if kinds is None else [*kinds]
    body = Prune(older_than=older_than, kinds=wanted, dry_run=dry_run)
    return ApiRequest("POST", "/v1/prune", nothing, body=encoded(body), wait=LONG_READ)


def me() -> ApiRequest[Me]:
    """Read who the token says you are."""
    return get("/v1/me", Me)


def list_streams(
    prefix: str | None = None, *, after: str | None = None, limit: int | None = None
) -> ApiRequest[Page[StreamSummary]]:
    """List them by name; those that start with `prefix`."""
    return get("/v1/streams", Page[StreamSummary], {"prefix": prefix, "after": after, "limit": limit})


def list_events(
    stream: str,
    after: int | str = 0,
    limit: int | None = None,
    *,
    generation: int | Literal["all"] | None = None,
) -> ApiRequest[Page[Event]]:
    """List what is recorded above the number `after`; `follow` also gives what comes. What was recorded before an agent told
    a session's history anew is an earlier `generation`, counted from 1."""
    query = query_of({"after": after, "limit": limit, "generation": generation})
    return ApiRequest("GET", f"/v1/streams/{segment(stream)}/events", of_body(read_page), query)


def list_tokens(after: str | None = None, limit: int | None = None) -> ApiRequest[Page[Token]]:
    return get("/v1/tokens", Page[Token], {"after": after, "limit": limit})


def create_token(
    label: str,
    *,
    kind: TokenKind = "user",
    scopes: Iterable[Scope] | None = None,
    expires_in_days: int | None = None,
) -> ApiRequest[TokenCreated]:
    """The answer's `secret` is shown this once."""
    wanted = None if scopes is None else [*scopes]
    body = NewToken(label=label, kind=kind, scopes=wanted, expires_in_days=expires_in_days)
    return sending("POST", "/v1/tokens", body, TokenCreated)


def revoke_token(token: str) -> ApiRequest[None]:
    """Revoke it by its id; it stops working at once."""
    return ApiRequest("DELETE", f"/v1/tokens/{segment(token)}", nothing)


def list_users(after: str | None = None, limit: int | None = None) -> ApiRequest[Page[User]]:
    return get("/v1/users", Page[User], {"after": after, "limit": limit})


def create_user(
    name: str, *, email: str | None = None, instance_admin: bool = False, role: Role | None = None
) -> ApiRequest[User]:
    body = NewUser(name=name, email=email, instance_admin=instance_admin, role=role)
    return sending("POST", "/v1/users", body, User)


def read_user(user: str) -> ApiRequest[User]:
    return get(f"/v1/users/{segment(user)}", User)


def change_user(
    user: str,
    *,
    name: str | None = None,
    disabled: bool | None = None,
    instance_admin: bool | None = None,
    sign_out: bool = False,
) -> ApiRequest[User]:
    """Change what is given, and nothing else."""
    body = UserChange(name=name, disabled=disabled, instance_admin=instance_admin, sign_out=sign_out)
    return sending("PATCH", f"/v1/users/{segment(user)}", body, User)


def list_workspaces(after: str | None = None, limit: int | None = None) -> ApiRequest[Page[Workspace]]:
    return get("/v1/workspaces", Page[Workspace], {"after": after, "limit": limit})


def create_workspace(name: str) -> ApiRequest[Workspace]:
    return sending("POST", "/v1/workspaces", NewWorkspace(name=name), Workspace)


def read_workspace(workspace: str) -> ApiRequest[Workspace]:
    return get(f"/v1/workspaces/{segment(workspace)}", Workspace)


def list_members(
    workspace: str, after: str | None = None, limit: int | None = None
) -> ApiRequest[Page[Member]]:
    return get(f"/v1/workspaces/{segment(workspace)}/members", Page[Member], {"after": after, "limit": limit})


def set_role(workspace: str, user: str, role: Role) -> ApiRequest[Member]:
    """Makes the user a member, or changes the member's role."""
    return sending("PUT", _member(workspace, user), NewRole(role=role), Member)


def remove_member(workspace: str, user: str) -> ApiRequest[None]:
    return ApiRequest("DELETE", _member(workspace, user), nothing)


def sign_in_link(user: str | None = None) -> ApiRequest[SignInLink]:
    """Signs in once, for a short time; for the caller unless a user is named."""
    return sending("POST", "/v1/sign-in-links", NewSignInLink(user=user), SignInLink)


def list_audit(after: str | None = None, limit: int | None = None) -> ApiRequest[Page[AuditEntry]]:
    """List who changed what."""
    return get("/v1/audit", Page[AuditEntry], {"after": after, "limit": limit})


def backup(
    path: str | Path, *, keys: bool = False, through: Callable[[], BodyFilter] = Unchanged
) -> FileDownload:
    """A copy of everything the server keeps, as one file readable by its owner alone. It takes the scope `backup`.

    Prompts and what agents said can be read in it; the vault's secrets only with `keys`, or with those of the
    server. `through` makes what the bytes go through on their way into the file.
    """
    asked = ApiRequest("GET", "/v1/backup", nothing, query_of({"keys": "true" if keys else None}))
    return FileDownload(asked, Path(path), through)


def _member(workspace: str, user: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/members/{segment(user)}"


# Operations on the agents of a server.


def list_agents() -> ApiRequest[list[AgentInfo]]:
    """Those that the server knows, here or not."""
    return ApiRequest("GET", "/v1/agents", lambda answered: _agents(answered).agents)


def install_agent(agent: str, *, reinstall: bool = False) -> ApiRequest[AgentInstalled]:
    """Returns when it is there. What is there already stays, unless it is to be installed anew."""
    path, body = f"{_agent(agent)}/install", AgentInstall(reinstall=reinstall)
    return replace(sending("POST", path, body, AgentInstalled), wait=INSTALL_READ)


def agent_modes(agent: str) -> ApiRequest[list[ModeInfo]]:
    """List what `agent_mode` may be."""
    return ApiRequest(
        "GET", f"{_agent(agent)}/modes", lambda answered: _modes(answered).modes, wait=ASK_AGENT_READ
    )


def agent_models(agent: str) -> ApiRequest[ModelList]:
    """List what `model` may be, and `variant` with it."""
    return replace(get(f"{_agent(agent)}/models", ModelList), wait=ASK_AGENT_READ)


def _agent(agent: str) -> str:
    return f"/v1/agents/{segment(agent)}"


_agents = AsJson(AgentList)
_modes = AsJson(ModeList)


# Operations on approvals and grants.


def list_approvals(
    status: ApprovalStatus | None = None,
    *,
    tool: str | None = None,
    agent: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> ApiRequest[Page[ApprovalView]]:
    """List those of every status unless one is named; pending ones oldest first, else newest first. `tool` is a pattern."""
    query = {"status": status, "tool": tool, "agent": agent, "after": after, "limit": limit}
    return get_linked("/approvals", ApprovalView, query)


def read_approval(approval: str) -> ApiRequest[ApprovalDetail]:
    """Read one with what its agent did lately, and the grants that it has."""
    return get(f"/approvals/{segment(approval)}", ApprovalDetail)


def approve(
    approval: str,
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    params: Mapping[str, object] | None = None,
    resolved_by: str | None = None,
    digest: str | None = None,
) -> ApiRequest[ApprovalView]:
    """Approve it; with `params`, these arguments instead, where the approval is `editable`. `message` is for the agent.
    `digest`: as you read it; where it is another action by now, `Conflict`, and nothing is done."""
    body = Approve(
        reasoning=reasoning,
        message=message,
        confidence=confidence,
        params=params,
        resolved_by=resolved_by,
        digest=digest,
    )
    return sending("POST", f"/approvals/{segment(approval)}/approve", body, ApprovalView)


def deny(
    approval: str,
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    resolved_by: str | None = None,
    digest: str | None = None,
) -> ApiRequest[ApprovalView]:
    """`message` is what the agent is told; `reasoning` is kept in the trace. `digest` as of `approve`."""
    body = Resolution(
        reasoning=reasoning,
        message=message,
        confidence=confidence,
        resolved_by=resolved_by,
        digest=digest,
    )
    return sending("POST", f"/approvals/{segment(approval)}/deny", body, ApprovalView)


def escalate(approval: str, *, reasoning: str | None = None) -> ApiRequest[ApprovalView]:
    """From then on only a person may answer it."""
    return sending(
        "POST", f"/approvals/{segment(approval)}/escalate", Escalation(reasoning=reasoning), ApprovalView
    )


def claim(approval: str, *, lease_seconds: int = 60) -> ApiRequest[ApprovalView]:
    """Other supervisors keep off it for so long."""
    return sending(
        "POST", f"/approvals/{segment(approval)}/claim", ClaimBody(lease_seconds=lease_seconds), ApprovalView
    )


def answer_group(
    group: str,
    answer: Literal["approve", "deny"],
    *,
    reasoning: str | None = None,
    message: str | None = None,
    confidence: float | None = None,
    resolved_by: str | None = None,
) -> ApiRequest[GroupAnswered]:
    """All pending ones that ask for the very same; `group` is a member of each of them."""
    body = Resolution(reasoning=reasoning, message=message, confidence=confidence, resolved_by=resolved_by)
    return sending("POST", f"/approvals/groups/{segment(group)}/{segment(answer)}", body, GroupAnswered)


def list_grants(*, after: str | None = None, limit: int | None = None) -> ApiRequest[Page[GrantView]]:
    return get_linked("/grants", GrantView, {"after": after, "limit": limit})


def give_grant(
    agent: str,
    tools: str,
    duration: int | str,
    *,
    kinds: Iterable[str] | None = None,
    reason: str | None = None,
    session: str | None = None,
    folder: str | None = None,
) -> ApiRequest[GrantView]:
    """Agents (a pattern) may use tools (a pattern) unasked, for seconds or as Go writes it: `1h30m`; in one session alone, in
    one folder (an absolute path) alone."""
    body = NewGrant(
        agent=agent,
        tools=tools,
        duration=duration,
        kinds=None if kinds is None else [*kinds],
        reason=reason,
        session_id=session,
        folder=folder,
    )
    return sending("POST", "/grants", body, GrantView)


def read_grant(grant: str) -> ApiRequest[GrantView]:
    return get(f"/grants/{segment(grant)}", GrantView)


def revoke_grant(grant: str) -> ApiRequest[None]:
    """It lets nothing pass from then on."""
    return ApiRequest("DELETE", f"/grants/{segment(grant)}", nothing)


def read_inbox() -> ApiRequest[Inbox]:
    """Read what waits for you, went wrong or is ready, across sessions, approvals and questions, ranked."""
    from legation.wire.api.inbox import Inbox  # few commands read it

    return get("/v1/inbox", Inbox)


def list_recordings(limit: int = 100) -> ApiRequest[list[Recording]]:
    """List what `legation exec` ran by itself on the server's machine, the newest first. Nobody changes them."""
    from legation.wire.api.sessions import RecordingList

    read = AsJson(RecordingList)
    return ApiRequest(
        "GET", "/v1/recordings", lambda answered: read(answered).recordings, query_of({"limit": limit})
    )


def look_at(item: str, *, since: int | None = None) -> ApiRequest[None]:
    """Put away something that went wrong or is ready: for you alone, until something happens to it. `since`: as it was shown."""
    from legation.wire.api.inbox import LookedAt

    body = LookedAt(since=since)
    return ApiRequest("POST", f"/v1/inbox/{segment(item)}/looked-at", nothing, body=encoded(body))


# Operations that ask the door: a tool's call, what would be decided, the policy in force, and what was traced.


def call_tool(
    name: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    timeout: float | None = None,
    key: str | None = None,
) -> ApiRequest[ToolReturned]:
    """Runs the tool, once it is allowed: that may take as long as a person takes to answer.

    A refusal is an error: `Forbidden` with the message for the agent, `TimedOut` where nobody answered in time,
    `RateLimited` where a limit stopped it. After `timeout` seconds the caller goes away, which cancels what waits;
    whether a tool that had begun has done its work is then unknown. Never repeated, unless it has a `key` of yours: such
    a call goes on without its caller, over restarts of the server, and the same call with the key gets its result."""
    body = ToolCallBody(params=_arguments(params), agent=agent, session_id=session_id)
    operation = sending("POST", f"/tool/{segment(name)}", body, ToolReturned)
    return replace(operation, wait=_seconds(timeout), key=key)


def ask(
    waiter: str,
    tool: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    kind: str | None = None,
    cwd: str | None = None,
    resolved: ResolvedPaths | None = None,
    key: str | None = None,
) -> ApiRequest[AskView]:
    """Ask whether you may do something yourself, as `waiter`, such as `run:42`. Sent again by its `key` it is the same ask."""
    asked = msgspec.structs.asdict(_question(tool, params, agent, session_id, kind, cwd, resolved))
    operation = sending("POST", "/v1/asks", AskBody(**asked, waiter=waiter), AskView)
    return replace(operation, key=key or os.urandom(16).hex())


def read_ask(ask: str, *, wait: int = 0) -> ApiRequest[AskView]:
    """Look at an ask of yours; a pending one is waited for, up to `wait` seconds (60). It keeps the waiter alive."""
    return replace(get(f"/v1/asks/{segment(ask)}", AskView, {"wait": wait}), wait=wait + LONG_READ)


def use_ask(
    ask: str, *, resolved: ResolvedPaths | None = None, key: str | None = None
) -> ApiRequest[AskView]:
    """Use what was approved, right before you act: once. `key`: sent again with it, it is the same use."""
    operation = sending("POST", f"/v1/asks/{segment(ask)}/use", AskUse(resolved=resolved), AskView)
    return replace(operation, key=key or os.urandom(16).hex())


def withdraw_ask(ask: str) -> ApiRequest[None]:
    """Take an ask back."""
    return ApiRequest("DELETE", f"/v1/asks/{segment(ask)}", nothing)


def decide(
    tool: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    kind: str | None = None,
    cwd: str | None = None,
    resolved: ResolvedPaths | None = None,
) -> ApiRequest[Considered]:
    """Ask what would happen to the call now. Nothing is run, counted or recorded. `resolved`: of an agent on another
    machine than the server, where its paths lead there."""
    body = _question(tool, params, agent, session_id, kind, cwd, resolved)
    return sending("POST", "/decide", body, Considered)


def policy_info() -> ApiRequest[PolicyInfo]:
    """Read what is in force, and why the newest edit is not, where it is not."""
    return get("/v1/policy", PolicyInfo)


def explain(
    tool: str,
    params: Mapping[str, object],
    *,
    agent: str | None = None,
    session_id: str | None = None,
    kind: str | None = None,
    cwd: str | None = None,
    resolved: ResolvedPaths | None = None,
) -> ApiRequest[Explained]:
    """Ask as `decide` does, and why, rule by rule."""
    body = _question(tool, params, agent, session_id, kind, cwd, resolved)
    return sending("POST", "/v1/policy/explain", body, Explained)


def replay(
    policy: str,
    *,
    since: str | None = None,
    agent: str | None = None,
    tool: str | None = None,
    limit: int | None = None,
) -> ApiRequest[Replay]:
    """Ask what a changed policy, given as YAML, would have decided on the recorded calls. `since`: a time, or `24h`."""
    body = ReplayBody(policy=policy, since=since, agent=agent, tool=tool)
    if limit is not None:
        body = ReplayBody(policy=policy, since=since, agent=agent, tool=tool, limit=limit)
    return replace(sending("POST", "/v1/policy/replay", body, Replay), wait=LONG_READ)


def rule_hits(*, since: str | None = None) -> ApiRequest[list[RuleHits]]:
    """Count how often each rule decided."""
    return get("/v1/policy/hits", list[RuleHits], {"since": since})


def list_traces(
    *,
    agent: str | None = None,
    tool: str | None = None,
    session: str | None = None,
    since: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> ApiRequest[Page[TraceEntry]]:
    """Calls and what became of them, the newest first."""
    query = {"agent": agent, "tool": tool, "session": session, "since": since, "after": after, "limit": limit}
    return get_linked("/traces", TraceEntry, query)


def read_trace(trace: str) -> ApiRequest[TraceDetail]:
    """One call with every step of it."""
    return get(f"/traces/{segment(trace)}", TraceDetail)


def verify_traces(heads: Iterable[ChainHead] = ()) -> ApiRequest[list[ChainReport]]:
    """Whether every chain of the workspace is as it was written.

    `heads` are those that an earlier answer named: only they show that no end was cut off since."""
    known = tuple(("head", f"{head.server}:{head.seq}:{head.hash}") for head in heads)
    return ApiRequest("GET", "/v1/trace/verify", AsJson(list[ChainReport]), known, wait=LONG_READ)


def export_traces(server: str | None = None, *, after: int | None = None) -> ApiRequest[None]:
    """Every step, each as one line of JSON: of all chains, or of a server's above the number `after`."""
    query = query_of({"server": server, "after": after})
    return ApiRequest("GET", "/v1/trace/export", nothing, query, wait=LONG_READ)


def _question(
    tool: str,
    params: Mapping[str, object],
    agent: str | None,
    session_id: str | None,
    kind: str | None,
    cwd: str | None,
    resolved: ResolvedPaths | None,
) -> DecideBody:
    return DecideBody(
        tool=tool,
        params=_arguments(params),
        agent=agent,
        session_id=session_id,
        kind=kind,
        cwd=cwd,
        resolved=resolved,
    )


def _arguments(params: Mapping[str, object]) -> dict[str, object]:
    """Take the arguments as they are, or not at all: msgspec would send NaN as null, and somebody would approve that."""
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


# Operations on trusted folders: where what a repository says to agents counts.


def list_trusted() -> ApiRequest[Page[TrustView]]:
    """Folders of the server's machine that the workspace trusts, by path."""
    return get("/v1/trust", Page[TrustView])


def trust_folder(folder: str) -> ApiRequest[TrustView]:
    """The configuration for agents in it counts: hooks, allow rules, MCP servers. An absolute path of the server's
    machine. It takes a person."""
    return sending("POST", "/v1/trust", NewTrust(folder=folder), TrustView)


def untrust_folder(trust: str) -> ApiRequest[None]:
    """Trust it no more, by its id. Agents that run keep what they have read."""
    return ApiRequest("DELETE", f"/v1/trust/{segment(trust)}", nothing)

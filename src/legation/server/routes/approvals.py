"""The approvals of seed 001, under its paths: list, read, claim, escalate, approve, deny.

INV-A1  Who answered is whoever the credential names. `resolved_by` of a body is kept as the caller's word.
INV-A2  A body that is not understood changes nothing.
INV-A3  Where `expose_content` is false, nobody below a person's level is shown content, in whatever answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

import msgspec

from legation.approvals import grants, listing
from legation.approvals.admit import approve_edited
from legation.approvals.approval import Approval, ApprovalAnswer, GlobText
from legation.approvals.grants import must_be_person, new_grant_id
from legation.approvals.listing import ApprovalFilter
from legation.approvals.request import hide, is_isolated
from legation.approvals.transitions import get
from legation.errors import AlreadyAnswered, Conflict, NotFound, SessionClosed
from legation.server.http.routes import Call, RouteOptions, RouteReply, Routes, needs
from legation.server.routes.page import PageLimit, listed
from legation.server.sessions.record import must_be_open
from legation.wire.api.approvals import (
    ApprovalDetail,
    ApprovalStatus,
    ApprovalView,
    Approve,
    ClaimBody,
    Escalation,
    GrantView,
    GroupAnswered,
    GroupResolution,
    NewGrant,
    Resolution,
    rfc3339,
)
from legation.wire.api.shape import Page

routes = Routes(tag="approvals")

# Seed 001's bodies are optional, each member of them and the whole.
_NO_APPROVE: Final = Approve()
_NO_RESOLUTION: Final = Resolution()
_NO_GROUP: Final = GroupResolution()
_NO_ESCALATION: Final = Escalation()
_NO_CLAIM: Final = ClaimBody()

ANSWERS: Final[RouteOptions] = {
    "access": needs("approve"),
    "errors": (NotFound, Conflict, AlreadyAnswered),
}

V = TypeVar("V", bound=ApprovalView)


@routes.get("/approvals", access=needs("read"))
async def list_approvals(
    call: Call,
    status: ApprovalStatus | None = None,
    tool: GlobText | None = None,
    agent: str | None = None,
    limit: PageLimit = 100,
    after: str | None = None,
) -> RouteReply[list[ApprovalView]]:
    """Approvals of the workspace, of every status or of one.

    Pending ones come oldest first, all others newest first. `tool` is a pattern as in Go's `filepath.Match`, `agent`
    a name. The Link header leads to the next part. A supervisor that asks for pending ones counts as being there for
    these tools: what needs a supervisor waits for it."""
    services, workspace, now = call.services, call.principal.workspace, call.services.clock.now_ms()
    wanted = ApprovalFilter(status=status, tool=tool, agent=agent)
    if status in (None, "pending"):
        await services.attendance.note(call.principal, tool)
    page = await services.database.read(listing.page, workspace, wanted, now, limit, after)
    views = await listing.views(services.database, services.sealer, workspace, page.items, now)
    # One whose time is over is expired, although nobody has written that down yet.
    items = [_shown(call, view) for view in views if status in (None, view.status)]
    return listed(call, Page(items=items, next=page.next))


@routes.get("/approvals/{approval}", access=needs("read"), errors=(NotFound,))
async def read_approval(call: Call, approval: str) -> ApprovalDetail:
    """One approval with all that it takes to decide it: what would be done and where, what would change, why somebody is
    asked, what its agent did lately and which grants it has."""
    services = call.services
    found = await listing.detail(
        services.database,
        services.sealer,
        call.principal.workspace,
        approval,
        services.clock.now_ms(),
        services.policies.current,
    )
    if is_isolated(call.principal, services.settings):
        found = listing.isolated(found)
    return _shown(call, found)


@routes.post("/approvals/{approval}/approve", **ANSWERS)
async def approve(call: Call, approval: str, body: Approve = _NO_APPROVE) -> ApprovalView:
    """Approve: the call that waits goes on. The first answer stands; every later one is a 409 that says whose it was.

    With a `digest` it counts for exactly the action that was looked at: where the approval has another by now, because the
    policy was edited, that is a 409 and nothing is done. With `params` the call goes on with these arguments instead, where the approval is `editable`: the answer is then
    the new approval that stands in its place. Who is shown stand-ins for content gives them back as they are, each in its
    place: there the content stays; anything else is a 400. What needs a person is refused to a supervisor (403)."""
    services, answer = call.services, _answer(body, approves=True)
    if body.params is None:
        work = services.inbox.resolve(call.principal, approval, answer)
    else:
        policies = services.policies.current
        isolated = is_isolated(call.principal, services.settings)
        work = approve_edited(
            services.inbox, policies, call.principal, approval, body.params, answer, isolated=isolated
        )
    return await _view(call, await _first(call, approval, "approve", work))


@routes.post("/approvals/{approval}/deny", **ANSWERS)
async def deny(call: Call, approval: str, body: Resolution = _NO_RESOLUTION) -> ApprovalView:
    """Deny: the agent is refused, and is told `message`, or else `reasoning`. Otherwise as approve."""
    work = call.services.inbox.resolve(call.principal, approval, _answer(body, approves=False))
    return await _view(call, await _first(call, approval, "deny", work))


@routes.post("/approvals/{approval}/escalate", **ANSWERS)
async def escalate(call: Call, approval: str, body: Escalation = _NO_ESCALATION) -> ApprovalView:
    """Leave it to a person: from then on only a person may answer it. One that is with a person stays there."""
    work = call.services.inbox.escalate(call.principal, approval, body.reasoning)
    return await _view(call, await _first(call, approval, "escalate", work))


@routes.post("/approvals/{approval}/claim", **ANSWERS)
async def claim(call: Call, approval: str, body: ClaimBody = _NO_CLAIM) -> ApprovalView:
    """Look at it alone: other supervisors get 409 until it is answered or the lease ends. A person never does."""
    work = call.services.inbox.claim(call.principal, approval, body.lease_seconds * 1000)
    return await _view(call, await _first(call, approval, "claim", work))


@routes.post("/approvals/groups/{group}/approve", **ANSWERS)
async def approve_group(call: Call, group: str, body: GroupResolution = _NO_GROUP) -> GroupAnswered:
    """Approve all pending ones that ask for the very same; `group` is a member of each.

    `refused` are those that the caller may not answer: they stay pending."""
    return await _answer_group(call, group, body, approves=True)


@routes.post("/approvals/groups/{group}/deny", **ANSWERS)
async def deny_group(call: Call, group: str, body: GroupResolution = _NO_GROUP) -> GroupAnswered:
    """Deny all pending ones that ask for the very same; as approving a group."""
    return await _answer_group(call, group, body, approves=False)


async def _answer_group(call: Call, group: str, body: GroupResolution, *, approves: bool) -> GroupAnswered:
    inbox = call.services.inbox
    answered = await inbox.answer_group(call.principal, group, _answer(body, approves=approves), body.ids)
    return GroupAnswered(answered=[each.id for each in answered.answered], refused=list(answered.refused))


def _answer(body: Resolution, *, approves: bool) -> ApprovalAnswer:
    return ApprovalAnswer(
        approve=approves,
        reasoning=body.reasoning,
        confidence=body.confidence,
        message=body.message,
        claim=body.resolved_by,
        digest=body.digest,
    )


async def _first(call: Call, approval: str, verb: str, work: Awaitable[Approval]) -> Approval:
    """Tell whoever comes second who was first, and what they said."""
    try:
        return await work
    except AlreadyAnswered:
        found = await call.services.database.read(get, call.principal.workspace, approval)
    status, why = found.status_at(call.services.clock.now_ms()), (await _view(call, found)).why
    by = f" by {found.resolved_by}" if found.resolved_by else f", for {why}" if why else ""
    if found.replaced_by:
        by = f", {found.replaced_by} took its place"
    raise AlreadyAnswered(
        f"cannot {verb} approval {found.id}: it is {status}{by}; the first answer stands",
        {
            "status": str(status),
            "resolvedBy": found.resolved_by,
            "resolvedAt": None if found.resolved_at is None else rfc3339(found.resolved_at),
            "replacedBy": found.replaced_by,
            **({} if why is None else {"why": why}),
        },
    )


async def _view(call: Call, approval: Approval) -> ApprovalView:
    services = call.services
    (view,) = await listing.views(
        services.database,
        services.sealer,
        call.principal.workspace,
        [approval],
        services.clock.now_ms(),
    )
    return _shown(call, view)


def _shown(call: Call, view: V) -> V:
    if view.params is None or not is_isolated(call.principal, call.services.settings):
        return view
    return msgspec.structs.replace(view, params=hide(view.params))


grants_routes = Routes(tag="grants")


@grants_routes.get("/grants", access=needs("read"))
async def list_grants(
    call: Call, limit: PageLimit = 100, after: str | None = None
) -> RouteReply[list[GrantView]]:
    """Every grant on record, ended or not, the newest first. The Link header leads to the next part."""
    services, workspace = call.services, call.principal.workspace
    page = await services.database.read(grants.page, workspace, limit, after)
    items = await services.grants.views(workspace, page.items, services.clock.now_ms())
    return listed(call, Page(items=items, next=page.next))


@grants_routes.post("/grants", access=needs("approve"), errors=(NotFound, SessionClosed), status=201)
async def give_grant(call: Call, body: NewGrant) -> GrantView:
    """Let agents (a pattern) use tools (a pattern) without asking, for a bounded time. It takes a person.

    With a `session_id` only what that session's agent does is let pass, and it ends with the session; with a `folder` only
    what surely lies there, and commands that run there. What a policy denies stays denied. What waits already and would have
    passed with it passes now."""
    services, now = call.services, call.services.clock.now_ms()
    if body.session_id is not None:
        must_be_person(call.principal, "give")
        await _must_be_open(call, body.session_id)
    giving = services.database.transact(
        services.grants.give, call.principal, body, grant=new_grant_id(now), now_ms=now
    )
    grant = await services.inbox.granting(call.principal.workspace, giving, session=body.session_id)
    return grant.view(body.reason, now)


async def _must_be_open(call: Call, session_id: str) -> None:
    """Refuse a grant for a session that has ended, or never was. One of another server is known by its claim alone."""
    services, workspace = call.services, call.principal.workspace
    if services.forwarder is not None and await services.forwarder.holder(workspace, session_id) is not None:
        return
    must_be_open(await services.sessions.records.get(workspace, session_id))


@grants_routes.get("/grants/{grant}", access=needs("read"), errors=(NotFound,))
async def read_grant(call: Call, grant: str) -> GrantView:
    """One grant."""
    services, workspace = call.services, call.principal.workspace
    found = await services.database.read(grants.get, workspace, grant)
    (view,) = await services.grants.views(workspace, [found], services.clock.now_ms())
    return view


@grants_routes.delete("/grants/{grant}", access=needs("approve"), errors=(NotFound, Conflict))
async def revoke_grant(call: Call, grant: str) -> None:
    """Revoke a grant: from then on it lets nothing pass. It takes a person."""
    services = call.services
    await services.database.transact(services.grants.revoke, call.principal, grant, services.clock.now_ms())

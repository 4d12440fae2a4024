"""`legation approvals`: what waits for an answer, and the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from cyclopts import App, Parameter

from legation.cli.flags import Json, PlaceFlags, connect
from legation.cli.output import Style, Terminal, line, named, plain, say_json, show
from legation.errors import Conflict, InvalidParams, NotFound
from legation.wire.api.approvals import ApprovalDetail, ApprovalStatus, ApprovalView, GroupAnswered

app = App(
    name="approvals",
    help="""What agents ask for: list, show, approve, deny, watch.

Without a command it lists what waits for an answer, the most urgent first. Answer with `approve ID` or `deny ID`, or one
after the other with `watch`.""",
)
app.command(
    "legation.cli.approvals_watch:watch",
    name="watch",
    help="""Answer at the terminal while they come in; in a pipe, one line for each change.

y approves the one that is shown, n denies it, e leaves it to a person, i answers all identical ones, j and k choose,
? helps, q quits. What somebody else answers disappears, and you are told who it was.""",
)

SHOWN: Final = 100  # rows, unless --limit says otherwise

Reason = Annotated[str | None, Parameter(help="Why; kept in the trace.")]
Message = Annotated[str | None, Parameter(help="What the agent is told; when denied, else the reason.")]
Identical = Annotated[
    bool, Parameter(negative="", help="And all other pending ones that ask for the very same.")
]
Rows = Annotated[int, Parameter(help="At most so many rows.")]


@app.default
@app.command(name="list")
def list_(
    *,
    status: Annotated[
        ApprovalStatus | None, Parameter(help="Those of one status. Without it: pending.")
    ] = None,
    tool: Annotated[str | None, Parameter(help="Of tools like this: a pattern such as 'github.*'.")] = None,
    agent: Annotated[str | None, Parameter(help="Of the agent of this name.")] = None,
    all: Annotated[bool, Parameter(negative="", help="Of every status, the newest first.")] = False,  # noqa: A002
    limit: Rows = SHOWN,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """List what waits for an answer, the most urgent first."""
    if all and status is not None:
        raise InvalidParams("cannot list one status and all of them; give --status or --all")
    wanted = None if all else status or "pending"
    columns: dict[str, Callable[[ApprovalView], str | None]] = {
        "id": lambda one: one.id,
        "agent": lambda one: one.agent_id,
        "tool": lambda one: one.tool,
        "rule": lambda one: one.policy_rule,
        "asked": lambda one: one.created_at,
    }
    if wanted == "pending":
        columns |= {"needs": lambda one: one.needs, "left": lambda one: one.remaining, "note": _note}
    else:
        columns |= {
            "status": lambda one: one.status,
            "by": lambda one: one.resolved_by_name or one.resolved_by,
            "note": _note,
        }
    empty = "nothing waits for an answer" if wanted == "pending" else "no approvals of that kind"
    with connect(settings) as server:
        rows = server.approvals.list(wanted, tool=tool, agent=agent, limit=page_size(limit))
        show(islice(rows, limit), columns, json=json, if_empty=f"{empty}; --all lists those of every status")
    return 0


def page_size(limit: int) -> int:
    if limit < 1:
        raise InvalidParams("cannot list fewer than one row: give --limit a number from 1")
    return min(limit, SHOWN)


def _note(approval: ApprovalView) -> str | None:
    if approval.replaced_by:
        return f"now {approval.replaced_by}"
    if approval.why:
        return approval.why
    if approval.injection_risk:
        return "INJECTION?"
    return f"looked at by {approval.claimed_by}" if approval.claimed_by else None


@app.command(name="show")
def show_(approval: str, /, *, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Show one with its arguments, what its agent did lately, and the grants that it has.

    Parameters
    ----------
    approval
        Its whole id, as listed: apr_...
    """

    with connect(settings) as server, explained("show", approval):
        found = server.approvals.get(approval)
    if json:
        say_json(found)
        return 0
    out = Terminal()
    for text, style in whole(found):
        out.say(text, style)
    return 0


@app.command
def approve(
    approval: str,
    /,
    *,
    reason: Reason = None,
    message: Message = None,
    params: Annotated[
        str | None, Parameter(help="JSON: approve, but with these arguments, where it is editable.")
    ] = None,
    identical: Identical = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Let it happen, once, exactly as it was asked for. The first answer stands.

    Parameters
    ----------
    approval
        Its whole id, as listed: apr_...
    """
    edited = None if params is None else _params(params)
    if identical and edited is not None:
        raise InvalidParams("cannot give identical ones other arguments; leave out --params or --identical")
    with connect(settings) as server, explained("approve", approval):
        if identical:
            group = server.approvals.get(approval).group
            done = server.approvals.answer_group(group, "approve", reasoning=reason, message=message)
            return _say_group(done, "approved", json=json)
        answered = server.approvals.approve(approval, reasoning=reason, message=message, params=edited)
    return _say_answer(answered, "approved", approval, json=json)


@app.command
def deny(
    approval: str,
    /,
    *,
    reason: Reason = None,
    message: Message = None,
    identical: Identical = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Refuse it. The agent is told so, with your --message, and goes on without it. The first answer stands.

    Parameters
    ----------
    approval
        Its whole id, as listed: apr_...
    """
    with connect(settings) as server, explained("deny", approval):
        if identical:
            group = server.approvals.get(approval).group
            done = server.approvals.answer_group(group, "deny", reasoning=reason, message=message)
            return _say_group(done, "denied", json=json)
        answered = server.approvals.deny(approval, reasoning=reason, message=message)
    return _say_answer(answered, "denied", approval, json=json)


@app.command
def escalate(
    approval: str, /, *, reason: Reason = None, json: Json = False, settings: PlaceFlags | None = None
) -> int:
    """Leave it to a person: from then on no supervisor may answer it.

    Parameters
    ----------
    approval
        Its whole id, as listed: apr_...
    """
    with connect(settings) as server, explained("escalate", approval):
        answered = server.approvals.escalate(approval, reasoning=reason)
    return _say_answer(answered, "left to a person:", approval, json=json)


@contextmanager
def explained(verb: str, approval: str) -> Iterator[None]:
    """What to do next here, where the server can only name a route."""
    try:
        yield
    except NotFound:
        raise NotFound(
            f"cannot {verb} {line(approval)}: there is no such approval here; "
            "give the whole id, as `legation approvals --all` lists it"
        ) from None


def _params(text: str) -> dict[str, Any]:
    import msgspec

    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise InvalidParams("""cannot read --params: it is no JSON object; write '{"name": "value"}'""")
    return found


def _say_answer(answered: ApprovalView, what: str, asked: str, *, json: bool) -> int:
    if json:
        say_json(answered)
        return 0
    out = Terminal()
    out.say(f"{what} {line(answered.id)} ({line(answered.tool)} of {line(answered.agent_id)})")
    if answered.id != asked:
        out.say(f"with other arguments, in the place of {line(asked)}")
    return 0


def _say_group(done: GroupAnswered, what: str, *, json: bool) -> int:
    if json:
        say_json(done)
    else:
        out = Terminal()
        for each in done.answered:
            out.say(f"{what} {line(each)}")
        for each in done.refused:
            out.say(f"not yours to answer: {line(each)}", "yellow")
        if not done.answered and not done.refused:
            out.say("nothing answered: none of them is pending any more", "yellow")
    return 0 if done.answered else Conflict("").status.exit


# An approval in words, for `show` and `watch`. Nothing an agent wrote leaves here raw.

INJECTION = "its arguments look like an attempt to talk whoever decides into it"
PURGED = "purged: they are no longer kept"


class Said(NamedTuple):
    text: str
    style: Style | None = None


def facts(approval: ApprovalView) -> Iterator[Said]:
    """Who wants what, and by which rule it is asked about."""
    if approval.injection_risk:
        yield Said(f"INJECTION  {INJECTION}", "red")
    yield Said(f"tool       {line(approval.tool)}", "bold")
    yield Said(f"agent      {line(approval.agent_id)}")
    yield Said(f"rule       {line(approval.policy_rule)}")
    yield Said(f"needs      a {approval.needs}")
    if approval.session_id:
        yield Said(f"session    {line(approval.session_id)}")
    yield Said(f"asked      {line(approval.created_at)}")
    if approval.claimed_by and approval.status == "pending":
        yield Said(f"looked at  by {line(approval.claimed_by)}", "yellow")


def outcome(approval: ApprovalView) -> str:
    """How it stands, and by whose word."""
    answerer = named(approval.resolved_by, approval.resolved_by_name)
    by = f" by {line(answerer)}" if answerer else ""
    at = f" at {line(approval.resolved_at)}" if approval.resolved_at else ""
    instead = f"; {line(approval.replaced_by)} took its place" if approval.replaced_by else ""
    why = f": {line(approval.why)}" if approval.why and not instead else ""
    return f"{approval.status}{by}{at}{instead}{why}"


def arguments(params: Mapping[str, object] | None) -> list[str]:
    """As JSON, so that a line break within a value cannot pass for the next line of ours."""
    if params is None:
        return [PURGED]
    text = msgspec.json.format(msgspec.json.encode(params), indent=2).decode()
    return plain(text).split("\n")


def surroundings(approval: ApprovalDetail) -> Iterator[Said]:
    """What the agent did lately, and what it may do unasked."""
    for trace in approval.recent_traces:
        did = f"{line(trace.timestamp)}  {line(trace.policy or '-')}  {line(trace.tool)}"
        yield Said(f"recent     {did}  {line(trace.trace_id)}", "dim")
    for grant in approval.active_grants:
        may = f"{line(grant.agent)} may use {line(grant.tools)} for {line(grant.remaining)}"
        yield Said(f"grant      {line(grant.id)}: {may}, by {line(grant.granted_by)}", "dim")


def whole(approval: ApprovalDetail) -> Iterator[Said]:
    yield Said(line(approval.id), "bold")
    yield Said(f"status     {outcome(approval)}")
    if approval.status == "pending":
        yield Said(f"ends in    {line(approval.remaining)}")
    yield from facts(approval)
    yield Said("arguments")
    for text in arguments(approval.params):
        yield Said(f"    {text}")
    yield from surroundings(approval)

"""`legation approvals`: what waits for an answer, and the answers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from legation.cli.command import (
    SHOWN,
    Json,
    PlaceFlags,
    Rows,
    connect,
    connect_async,
    explained,
    line,
    page_size,
    say,
    say_json,
    show,
    tell,
    when,
)
from legation.errors import Conflict, InvalidParams, LegationError, NotFound
from legation.wire.api.approvals import ApprovalStatus, ApprovalView

if TYPE_CHECKING:
    from legation.client import Legation
    from legation.client.connection import NumberedChange
    from legation.wire.api.inbox import InboxItem

app = App(
    name="approvals",
    help="""What agents ask for: list, show, approve, deny, watch.

Without a command it lists what waits for an answer, the most urgent first. Answer with `approve ID` or `deny ID`, or one
after the other with `watch`.""",
)

_explained = partial(explained, noun="approval", listing="approvals --all")
NO_STREAM_PAUSE: Final = 2.0  # seconds: an agent's time to ask for the first thing

ApprovalId = Annotated[str, Parameter(help="Its whole id, as listed: apr_...")]
Reason = Annotated[str | None, Parameter(help="Why; kept in the trace.")]
Message = Annotated[str | None, Parameter(help="What the agent is told; when denied, else the reason.")]
Digest = Annotated[
    str | None,
    Parameter(help="As `show` says it: refuse if it is another action, or under another policy, by now."),
]
Identical = Annotated[
    bool, Parameter(negative="", help="And all other pending ones that ask for the very same.")
]


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
) -> None:
    """List what waits for an answer, the most urgent first."""
    if all and status is not None:
        raise InvalidParams("cannot list one status and all of them; give --status or --all")
    wanted = None if all else status or "pending"
    waiting: dict[str, InboxItem] = {}
    columns: dict[str, Callable[[ApprovalView], str | None]] = {
        "id": lambda one: one.id,
        "agent": lambda one: one.agent_id,
        "what": lambda one: f"{item.verb} {item.object}" if (item := waiting.get(one.id)) else one.tool,
        "session": lambda one: (
            item.session_title or one.session_id if (item := waiting.get(one.id)) else one.session_id
        ),
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
        if wanted == "pending" and not json:  # what it is about, in words: the list itself has only arguments
            with suppress(LegationError):  # a server before 0.3
                waiting |= {each.id: each for each in server.inbox().items}
        rows = server.approvals.list(wanted, tool=tool, agent=agent, limit=page_size(limit))
        show(islice(rows, limit), columns, json=json, if_empty=f"{empty}; --all lists those of every status")


def _note(approval: ApprovalView) -> str | None:
    if approval.replaced_by:
        return f"now {approval.replaced_by}"
    if approval.why:
        return approval.why
    if approval.injection_risk:
        return "INJECTION?"
    return f"looked at by {approval.claimed_by}" if approval.claimed_by else None


@app.command(name="show")
def show_(approval: ApprovalId, /, *, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """Show one with its arguments, what its agent did lately, and the grants that it has."""
    with connect(settings) as server, _explained("show", id_=approval):
        found = server.approvals.get(approval)
    if json:
        say_json(found)
        return
    from legation.cli.approvals_view import whole

    for text, style in whole(found):
        say(text, style)


@app.command
def approve(
    approval: ApprovalId,
    /,
    *,
    reason: Reason = None,
    message: Message = None,
    params: Annotated[
        str | None, Parameter(help="JSON: approve, but with these arguments, where it is editable.")
    ] = None,
    identical: Identical = False,
    digest: Digest = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Let it happen, once, exactly as it was asked for. The first answer stands."""
    edited = None if params is None else _params(params)
    if identical and edited is not None:
        raise InvalidParams("cannot give identical ones other arguments; leave out --params or --identical")
    with connect(settings) as server, _explained("approve", id_=approval):
        if identical:
            _must_be_alone(digest)
            return _answer_identical(server, approval, "approve", reason, message, json=json)
        answered = server.approvals.approve(
            approval, reasoning=reason, message=message, params=edited, digest=digest
        )
    return _say_answer(answered, "approved", approval, json=json)


@app.command
def deny(
    approval: ApprovalId,
    /,
    *,
    reason: Reason = None,
    message: Message = None,
    identical: Identical = False,
    digest: Digest = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Refuse it. The agent is told so, with your --message, and goes on without it. The first answer stands."""
    with connect(settings) as server, _explained("deny", id_=approval):
        if identical:
            _must_be_alone(digest)
            return _answer_identical(server, approval, "deny", reason, message, json=json)
        answered = server.approvals.deny(approval, reasoning=reason, message=message, digest=digest)
    return _say_answer(answered, "denied", approval, json=json)


@app.command
def escalate(
    approval: ApprovalId, /, *, reason: Reason = None, json: Json = False, settings: PlaceFlags | None = None
) -> int:
    """Leave it to a person: from then on no supervisor may answer it."""
    with connect(settings) as server, _explained("escalate", id_=approval):
        answered = server.approvals.escalate(approval, reasoning=reason)
    return _say_answer(answered, "left to a person:", approval, json=json)


def _must_be_alone(digest: str | None) -> None:
    if digest is not None:
        raise InvalidParams("cannot name one digest for identical ones; leave out --digest or --identical")


def _params(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise InvalidParams("""cannot read --params: it is no JSON object; write '{"name": "value"}'""")
    return found


def _say_answer(answered: ApprovalView, what: str, asked: str, *, json: bool) -> int:
    tell(
        answered,
        f"{what} {line(answered.id)} ({line(answered.tool)} of {line(answered.agent_id)})",
        json=json,
    )
    if answered.id != asked and not json:
        say(f"with other arguments, in the place of {line(asked)}")
    return 0


def _answer_identical(
    server: Legation,
    approval: str,
    answer: Literal["approve", "deny"],
    reason: str | None,
    message: str | None,
    *,
    json: bool,
) -> int:
    group = server.approvals.get(approval).group
    done = server.approvals.answer_group(group, answer, reasoning=reason, message=message)
    if json:
        say_json(done)
    else:
        for each in done.answered:
            say(f"{'approved' if answer == 'approve' else 'denied'} {line(each)}")
        for each in done.refused:
            say(f"not yours to answer: {line(each)}", "yellow")
        if not done.answered and not done.refused:
            say("nothing answered: none of them is pending any more", "yellow")
    return 0 if done.answered else Conflict("").status.exit


@app.command
def watch(
    *,
    after: Annotated[
        int | None,
        Parameter(
            help="In a pipe: begin after the change of this number; 0 is the very first. Else with the next."
        ),
    ] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Answer at the terminal while they come in; in a pipe, one line for each change.

    y approves the one that is shown, n denies it, e leaves it to a person, i answers all identical ones, j and k choose,
    ? helps, q quits. What somebody else answers disappears, and you are told who it was.
    """
    if after is not None and after < 0:
        raise InvalidParams(f"cannot begin after {after}; give a number from 0")
    if json or after is not None or not _has_keys():
        with connect(settings) as server:
            _print(server, after, json=json)
        return 0
    import asyncio

    from legation.cli.approvals_watch import live

    return asyncio.run(live(lambda outages: connect_async(settings, outages)))


def _has_keys() -> bool:
    """Tell whether somebody sits there, at a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print(server: Legation, after: int | None, *, json: bool) -> None:
    """Print every change; without `after` first what is pending now, and none is missed in between."""
    if after is None:
        after = _head(server)
        for view in server.approvals.list("pending") if not json else ():
            say(
                f"{line(view.id)}  pending  {line(view.tool)} of {line(view.agent_id)}  {line(view.policy_rule)}"
                f"  needs a {view.needs}, {line(view.remaining)} left"
            )
    for change in _changes(server, after):
        if json:
            say_json({"seq": change.seq, "at": change.at, **msgspec.to_builtins(change.approval)})
        else:
            say(_words(change))


def _changes(server: Legation, after: int) -> Iterator[NumberedChange]:
    """Follow the changes, also of a workspace that has no stream yet because nobody ever asked for anything in it."""
    while True:
        try:
            with server.approvals.follow(after) as changes:
                yield from changes
            return
        except NotFound:
            time.sleep(NO_STREAM_PAUSE)


def _head(server: Legation) -> int:
    from legation.client.connection import STREAM

    return next((each.head for each in server.streams.list(STREAM) if each.name == STREAM), 0)


def _words(change: NumberedChange) -> str:
    now = change.approval
    by = f" by {line(now.resolved_by)}" if now.resolved_by else ""
    looked = f" by {line(now.claimed_by)}" if now.happened == "claimed" and now.claimed_by else ""
    mark = "  INJECTION?" if now.injection_risk else ""
    why = f": {line(now.why)}" if now.why else ""
    what = f"{line(now.id)}  {now.status}{by}  {line(now.tool)} of {line(now.agent)}  {line(now.rule)}"
    return f"{when(change.at)}  {what}  ({now.happened}{looked}){why}{mark}"

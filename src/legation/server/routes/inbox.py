"""`/v1/inbox`: one ranked list across sessions, runs, approvals and questions; docs/inbox.md describes it.

INV-R1  The order can be foretold: what waits for the caller by what expires next; the rest the newest first. Risk is shown,
        and ranks nothing.
INV-R2  What the caller can do nothing about is in no section of the caller's: it is with a supervisor, or with others.
INV-R3  It costs what it shows: sections are bounded, and none is read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from legation.approvals.approval import Approval, NoticeReason, may_judge, must_review, read
from legation.approvals.request import action_of, is_isolated
from legation.approvals.sweep import why_person
from legation.approvals.trace.evidence import read_evidence, writable
from legation.approvals.trace.step import Seals, contents_of
from legation.errors import Conflict, Forbidden, NotFound
from legation.runs.states import CleanupStatus
from legation.server import inbox
from legation.server.http.routes import Call, Routes, needs
from legation.store.audit import names_of
from legation.store.database.transaction import Queries, Row, Rows, Transaction
from legation.wire.api.inbox import (
    Inbox,
    InboxCounts,
    InboxItem,
    InboxQuestion,
    ItemState,
    LookedAt,
    QuestionChoice,
    QuestionField,
    Section,
)

if TYPE_CHECKING:
    from legation.server.sessions.record import SessionRecord
    from legation.wire.acp.methods import CreateElicitationRequest

LONGEST_OBJECT: Final = 256  # characters of what an item is about: a line of a list
_ORDER: Final[tuple[Section, ...]] = ("you", "wrong", "ready", "supervisor", "others")
_VERBS: Final = {
    "edit": "Edit", "read": "Read", "delete": "Delete", "move": "Move", "search": "Search", "execute": "Run",
    "fetch": "Fetch", "switch_mode": "Switch to",
}  # fmt: skip
_OUTCOMES: Final = {
    "failed": "Failed",
    "cut": "Cut off",
    "exited": "Agent ended",
    "ended": "Ended",
    "succeeded": "Ended",
    "timed_out": "Timed out",
    "cancelled": "Cancelled",
}
_STUCK: Final = {
    "hung": {"state": "hung", "verb": "Hangs", "why": "nothing was heard of it for ten minutes or more"},
    "looping": {"state": "looping", "verb": "Loops", "why": "it makes the same call again and again"},
}
_LEFT: Final = "what was made for it could not be removed"
LOOKED_THROUGH: Final = 50  # runs at work, the newest: of each its last events are read
_NO_LOOK: Final = LookedAt()
_NEVER: Final = 2**62  # what has no expiry comes after all that has one

_APPROVALS: Final = Queries("approvals")
_RUNS: Final = Queries("run_lists")

routes = Routes(tag="inbox")


@routes.get("/v1/inbox", access=needs("read"))
async def read_inbox(call: Call) -> Inbox:
    """What waits for you, went wrong or is ready, ranked; and what is with a supervisor or with others.

    Questions come with what it takes to answer them. What went wrong or is ready goes once you have looked at it. Follow the
    stream that is named from `seq` on, and read this again when something is told there."""
    services = call.services
    stream = await services.inbox_items.stream(call.principal.workspace)
    seq = (
        0 if stream is None else stream.head
    )  # before the list is read: what changes meanwhile is told after it
    reading = _InboxReader(call)
    here_only = services.forwarder is not None and services.forwarder.is_here(call)
    if not here_only:
        await reading.approvals()
    await reading.rest(here_only=here_only)
    works = [_work(each) for each in _working(call)] + await reading.runs_under_way()
    found = _ranked(reading.items)
    counts = {section: sum(item.section == section for item in found) for section in _ORDER}
    works.sort(key=lambda item: (-item.since, item.id))
    waiting = [item.expires_at for item in found if item.section == "you" and item.expires_at is not None]
    return Inbox(
        at=services.clock.now_ms(),
        stream=inbox.STREAM,
        seq=seq,
        counts=InboxCounts(**counts),
        working=len(works),
        expires_next=min(waiting, default=None),
        others=sorted({who for item in found if item.section == "others" for who in item.reviewers}),
        more=reading.more,
        items=found,
        works=works[: inbox.MOST],
    )


@routes.post("/v1/inbox/{item}/looked-at", access=needs("read"), errors=(NotFound, Conflict))
async def look_at(call: Call, item: str, body: LookedAt = _NO_LOOK) -> None:
    """Say that you have looked at something that went wrong or is ready: it is gone from your inbox, and from nobody else's,
    until something happens to it. With `since`, as it was shown: what happened after that stays. Twice is as once."""
    await call.services.inbox_items.look(call.principal, item, body.since)


def _working(call: Call) -> list[SessionRecord]:
    """List the sessions of this server in which a turn runs, the one that was changed last first."""
    records, workspace = call.services.sessions.records, call.principal.workspace
    found = [each for each in records if each.workspace == workspace and each.session and each.session.busy]
    return sorted(found, key=lambda each: (-each.details.updated_at, each.id))


def _work(record: SessionRecord) -> InboxItem:
    return InboxItem(
        id=record.id,
        kind="session",
        section="working",
        state="working",
        verb="Works",
        object=_line(record.title or record.id),
        action="open",
        since=record.details.updated_at,
        session_id=record.id,
        session_title=_title(record),
        agent=record.details.agent,
        folder=record.meta.cwd,
    )


@dataclass(slots=True)
class _InboxReader:
    """One reading of the inbox, for one caller."""

    call: Call
    items: list[InboxItem] = field(default_factory=list)
    more: bool = False
    titles: dict[str, str | None] = field(default_factory=dict)  # of runs that wait

    def _bounded(self, found: Sequence[Row]) -> Sequence[Row]:
        self.more |= len(found) > inbox.MOST
        return found[: inbox.MOST]

    async def approvals(self) -> None:
        services, principal = self.call.services, self.call.principal
        workspace, now = principal.workspace, services.clock.now_ms()
        pending, called = await services.database.read(
            _pending, workspace, principal.user or principal.id, now, inbox.MOST + 1
        )
        found = [read(row) for row in self._bounded(pending)]
        names = ["context", "paths", "why"]
        rows = await services.database.read(contents_of, workspace, [each.trace_id for each in found], names)
        seals, said = Seals(services.sealer, workspace), dict[str, dict[str, object]]()
        for each in map(seals.open, rows):
            said.setdefault(each.trace_id, {})[each.name] = each.value
        tokens = [each.escalated_by.removeprefix("token:") for each in found if each.escalated_by]
        called_by = await services.database.read(names_of, tokens) if tokens else {}
        isolated = is_isolated(principal, services.settings)
        wait_ms = round(services.settings.supervisor_wait * 1000)
        for approval in found:
            record = await self._record(approval.session_id)
            shown = _approval(approval, said.get(approval.trace_id, {}), record, isolated=isolated)
            words = _words(approval, why_person(approval, wait_ms), called_by)
            place = self._place(approval, called)
            if shown.run_id is not None and not isolated:
                place["session_title"] = await self._run_title(shown.run_id)
            self.items.append(replace(shown, **place, **({} if words is None else {"why": words})))

    def _place(self, approval: Approval, called: Iterable[str]) -> dict[str, object]:
        """Tell in which section it is for the caller, and what there is to do."""
        principal = self.call.principal
        try:
            may_judge(approval, principal)
            if approval.reviewers and principal.level == 2:
                must_review(approval, principal, called)
        except Forbidden:
            return {"section": "others", "action": None}
        if approval.needs == "supervisor" and principal.level == 2:
            return {"section": "supervisor", "action": "open"}
        if approval.needs == "person" and principal.level < 2:
            return {"section": "others", "action": None}
        return {"section": "you", "action": "deny" if approval.injection_risk else "approve"}

    async def rest(self, *, here_only: bool) -> None:
        """Add questions, and what sessions came to: those of other servers as they tell it."""
        services, workspace = self.call.services, self.call.principal.workspace
        person = inbox.person_of(self.call.principal)
        asked = await services.database.read(inbox.questions, workspace)
        rows = [*self._bounded(asked)]
        items = services.inbox_items
        for section in ("wrong", "ready"):
            found = await services.database.read(inbox.unseen, workspace, section, person, items.void)
            rows += self._bounded(items.current(workspace, found))
        runs = [row for row in rows if row["kind"] == "run"]
        rows = [row for row in rows if row["kind"] != "run"]
        here = [row for row in rows if row["server"] == services.name]
        for row in here:
            if (item := await self._of_session(row)) is not None:
                self.items.append(item)
        if here_only:
            return
        await self._of_runs(runs)
        if services.forwarder is not None and len(here) < len(rows):
            elsewhere = {row["id"]: row["session_id"] for row in rows if row["server"] != services.name}
            self.items += await services.forwarder.inbox(self.call, elsewhere)

    async def _of_runs(self, rows: Sequence[Row]) -> None:
        """Add what runs came to."""
        if not rows:
            return
        from legation.runs.lists import ended  # a server whose runs nobody submits needs none of it

        services, workspace = self.call.services, self.call.principal.workspace
        found = await services.database.read(ended, workspace, [row["id"] for row in rows])
        runs = {row["id"]: row for row in found}
        for row in rows:
            run = runs.get(row["id"])
            if (
                run is None or run["state"] != row["state"]
            ):  # it is gone, or goes on, and its row is about to be
                continue
            why = None if run["error_class"] is None else f"{run['error_class']}: {run['error_reason']}"
            state, verb = row["state"], _OUTCOMES[row["state"]]
            if run["cleanup"] == CleanupStatus.FAILED_TERMINAL:
                if why is None:  # that it did not end well is told first
                    state, verb = "cleanup_failed", "Cleanup failed"
                why = _LEFT if why is None else f"{why}; {_LEFT}"
            shown = await self._run(run, row["section"], state, verb, row["since"])
            self.items.append(replace(shown, action="read" if row["section"] == "ready" else "open", why=why))

    async def runs_under_way(self) -> list[InboxItem]:
        """Return those that work; one that hangs or loops is added to what went wrong."""
        services, workspace = self.call.services, self.call.principal.workspace
        found, works = await services.database.read(_under_way, workspace), list[InboxItem]()
        words = {"paused": "Paused", "suspended": "Suspended", "running": "Works", "cancelling": "Stops"}
        for place, run in enumerate(found):
            word = words.get(run["state"], "Prepares")
            shown = await self._run(run, "working", "working", word, run["changed_at"])
            stuck = await self._stuck(run) if place < LOOKED_THROUGH else None
            if stuck is None:
                works.append(shown)
            else:
                self.items.append(replace(shown, section="wrong", **stuck))
        return works

    async def _stuck(self, row: Row) -> dict[str, str] | None:
        if row["state"] != "running":
            return None
        from legation.runs.run import find_run

        services, workspace = self.call.services, self.call.principal.workspace
        run = await services.database.read(find_run, workspace, row["id"])
        standing = None if run is None else await services.run_events.liveness(run, services.clock.now_ms())
        return None if standing is None else _STUCK.get(standing)

    async def _run_title(self, run_id: str) -> str | None:
        from legation.runs.lists import subject_of

        if run_id not in self.titles:
            subject = await subject_of(self.call.services.content, self.call.principal.workspace, run_id)
            self.titles[run_id] = None if subject is None else _line(subject.title)
        return self.titles[run_id]

    async def _run(self, run: Row, section: Section, state: ItemState, verb: str, since: int) -> InboxItem:
        from legation.runs.lists import subject_of

        subject = await subject_of(self.call.services.content, self.call.principal.workspace, run["id"])
        return InboxItem(
            id=run["id"],
            kind="run",
            section=section,
            state=state,
            verb=verb,
            object=_line(run["id"] if subject is None else subject.title),
            action="open",
            since=since,
            run_id=run["id"],
            agent=run["agent"],
            folder=None if subject is None else subject.folder,
        )

    async def _of_session(self, row: Row) -> InboxItem | None:
        """Show a question, or a session; None where it is gone, and its row is about to be."""
        record = await self._record(row["session_id"])
        if record is None or record.details.deletion is not None:
            return None
        item = InboxItem(
            id=row["id"],
            kind=row["kind"],
            section=row["section"],
            state=row["state"],
            verb=_OUTCOMES.get(row["state"], "Answer"),
            object=_line(record.title or record.id),
            action="read" if row["section"] == "ready" else "open",
            since=row["since"],
            expires_at=row["expires_at"],
            session_id=record.id,
            session_title=_title(record),
            agent=record.details.agent,
            folder=record.meta.cwd,
            why=_why(record, row["state"]),
        )
        if row["kind"] != "question":
            return item
        asked = record.session.talk.questions.asked(row["id"]) if record.session else None
        if asked is None:
            return None
        may = "operate" in self.call.principal.scopes
        return replace(
            item,
            section="you" if may else "others",
            action="answer" if may else None,
            object=_line(asked.message),
            question=_question(asked),
        )

    async def _record(self, session_id: str | None) -> SessionRecord | None:
        if session_id is None:
            return None
        return await self.call.services.sessions.records.find(self.call.principal.workspace, session_id)


def _pending(workspace: str, user: str, now_ms: int, limit: int) -> Transaction[tuple[Rows, list[str]]]:
    """Read what is pending, and what the caller is called."""
    pending = yield _APPROVALS.next_to_expire(workspace=workspace, now=now_ms, limit=limit)
    people = yield _APPROVALS.person(user=user)
    called = [row[name] for row in people for name in ("id", "name", "email") if row[name]]
    return pending, called


def _under_way(workspace: str) -> Transaction[Rows]:
    return (yield _RUNS.under_way(workspace=workspace, limit=inbox.MOST))


def _approval(
    approval: Approval, said: Mapping[str, object], record: SessionRecord | None, *, isolated: bool
) -> InboxItem:
    context = said.get("context")
    action, facts = action_of(
        approval.agent,
        approval.tool,
        approval.kind,
        {},
        context if isinstance(context, dict) else None,
    )
    verb, about = "Call", approval.tool
    if action.command is not None:
        verb, about = "Run", action.command
    elif approval.kind in _VERBS and (action.paths or action.urls):
        verb = _VERBS[approval.kind]
        about = _relative(action.paths[0], facts.workspace) if action.paths else action.urls[0]
    if isolated and len(about.encode("utf-8", "surrogatepass")) > LONGEST_OBJECT:
        verb, about = "Call", approval.tool
    inside = [path.inside for path in read_evidence(said).paths]
    return InboxItem(
        id=approval.id,
        kind="approval",
        section="others",
        state="pending",
        verb=verb,
        object=_line(about),
        action=None,
        since=approval.created_at,
        expires_at=approval.expires_at,
        session_id=approval.session_id,
        session_title=None if record is None else _title(record),
        run_id=_run_of(approval.session_id),
        agent=approval.agent,
        folder=facts.workspace or facts.cwd,
        rule=approval.policy_rule,
        why=_reason(approval, said.get("why")),
        # Whoever is to look at each of them does not answer them at once.
        group=None if approval.injection_risk else approval.group_key,
        digest=approval.action_digest,
        injection_risk=approval.injection_risk,
        outside=True if False in inside else None if None in inside else False,
        reviewers=approval.reviewers,
    )


def _run_of(session_id: str | None) -> str | None:
    """Name the run whose runner asks: that one has the run's name and the attempt's number."""
    return session_id.rpartition("-")[0] if session_id and session_id.startswith("run_") else None


def _reason(approval: Approval, why: object) -> str | None:
    """Give the rule's words; that it matches says no more than its name, which stands beside them."""
    policy, _, rule = approval.policy_rule.partition(":")
    return None if why in (None, f"rule {rule} of policy {policy} matches") else str(why)


def _words(approval: Approval, why: NoticeReason, names: Mapping[str, str]) -> str | None:
    """Say how it came to a person; None where the rule says so itself."""
    by = approval.escalated_by or ""
    return {
        "policy": None,
        "escalated": f"left to a person by {names.get(by.removeprefix('token:'), by)}",
        "no-supervisor": "no supervisor attached",
        "undecided": "no supervisor decided it",
    }[why]


def _relative(path: str, workspace: str | None) -> str:
    return path.removeprefix(f"{workspace}/") if workspace else path


def _line(text: str) -> str:
    """Make one line of a list of it; the whole is where it was said."""
    first = writable(text.strip().split("\n", 1)[0])
    return first if len(first) <= LONGEST_OBJECT else f"{first[: LONGEST_OBJECT - 3]}..."


def _title(record: SessionRecord) -> str | None:
    return None if record.title is None else writable(record.title)


def _why(record: SessionRecord, state: str) -> str | None:
    details = record.details
    if state == "exited" and details.exit is not None:
        return details.exit.words
    if state == "cut" and details.cut is not None:
        return writable(details.cut.reason)
    failed = details.failed or details.cut
    return writable(failed.reason) if state == "failed" and failed is not None else None


def _question(asked: CreateElicitationRequest) -> InboxQuestion:
    from legation.wire.universal.asks import fields_of  # with it the host's vocabulary

    required = (asked.requested_schema or {}).get("required")
    needed = set(required) if isinstance(required, list | tuple) else set()
    fields = tuple(
        QuestionField(
            name=each.name,
            title=each.title,
            type=each.type,
            description=each.description,
            choices=tuple(QuestionChoice(label=choice.label, value=choice.value) for choice in each.choices),
            many=each.many,
            required=each.name in needed,
        )
        for each in fields_of(asked.requested_schema)
    )
    return InboxQuestion(
        message=asked.message, mode=asked.mode, url=asked.url, schema=asked.requested_schema, fields=fields
    )


def _ranked(items: Iterable[InboxItem]) -> list[InboxItem]:
    """Put them in their order; a group stands where the first of it expires."""
    sections: dict[str, list[InboxItem]] = {section: [] for section in _ORDER}
    for item in items:
        sections[item.section].append(item)
    for section in ("wrong", "ready"):
        sections[section].sort(key=lambda item: (-item.since, item.id))
    for section in ("you", "supervisor", "others"):
        by_expiry = sorted(sections[section], key=_expiry)
        first: dict[str, int] = {}
        for place, item in enumerate(by_expiry):
            first.setdefault(item.group or item.id, place)
        by_expiry.sort(key=lambda item: first[item.group or item.id])
        sections[section] = by_expiry
    return [item for section in _ORDER for item in sections[section]]


def _expiry(item: InboxItem) -> tuple[int, int, str]:
    return _NEVER if item.expires_at is None else item.expires_at, item.since, item.id

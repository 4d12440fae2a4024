"""Grants: for a bounded time an agent may use some tools without asking.

INV-G1  A grant ends: its duration is positive and at most the maximum. It lifts nothing once it ended or is revoked.
INV-G2  Its patterns are well-formed, or it is not given.
INV-G3  Only a person's credential gives or revokes one, and the audit log has it in the same transaction. A session
        that ends takes its own along.
INV-G4  A grant of one session covers no call of another, and none that only says that it is of that session.
INV-G5  It lifts nothing while whoever gave it is disabled, no member, or may not approve any more.
INV-G6  A grant for a folder covers a call only where all that it touches surely lies there, links followed; a command, where
        it runs there. Of an agent on another machine that is where it resolved its paths.

A grant lifts `supervisor` and `human_approval`. Here one is only found: that it never lifts `deny`, nor a rule that names
its reviewers, and nothing where the injection signal fires, is for the door to decide. Why it was given is people's words: sealed, under a key of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from legation.approvals.approval import Approval, ApprovalAnswer, Glob, label, must_be_words
from legation.approvals.policy.facts import Facts, normal
from legation.approvals.policy.truth import YES
from legation.approvals.queue import ApprovalQueue
from legation.approvals.trace.step import StepKind, must_be_name
from legation.clock import Clock, new_id
from legation.errors import Conflict, Forbidden, InvalidParams, NotFound
from legation.store.audit import record
from legation.store.database.transaction import Dangling, Database, Queries, Row, Transaction, only, page_of
from legation.store.identity.tokens import standing
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import ContentStore
from legation.wire import jsontext
from legation.wire.acp.updates import TOOL_KINDS
from legation.wire.action import Action
from legation.wire.api.approvals import ActiveGrant, GrantView, NewGrant, go_duration, rfc3339
from legation.wire.api.shape import Page
from legation.wire.principal import Principal

MOST_MS: Final = 24 * 3_600_000  # the longest grant, unless the owner sets another
SHORTEST_MS: Final = 1000
MOST: Final = 500  # in one page
ALL_TOOLS: Final = "*"
_LAST: Final = "~"
_REASON: Final = "reason"
_PART: Final = re.compile(
    r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII
)  # of a duration as Go writes it
_UNITS_MS: Final = {
    "ns": Fraction(1, 1_000_000), "us": Fraction(1, 1000), "µs": Fraction(1, 1000), "μs": Fraction(1, 1000),
    "ms": Fraction(1), "s": Fraction(1000), "m": Fraction(60_000), "h": Fraction(3_600_000),
}  # fmt: skip

_SQL: Final = Queries("grants")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `approval_grant`; members are named as its columns."""

    id: str
    workspace_id: str
    agent: str
    tools: str
    kinds: tuple[str, ...] | None
    created_at: int
    expires_at: int
    granted_kind: str
    granted_by: str
    granted_user: str | None
    revoked_at: int | None
    revoked_by: str | None
    session_id: str | None = None
    folder: str | None = None

    def covers(self, action: Action, session: str | None, facts: Facts) -> bool:
        """Tell whether it lets this call pass."""
        # A grant of a session's for every tool of some kinds is for its folder: whoever lets an agent edit there has not let
        # it edit its own settings, or a key that lies in a home.
        return (
            self._names(action, session)
            and (not self._is_for_all or self.kinds is None or self._is_at_home(action, facts))
            and (self.folder is None or self._is_there(self.folder, action, facts))
        )

    def _is_there(self, folder: str, action: Action, facts: Facts) -> bool:
        """Tell whether all that it touches is in the folder, and a command runs in it; of the latter no more is known."""
        if action.unclear:
            return False
        if action.command is None:
            return _is_inside(action, facts, folder)
        runs = self.kinds is None or "execute" in self.kinds
        return (
            runs
            and facts.cwd is not None
            and _holds(facts, folder, facts.cwd)
            and (not action.paths or _is_inside(action, facts, folder))
        )

    def _is_at_home(self, action: Action, facts: Facts) -> bool:
        """Tell whether all that it touches is in the folder, as far as anybody can know."""
        # A command reaches what it likes, whatever the agent calls the call.
        runs = action.command is not None and "execute" not in (self.kinds or ())
        return not runs and not action.unclear and _is_inside(action, facts)

    def covers_always(self, action: Action, session: str | None) -> bool:
        """Tell whether it covers the tool whatever its arguments: what an agent does unasked once it was told `always`."""
        return (
            self._names(action, session)
            and self.folder is None  # whoever is told `always` asks about no place any more
            and (self.kinds is None or not self._is_for_all)
        )

    def _names(self, action: Action, session: str | None) -> bool:
        return (
            self.session_id in (None, session)
            and Glob(self.agent).matches(action.agent)
            and (self._is_for_all or Glob(self.tools).matches(action.tool))
            and (self.kinds is None or action.kind in self.kinds)
        )

    @property
    def _is_for_all(self) -> bool:
        # Of one session a star is every tool: elsewhere, as in Go, it stops at a slash.
        return self.session_id is not None and self.tools == ALL_TOOLS

    def is_live(self, now_ms: int) -> bool:
        return self.revoked_at is None and self.expires_at > now_ms

    def shown(self, now_ms: int) -> ActiveGrant:
        return ActiveGrant(
            id=self.id,
            agent=self.agent,
            tools=self.tools,
            expires_at=rfc3339(self.expires_at),
            remaining=go_duration(self.expires_at - now_ms if self.is_live(now_ms) else 0),
            granted_by=f"{self.granted_kind}:{self.granted_by}",
            session_id=self.session_id,
            folder=self.folder,
        )

    def view(self, reason: str | None, now_ms: int) -> GrantView:
        shown = self.shown(now_ms)
        return GrantView(
            **{name: getattr(shown, name) for name in shown.__struct_fields__},
            kinds=None if self.kinds is None else list(self.kinds),
            reason=reason,
            created_at=rfc3339(self.created_at),
            active=self.is_live(now_ms),
            revoked_at=None if self.revoked_at is None else rfc3339(self.revoked_at),
            revoked_by=self.revoked_by,
        )


class GrantService:
    """Gives and revokes grants."""

    def __init__(self, database: Database, sealer: Sealer, clock: Clock, *, most_ms: int = MOST_MS) -> None:
        self._content = ContentStore(database, sealer, clock)
        self._most_ms = most_ms

    @property
    def longest(self) -> int:
        """The longest duration, in seconds."""
        return self._most_ms // 1000

    def give(
        self, principal: Principal, new: NewGrant, *, grant: str, now_ms: int, session: str | None = None
    ) -> Transaction[Grant]:
        """`grant` is its id: `new_grant_id`. With `session`, or one that is named in it, it covers only the calls of that
        one."""
        must_be_person(principal, "give")
        kinds, expires_at = self._checked(new), now_ms + self._lasting_ms(new)
        try:
            rows = yield _SQL.give(
                id=grant,
                workspace=principal.workspace,
                agent=new.agent,
                tools=new.tools,
                kinds=kinds,
                now=now_ms,
                expires_at=expires_at,
                granted_kind=principal.kind,
                granted_by=principal.id,
                granted_user=principal.user,
                session=session or new.session_id,
                folder=_checked_folder(new.folder),
            )
        except Dangling:
            raise NotFound("cannot give a grant there: there is no such workspace; create it first") from None
        if new.reason is not None:
            reason = jsontext.write(new.reason)
            yield from self._content.append(principal.workspace, grant, _REASON, 1, 1, reason)
        # The patterns are somebody's words: the target's id leads to them.
        yield from record(principal, "grant.created", grant, {"expiresAt": expires_at}, now_ms)
        return _read(rows[0])

    def revoke(self, principal: Principal, grant: str, now_ms: int) -> Transaction[Grant]:
        must_be_person(principal, "revoke")
        if (revoked := (yield from self.withdraw(principal, grant, now_ms))) is not None:
            return revoked
        yield from get(principal.workspace, grant)
        raise Conflict("cannot revoke the grant: it is revoked already")

    def withdraw(self, principal: Principal, grant: str, now_ms: int) -> Transaction[Grant | None]:
        """Revoke the grant of a session's mode that was left, by whoever may leave it. One that counts no more is no error."""
        rows = yield _SQL.revoke(workspace=principal.workspace, id=grant, now=now_ms, by=label(principal))
        if not rows:
            return None
        yield from record(principal, "grant.revoked", grant, {}, now_ms)
        return _read(rows[0])

    def end_session(self, principal: Principal, session: str, now_ms: int) -> Transaction[list[Grant]]:
        """Revoke what was granted to a session alone, now that it is over."""
        rows = yield _SQL.end_session(
            workspace=principal.workspace, session=session, now=now_ms, by=label(principal)
        )
        for row in rows:
            yield from record(principal, "grant.revoked", row["id"], {}, now_ms)
        return [_read(row) for row in rows]

    async def reason(self, workspace: str, grant: str) -> str | None:
        pages = await self._content.read(workspace, grant, _REASON)
        return str(jsontext.read(pages[0].plain)) if pages else None

    async def views(self, workspace: str, grants: Sequence[Grant], now_ms: int) -> list[GrantView]:
        """Show them with why they were given."""
        return [grant.view(await self.reason(workspace, grant.id), now_ms) for grant in grants]

    def _lasting_ms(self, new: NewGrant) -> int:
        lasting = new.duration * 1000 if isinstance(new.duration, int) else go_duration_ms(new.duration)
        if not SHORTEST_MS <= lasting <= self._most_ms:
            raise InvalidParams(
                f"cannot grant for that long: give 1 to {self._most_ms // 1000} seconds",
                {"mostSeconds": self._most_ms // 1000},
            )
        return lasting

    def _checked(self, new: NewGrant) -> str | None:
        Glob(must_be_name(new.agent, "a grant's agents"))
        Glob(must_be_name(new.tools, "a grant's tools"))
        if new.kinds is not None and (not new.kinds or set(new.kinds) - set(TOOL_KINDS)):
            raise InvalidParams(f"cannot grant those kinds: give some of {', '.join(TOOL_KINDS)}")
        must_be_words(new.reason)
        return None if new.kinds is None else msgspec.json.encode(sorted(set(new.kinds))).decode()


def live(workspace: str, now_ms: int) -> Transaction[list[Grant]]:
    return [_read(row) for row in (yield _SQL.live(workspace=workspace, now=now_ms))]


def live_for(workspace: str, session: str | None, now_ms: int) -> Transaction[list[Grant]]:
    """List those of no session, and of this one, the first given first."""
    rows = yield _SQL.live_for(workspace=workspace, session=session, now=now_ms)
    return sorted(map(_read, rows), key=lambda grant: grant.id)


def ids_in(workspaces: Iterable[str], now_ms: int) -> Transaction[dict[str, dict[str, str | None]]]:
    """List what counts in some workspaces: by workspace and id, whose session it is alone."""
    named = msgspec.json.encode(sorted(workspaces)).decode()
    found: dict[str, dict[str, str | None]] = {}
    for row in (yield _SQL.live_ids(workspaces=named, now=now_ms)):
        found.setdefault(row["workspace_id"], {})[row["id"]] = row["session_id"]
    return found


def matching(
    workspace: str, action: Action, now_ms: int, session: str | None, facts: Facts, *, always: bool = False
) -> Transaction[Grant | None]:
    """Find the first given that covers the action, by somebody who could still give it; with `always` the tool whatever
    its arguments."""
    for grant in (yield from live_for(workspace, session, now_ms)):
        covers = grant.covers(action, session, facts)
        if covers and (not always or grant.covers_always(action, session)) and (yield from _stands(grant)):
            return grant
    return None


def _stands(grant: Grant) -> Transaction[bool]:
    # A grant is a person's word: it goes with the person's right to give it.
    if grant.granted_user is None:
        return True
    giver = yield from standing(grant.granted_user, grant.workspace_id)
    return giver is not None and "approve" in giver.scopes


def _is_inside(action: Action, facts: Facts, folder: str = "$WORKSPACE") -> bool:
    """Tell whether all that it touches lies in the folder, which is the one where the agent works, whatever links there
    are."""
    places = [facts.absolute(path) for path in action.paths]
    return bool(places) and all(place is not None and _holds(facts, folder, place) for place in places)


def _holds(facts: Facts, folder: str, place: str) -> bool:
    root = facts.root(folder) if folder.startswith("/") or facts.workspace is not None else None
    return root is not None and root.holds(place, facts.resolve(place)) is YES


def _checked_folder(folder: str | None) -> str | None:
    if folder is None:
        return None
    # The root is every folder: whoever means that leaves it out, and says so.
    if not folder.startswith("/") or "\0" in folder or (named := normal(folder)) == "/":
        raise InvalidParams(
            "cannot grant that folder: give an absolute path to a folder other than the root, or leave it out for every "
            "folder",
            {"path": "$.folder"},
        )
    try:
        named.encode()
    except UnicodeEncodeError:
        raise InvalidParams("cannot grant that folder: its name is no text", {"path": "$.folder"}) from None
    return named


def active_for(workspace: str, agent: str, session: str | None, now_ms: int) -> Transaction[list[Grant]]:
    """List those that say anything about an agent in a session: the context of an approval."""
    grants = yield from live_for(workspace, session, now_ms)
    return [grant for grant in grants if Glob(grant.agent).matches(agent)]


def get(workspace: str, grant: str) -> Transaction[Grant]:
    row = only((yield _SQL.get(workspace=workspace, id=grant)))
    if row is None:
        raise NotFound("cannot find the grant; list those of the workspace, and give the whole id")
    return _read(row)


def page(workspace: str, limit: int = 100, after: str | None = None) -> Transaction[Page[Grant]]:
    """List every one on record, ended or not, the newest first."""
    limit = max(1, min(limit, MOST))
    rows = yield _SQL.page(workspace=workspace, after=after or _LAST, limit=limit + 1)
    return page_of(rows, limit, _read, lambda grant: grant.id)


def go_duration_ms(text: str) -> int:
    """Read a duration as Go's `time.ParseDuration` does: `30m`, `1h30m`, `1.5h`; whole milliseconds of it."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    parts = list(_PART.finditer(rest))
    if not parts or "".join(part[0] for part in parts) != rest:
        raise InvalidParams(
            'cannot read the duration: give seconds as a number, or a text like "30m" or "1h30m"'
        )
    return int(sign * sum(Fraction(part[1]) * _UNITS_MS[part[2]] for part in parts))


def new_grant_id(now_ms: int) -> str:
    return new_id("grt", now_ms=now_ms)


def exactly(name: str) -> str:
    """Make the pattern that matches this name alone."""
    return re.sub(r"([\\*?\[])", r"\\\1", name)


def must_be_person(principal: Principal, verb: str) -> None:
    if principal.level < 2 or "approve" not in principal.scopes:
        raise Forbidden(
            f"cannot {verb} a grant this way: it takes a person who may approve; send the credential of one"
        )


def _read(row: Row) -> Grant:
    values = {name: row[name] for name in Grant.__struct_fields__}
    kinds = row["kinds"]
    values["kinds"] = None if kinds is None else tuple(msgspec.json.decode(kinds, type=list[str]))
    return Grant(**values)


async def allow_always(
    queue: ApprovalQueue,
    grants: GrantService,
    by: Principal,
    approval: Approval,
    session: str,
    answer: ApprovalAnswer,
) -> None:
    """Approve a call of a session, and give a grant for the same tool there. It takes a person."""
    # What waits there already is not answered here: whoever waits for it asks anew whether the grant lets it pass.
    must_be_person(by, "give")

    def work(now_ms: int) -> Transaction[Approval]:
        answered = yield from queue.life.resolve(by, approval.id, answer, now_ms)
        new = NewGrant(
            agent=exactly(approval.agent),
            tools=exactly(approval.tool),
            kinds=[approval.kind],
            duration=grants.longest,
            reason=f"always, said in session {session}",
        )
        yield from grants.give(by, new, grant=new_grant_id(now_ms), now_ms=now_ms, session=session)
        return answered

    giving = queue.change(by.workspace, StepKind.RESOLVED, work)
    await queue.granting(by.workspace, giving, session=session)

"""The inbox on the wire: one ranked list of what waits for somebody, went wrong or is ready; and its changes, as events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from legation.wire.api.approvals import Value
from legation.wire.api.shape import RequestBody, ResponseBody
from legation.wire.events import Payload

ItemKind = Literal["approval", "question", "session", "run"]
Section = Literal["you", "wrong", "ready", "supervisor", "others", "working"]
ItemState = Literal[
    "pending",
    "asks",
    "failed",
    "timed_out",
    "cut",
    "exited",
    "ended",
    "succeeded",
    "cleanup_failed",
    "working",
    "hung",
    "looping",
]
NextAction = Literal["approve", "deny", "answer", "open", "read"]


class QuestionChoice(ResponseBody):
    label: str
    value: Value


class QuestionField(ResponseBody):
    """A field of a question's form; with `choices` only their values are valid, `many` of them where it says so."""

    name: str
    title: str
    type: str
    description: str | None = None
    choices: tuple[QuestionChoice, ...] = ()
    many: bool = False
    required: bool = False


class InboxQuestion(ResponseBody):
    """A question of an agent's, with what it takes to answer it: a form, or a page to visit."""

    message: str
    mode: str
    url: str | None = None
    schema: Mapping[str, Value] | None = None
    fields: tuple[QuestionField, ...] = ()


class InboxItem(ResponseBody, kw_only=True):
    """`section`: `you` waits for the caller; `supervisor` and `others` are with those. `object` is the agent's word for what
    `verb` is about. `group`: what asks for the very same, and is answered once. `action` is the one next thing to do."""

    id: str
    kind: ItemKind
    section: Section
    state: ItemState
    verb: str
    object: str
    action: NextAction | None
    since: int
    expires_at: int | None = None
    session_id: str | None = None
    session_title: str | None = None
    run_id: str | None = None  # of a run, and of what its agent asks
    agent: str | None = None
    folder: str | None = None
    rule: str | None = None
    why: str | None = None  # in words: what the rule says, how it came to a person, or what went wrong
    group: str | None = None  # null: never answered together with others
    digest: str | None = None  # of the action that is shown, for the answer
    injection_risk: bool = False
    outside: bool | None = None  # it touches something outside the workspace; null: that cannot be told
    reviewers: tuple[str, ...] = ()
    question: InboxQuestion | None = None
    server: str | None = None  # where its session is, if that is another of the same database


class InboxCounts(ResponseBody):
    """Rows of each section, before any are folded into a group."""

    you: int = 0
    wrong: int = 0
    ready: int = 0
    supervisor: int = 0
    others: int = 0


class Inbox(ResponseBody, kw_only=True):
    """All of it, ranked: what waits for the caller by what expires next; what went wrong, then what is ready, the newest first;
    then what is with a supervisor, or with others. Follow `stream` from `seq` on to hear of changes."""

    at: int
    stream: str
    seq: int
    counts: InboxCounts
    working: (
        int  # sessions of this server in which a turn runs, and runs that are under way; 200 of these at most
    )
    expires_next: int | None
    others: list[str]  # for whom the last section waits, where a rule names them
    more: bool  # there is more of a section than is shown
    items: list[InboxItem]
    works: list[InboxItem]  # what `working` counts, the one changed last first; 200 at most


class LookedAt(RequestBody, kw_only=True):
    """`since`: of the item as it was shown. What has happened to it after that is still to be looked at."""

    since: int | None = None


# The one event of a workspace's stream `inbox`.


class InboxChanged(Payload):
    """Something of the inbox changed: read it again. Without an `id` it is at another server, or much at once, and nobody says what. What a
    `person` looked at has changed for that person alone. Of a run each change of its state is told."""

    happened: Literal["asked", "changed", "answered", "wrong", "ready", "gone", "looked-at"]
    kind: ItemKind | None = None
    id: str | None = None
    session_id: str | None = None
    person: str | None = None

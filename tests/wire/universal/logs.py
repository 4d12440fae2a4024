"""Logs made by hand."""

import json
from collections.abc import Mapping, Sequence

from legation.wire import event_types
from legation.wire.acp.methods import PermissionOption
from legation.wire.acp.updates import Text
from legation.wire.action import Action
from legation.wire.event_types import (
    Known,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    SessionStatus,
    TurnState,
)
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Draft, Event, update_type

AT = 1_790_000_000_123
Entry = Known | Mapping[str, object] | bytes | Draft


def log(*entries: Entry, first: int = 1) -> list[Event]:
    """Payloads of ours, ACP updates as objects, or their bytes."""
    drafts = [_draft(entry) for entry in entries]
    return [
        Event(seq, AT + seq, each.type, each.raw, each.native, each.span, each.digest)
        for seq, each in enumerate(drafts, first)
    ]


def in_params(events: Sequence[Event], beside: bytes = b"") -> list[Event]:
    """The same updates, as an agent sends them. Those given are as they were stored before version 4."""
    return [
        Event(event.seq, event.at, event.type, head + event.raw + b"}", event.native, (len(head), 1))
        if event.type in UPDATE_TYPES.values() or (event.type == UNRECOGNIZED and event.raw)
        else event
        for head in (b'{"sessionId":"native-1"%b,"update":' % beside,)
        for event in events
    ]


def _draft(entry: Entry) -> Draft:
    if isinstance(entry, Draft):
        return entry
    if isinstance(entry, Mapping):
        entry = json.dumps(entry).encode()
    return Draft(update_type(entry), entry) if isinstance(entry, bytes) else event_types.draft(entry)


def chunk(text: str, message: str | None = None, kind: str = "agent_message") -> dict[str, object]:
    return {
        "sessionUpdate": f"{kind}_chunk",
        "content": {"type": "text", "text": text},
        **({"messageId": message} if message else {}),
    }


def block(**content: object) -> dict[str, object]:
    return {"sessionUpdate": "agent_message_chunk", "content": content}


def call(name: str = "c1", /, **fields: object) -> dict[str, object]:
    return {"sessionUpdate": "tool_call", "toolCallId": name, "title": "Do it", **fields}


def change(name: str = "c1", /, **fields: object) -> dict[str, object]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": name, **fields}


def output(*texts: str) -> list[dict[str, object]]:
    return [{"type": "content", "content": {"type": "text", "text": text}} for text in texts]


def turn(*entries: Entry, name: str = "trn_1", reason: str = "end_turn") -> tuple[Entry, ...]:
    return (
        PromptStarted(turn=name, prompt=(Text(text="do it"),)),
        TurnState(turn=name, state="running"),
        *entries,
        PromptFinished(turn=name, stop_reason=reason),
        TurnState(turn=name, state="idle", reason=reason),
    )


ACTIVE = SessionStatus(status="active")
OPTIONS = tuple(
    PermissionOption(option_id=kind, name=kind, kind=kind)
    for kind in ("allow_always", "allow_once", "reject_once")
)


def asked(name: str = "apr_1", call_id: str | None = "c1") -> PermissionAsked:
    action = Action(agent="rehearsal", tool="Bash", kind="execute", command="make", paths=("/w/a",))
    return PermissionAsked(
        id=name, title="Run make", action=action, options=OPTIONS, asked_at=AT, tool_call_id=call_id
    )

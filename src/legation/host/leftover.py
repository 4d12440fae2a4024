"""What a host that was killed left open in a session's log: a turn without its end, questions without an answer."""

from __future__ import annotations

from legation.host.turn import CutWords
from legation.store.stream import Stream
from legation.wire import codec
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.lifecycle import (
    CUT,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    TurnState,
)
from legation.wire.payload import Payload

_OPENING = (PermissionAsked, QuestionAsked, PromptStarted)
_CLOSING = (PermissionAnswered, QuestionAnswered, PromptFinished)
_TYPES = frozenset(each.event_type() for each in (*_OPENING, *_CLOSING))
_WHY = CutWords("the host ended before", "the host ended before")


async def left_open(stream: Stream, after: int = 0, why: CutWords = _WHY) -> list[Payload]:
    """The events that close it. Reads the whole history above `after`, so once for a session of another host's."""
    still_open: dict[str, Payload] = {}
    async for event in stream.subscribe(after, follow=False):
        if event.type not in _TYPES:
            continue
        payload = codec.decode(event)
        if isinstance(payload, _OPENING):
            still_open[_name(payload)] = payload
        elif isinstance(payload, _CLOSING):
            still_open.pop(_name(payload), None)
    return [end for payload in reversed(still_open.values()) for end in _ends(payload, why)]


def _name(payload: object) -> str:
    match payload:
        case PromptStarted(turn=turn) | PromptFinished(turn=turn):
            return turn
        case PermissionAsked(id=name) | PermissionAnswered(id=name):
            return name
        case QuestionAsked(id=name) | QuestionAnswered(id=name):
            return name
    raise TypeError(type(payload).__name__)


def _ends(payload: Payload, why: CutWords) -> list[Payload]:
    match payload:
        case PermissionAsked(id=name):
            return [PermissionAnswered(id=name, outcome="superseded", by="legation", reason=why.waited)]
        case QuestionAsked(id=name):
            return [QuestionAnswered(id=name, outcome="superseded", by="legation", reason=why.waited)]
        case PromptStarted(turn=turn):
            error = RpcError(ErrorCode.INTERNAL_ERROR, why.ran, CUT)
            finished = PromptFinished(turn=turn, stop_reason="cancelled", error=error)
            return [finished, TurnState(turn=turn, state="idle", reason="cancelled")]
    return []

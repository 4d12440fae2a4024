from legation.host.resume import unfinished_events
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire import event_types
from legation.wire.action import Action
from legation.wire.event_types import (
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAsked,
)
from legation.wire.events import Draft, Payload


def asked(name: str) -> PermissionAsked:
    return PermissionAsked(id=name, title="t", action=Action(agent="a", tool="t"), options=(), asked_at=1)


async def open_after(*payloads: Payload) -> list[tuple[str, str]]:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("ses_a")
        stream.append([event_types.draft(payload) for payload in payloads] or [Draft("x", b"1")])
        closing = await unfinished_events(stream)
        return [(each.event_type(), getattr(each, "id", getattr(each, "turn", ""))) for each in closing]


async def test_a_turn_and_its_questions_are_closed_from_the_inside_out() -> None:
    question = QuestionAsked(id="q", message="m", mode="form")
    assert await open_after(PromptStarted(turn="t", prompt=()), asked("p"), question) == [
        ("question-answered", "q"),
        ("permission-answered", "p"),
        ("prompt-finished", "t"),
        ("turn-state", "t"),
    ]


async def test_what_was_closed_stays_closed() -> None:
    answered = PermissionAnswered(id="p", outcome="approved", by="me")
    finished = PromptFinished(turn="t", stop_reason="end_turn")
    assert await open_after(PromptStarted(turn="t", prompt=()), asked("p"), answered, finished) == []
    assert await open_after() == []

"""What a killed server left: whichever prompts stand in the log, a message is played once."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from legation.host.options import SessionMeta
from legation.server.sessions.agents import SessionAgents
from legation.server.sessions.messages import MessageQueue
from legation.server.sessions.record import Begun, Details, QueuedMessage, SessionRecord, SessionRecords
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire import event_types
from legation.wire.event_types import PromptStarted
from legation.wire.universal.shapes import Metadata

OURS = QueuedMessage(id="msg_1", text="go on")
OLD = QueuedMessage(text="go on")  # of a release without ids


@dataclass(frozen=True)
class Case:
    message: QueuedMessage
    prompted: tuple[str | None, ...]  # the names of the messages of the prompts in the log
    waits: bool


@pytest.mark.parametrize(
    "case",
    [
        Case(OURS, (), waits=True),
        Case(OURS, ("msg_1",), waits=False),
        Case(OURS, (None,), waits=True),  # a client of ACP's
        Case(OURS, (None, "msg_1"), waits=False),
        Case(OLD, (), waits=True),
        Case(OLD, (None,), waits=False),
    ],
)
async def test_a_message_waits_unless_its_own_prompt_stands_in_the_log(case: Case) -> None:
    async with EventLog(MemoryBackend()) as log:
        stream = await log.stream("s")
        records = SessionRecords(log)
        given = Metadata("rehearsal", "build", None, "default")
        details = Details(agent="rehearsal", given=given, created_at=1, updated_at=1)
        meta = SessionMeta(cwd="/w", agent_definition_id="rehearsal", agent_session_id="a")
        record = SessionRecord("local", "s", meta, details)
        records.add(record)
        await records.save(record, replace(details, begun=Begun(message=case.message, after=0)))
        for number, name in enumerate(case.prompted):
            await stream.append(
                [event_types.draft(PromptStarted(turn=f"trn_{number}", prompt=(), message=name))]
            )
        agents = SessionAgents.__new__(SessionAgents)  # of which nothing is asked
        await MessageQueue(records, agents, log, log.clock, lambda *_: None).recover()
        assert record.details.begun is None
        assert record.details.queue == ((case.message,) if case.waits else ())

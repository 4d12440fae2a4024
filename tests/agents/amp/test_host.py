"""Sessions with the stand-in in a host: permissions and their answers on record, a restart, a crash."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tests.agents.amp.rig import STANDIN
from tests.host.rig import Rig, of_type, rig

from legation.errors import AgentExited
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.wire.acp.updates import Text
from legation.wire.action import Ask, Decision

pytestmark = pytest.mark.heavy

WRITE = "tool('create_file', {'path': '%s', 'content': 'x'}, write)"


class Deciding:
    """Refuses whatever touches a file named `no`."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []

    async def decide(self, ask: Ask) -> Decision:
        self.asks.append(ask)
        refused = any(path.endswith("/no") for path in ask.action.paths)
        return Decision(outcome="denied" if refused else "approved", by="test", reason="a test")


def definition(made: Rig) -> AgentDefinition:
    program = made.place / "amp.py"
    shutil.copyfile(STANDIN, program)
    return AgentDefinition(
        id="amp",
        command=sys.executable,
        args=("-I", "-S", str(program)),
        cwd=made.work,
        env={"AMP_API_KEY": "k"},
        driver="amp",
    )


async def ask(session: Session, text: str) -> PromptResult:
    return await session.prompt((Text(text=text),))


async def test_a_session_in_a_host(tmp_path: Path) -> None:
    deciding = Deciding()
    async with rig(tmp_path, approver=deciding) as made:
        agent = await made.host.spawn_agent(definition(made))
        session = await made.open(agent.agent_id)
        result = await ask(session, f"{WRITE % 'yes'}; {WRITE % 'no'}; text('Tried.')")
        assert result.stop_reason == "end_turn"
        assert [path.name for path in made.work.iterdir()] == ["yes"]
        assert [(each.action.tool, each.action.kind, each.editable) for each in deciding.asks] == [
            ("create_file", "edit", True)
        ] * 2
        answered = [json.loads(event.payload) for event in await of_type(session, "permission-answered")]
        assert [each["outcome"] for each in answered] == ["approved", "denied"]
        with pytest.raises(AgentExited):
            await ask(session, "crash()")
        assert (await ask(session, "text('On.')")).stop_reason == "end_turn"
        assert made.reported == []


async def test_a_session_is_resumed_with_another_agent(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        told = definition(made)
        session = await made.open((await made.host.spawn_agent(told)).agent_id)
        await ask(session, "text(THREAD)")
        await made.host.dispose_agent(session.agent_id or "")
        again = (await made.host.spawn_agent(told)).agent_id
        await made.host.resume_session(again, session.id)
        await ask(session, "text(THREAD)")
        said = [
            json.loads(event.payload)["content"]["text"]
            for event in await of_type(session, "agent-message-chunk")
        ]
    assert len(said) == 2
    assert said[0] == said[1]
